package registrar

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// messageBytes is about how large a watch message gets at most: what is encoded but
// not sent yet, of each watcher that is being told a snapshot.
const messageBytes = 64 << 10

func listAnswer(s Snapshot, ages map[string]time.Duration) *registryv1.ListResponse {
	answer := &registryv1.ListResponse{
		Endpoints: make([]*registryv1.Endpoint, 0, s.Len()),
		Revision:  string(s.Revision),
	}
	for _, endpoints := range s.Services {
		for _, e := range endpoints {
			m := wire.ToProto(*e)
			m.Age = age(ages[e.Region])
			answer.Endpoints = append(answer.Endpoints, m)
		}
	}
	return answer
}

// age is told to the millisecond; zero is left out.
func age(d time.Duration) *durationpb.Duration {
	if d = d.Round(time.Millisecond); d <= 0 {
		return nil
	}
	return durationpb.New(d)
}

func servicesAnswer(s Snapshot) *registryv1.ListServicesResponse {
	answer := &registryv1.ListServicesResponse{Revision: string(s.Revision)}
	for _, endpoints := range s.Services {
		answer.Services = append(answer.Services, serviceAnswer(endpoints))
	}
	return answer
}

func serviceAnswer(endpoints []*registry.Endpoint) *registryv1.Service {
	m := &registryv1.Service{Name: endpoints[0].Service, Endpoints: uint32(len(endpoints))}
	protocols, regions := map[string]struct{}{}, map[string]struct{}{}
	for _, e := range endpoints {
		protocols[string(e.Protocol)] = struct{}{}
		regions[e.Region] = struct{}{}
		if e.Health.Serving() && !e.Lapsed {
			m.Healthy++
		}
	}
	m.Protocols = slices.Sorted(maps.Keys(protocols))
	m.Regions = slices.Sorted(maps.Keys(regions))
	return m
}

func regionsAnswer(regions []RegionStatus) *registryv1.ListRegionsResponse {
	answer := &registryv1.ListRegionsResponse{}
	for _, r := range regions {
		m := &registryv1.Region{
			Region: r.Region, State: string(r.State), Endpoints: uint32(r.Endpoints),
			Reason: r.Reason, Kept: uint32(r.Kept),
		}
		if r.Age >= 0 {
			m.Age = durationpb.New(r.Age.Round(time.Millisecond))
		}
		if r.Revision != 0 {
			m.Revision = strconv.FormatInt(r.Revision, 10)
		}
		answer.Regions = append(answer.Regions, m)
	}
	return answer
}

// messages splits a delivery into watch messages.
func (d delivery) messages() iter.Seq[*registryv1.WatchResponse] {
	return func(yield func(*registryv1.WatchResponse) bool) {
		m := &registryv1.WatchResponse{Reset_: d.snapshot != nil && !d.partial, Replaced: d.replaced}
		size := 0
		for c := range d.all() {
			next := changeMessage(c)
			n := proto.Size(next)
			if size > 0 && size+n > messageBytes {
				if !yield(m) {
					return
				}
				m, size = &registryv1.WatchResponse{}, 0
			}
			m.Changes = append(m.Changes, next)
			size += n
		}
		m.Synced = d.snapshot != nil
		m.Revision = string(d.revision)
		yield(m)
	}
}

// all yields a delivery's changes, a snapshot's as puts.
func (d delivery) all() iter.Seq[change] {
	if d.snapshot == nil {
		return slices.Values(d.changes)
	}
	return func(yield func(change) bool) {
		for _, endpoints := range d.snapshot.Services {
			for _, e := range endpoints {
				if !yield(change{kind: registry.Put, endpoint: e}) {
					return
				}
			}
		}
	}
}

func changeMessage(c change) *registryv1.Change {
	if c.kind == registry.Delete {
		return &registryv1.Change{Change: &registryv1.Change_Delete{Delete: wire.KeyToProto(c.endpoint.Key)}}
	}
	return &registryv1.Change{Change: &registryv1.Change_Put{Put: wire.ToProto(*c.endpoint)}}
}

// endpointsOf reads a request's endpoints.
func endpointsOf[T any](in []*registryv1.Endpoint, read func(*registryv1.Endpoint) (T, error)) ([]T, error) {
	if len(in) > MaxEndpoints {
		return nil, registry.Invalidf("endpoints", "there are %d: send at most %d in one call", len(in), MaxEndpoints)
	}
	out := make([]T, 0, len(in))
	for i, m := range in {
		e, err := read(m)
		if err != nil {
			return nil, registry.Within(fmt.Sprintf("endpoints[%d]", i), err)
		}
		out = append(out, e)
	}
	return out, nil
}

func queryOf(services []string) (registry.Query, error) {
	if len(services) > maxServices {
		return registry.Query{}, registry.Invalidf("services", "there are %d: name at most %d, or none for all", len(services), maxServices)
	}
	for i, service := range services {
		if err := registry.ValidateService(service); err != nil {
			return registry.Query{}, renamed(err, fmt.Sprintf("services[%d]", i))
		}
	}
	return registry.Query{Services: services}, nil
}

// renamed returns err as that of another field.
func renamed(err error, field string) error {
	if e, ok := errors.AsType[*registry.Error](err); ok && e.Field != "" {
		return &registry.Error{Kind: e.Kind, Field: field, Err: e.Err}
	}
	return err
}
