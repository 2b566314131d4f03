package view

import (
	"sync"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The numbers of the fields that are written by hand.
const (
	listEndpoints = 1  // of ListResponse
	endpointAge   = 23 // of Endpoint
)

// encodings keeps the services that were listed as they are sent, so that listing
// one again costs a copy. It is safe for concurrent use.
type encodings struct {
	mu       sync.RWMutex
	services map[string]*encoding
}

// encoding is one service: slices in an index never change.
type encoding struct {
	of []*registry.Endpoint
	// all are the endpoints as fields of a ListResponse, bodies the messages in it.
	all    []byte
	bodies [][]byte
}

func newEncodings() *encodings { return &encodings{services: map[string]*encoding{}} }

// get returns the encoding of a service's endpoints, of which there is one at
// least.
func (c *encodings) get(endpoints []*registry.Endpoint) (*encoding, error) {
	service := endpoints[0].Service
	c.mu.RLock()
	known := c.services[service]
	c.mu.RUnlock()
	if known != nil && len(known.of) == len(endpoints) && &known.of[0] == &endpoints[0] {
		return known, nil
	}
	next, err := encodeService(endpoints)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[service] = next
	return next, nil
}

// drop forgets services that are gone.
func (c *encodings) drop(services []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, service := range services {
		delete(c.services, service)
	}
}

func encodeService(endpoints []*registry.Endpoint) (*encoding, error) {
	e := &encoding{of: endpoints, bodies: make([][]byte, len(endpoints))}
	ends := make([]int, len(endpoints))
	for i, endpoint := range endpoints {
		body, err := proto.Marshal(wire.ToProto(*endpoint))
		if err != nil {
			return nil, registry.Errorf(registry.Internal, "encode Endpoint: %w", err)
		}
		e.all = appendEndpoint(e.all, body, nil)
		e.bodies[i], ends[i] = body, len(e.all)
	}
	for i, end := range ends {
		e.bodies[i] = e.all[end-len(e.bodies[i]) : end] // one copy is enough
	}
	return e, nil
}

// appendEndpoint adds one endpoint, of which body is all but the age.
func appendEndpoint(out, body, age []byte) []byte {
	out = protowire.AppendTag(out, listEndpoints, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(len(body)+len(age)))
	return append(append(out, body...), age...)
}

// ageFields returns the age field of each region that has one.
func ageFields(ages map[string]time.Duration) (map[string][]byte, error) {
	fields := map[string][]byte{}
	for region, d := range ages {
		m := age(d)
		if m == nil {
			continue
		}
		body, err := proto.Marshal(m)
		if err != nil {
			return nil, registry.Errorf(registry.Internal, "encode age: %w", err)
		}
		fields[region] = protowire.AppendBytes(protowire.AppendTag(nil, endpointAge, protowire.BytesType), body)
	}
	return fields, nil
}

// appendTo adds the service with the ages of its regions.
func (e *encoding) appendTo(out []byte, ages map[string][]byte) []byte {
	if len(ages) == 0 {
		return append(out, e.all...)
	}
	for i, body := range e.bodies {
		out = appendEndpoint(out, body, ages[e.of[i].Region])
	}
	return out
}

// Encoded is s.List, encoded but for the revision: the endpoints are in it as
// fields that are not decoded, which are sent as they are.
func (v *View) Encoded(s Snapshot, ages map[string]time.Duration) (*registryv1.ListResponse, error) {
	return v.encodings.list(s, ages)
}

func (c *encodings) list(s Snapshot, ages map[string]time.Duration) (*registryv1.ListResponse, error) {
	fields, err := ageFields(ages)
	if err != nil {
		return nil, err
	}
	var raw []byte
	for _, endpoints := range s.Services {
		e, err := c.get(endpoints)
		if err != nil {
			return nil, err
		}
		raw = e.appendTo(raw, fields)
	}
	answer := &registryv1.ListResponse{Revision: string(s.Revision)}
	answer.ProtoReflect().SetUnknown(raw)
	return answer, nil
}
