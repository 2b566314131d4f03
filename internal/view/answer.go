package view

import (
	"iter"
	"maps"
	"slices"
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

// List returns s as it is sent, with the ages of its regions.
func (s Snapshot) List(ages map[string]time.Duration) *registryv1.ListResponse {
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

// Summary tells what s has of each service.
func (s Snapshot) Summary() *registryv1.ListServicesResponse {
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

// Messages splits a delivery into watch messages.
func (d Delivery) Messages() iter.Seq[*registryv1.WatchResponse] {
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
		m.Synced = d.snapshot != nil || d.marked
		m.Revision = string(d.revision)
		yield(m)
	}
}

// all yields a delivery's changes, a snapshot's as puts.
func (d Delivery) all() iter.Seq[Change] {
	if d.snapshot == nil {
		return slices.Values(d.changes)
	}
	return func(yield func(Change) bool) {
		for _, endpoints := range d.snapshot.Services {
			for _, e := range endpoints {
				if !yield(Change{Kind: registry.Put, Endpoint: e}) {
					return
				}
			}
		}
	}
}

func changeMessage(c Change) *registryv1.Change {
	if c.Kind == registry.Delete {
		return &registryv1.Change{Change: &registryv1.Change_Delete{Delete: wire.KeyToProto(c.Endpoint.Key)}}
	}
	return &registryv1.Change{Change: &registryv1.Change_Put{Put: wire.ToProto(*c.Endpoint)}}
}
