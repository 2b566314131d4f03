package xds

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/aether-federation/aether/registry"
)

// followed is one service, or the names of all, as its source tells of it.
type followed struct {
	query registry.Query
	// stop and watchers are guarded by the cache's lock.
	stop     context.CancelFunc
	watchers map[watcher]struct{}

	mu sync.Mutex
	// current is what there is, nil until the first load. loading takes its place
	// once it is complete.
	current, loading *holding
	// shown is what was made of a service's endpoints, names of all services.
	shown *snapshot
	names []string
}

func newFollowed(service string) *followed {
	f := &followed{watchers: map[watcher]struct{}{}, loading: newHolding()}
	if service != everything {
		f.query.Services = []string{service}
	}
	return f
}

// all reports whether f is about all services.
func (f *followed) all() bool { return len(f.query.Services) == 0 }

// holding is endpoints, with the number of each service's.
type holding struct {
	endpoints map[registry.Key]*registry.Endpoint
	services  map[string]int
}

func newHolding() *holding {
	return &holding{endpoints: map[registry.Key]*registry.Endpoint{}, services: map[string]int{}}
}

// put reports whether its service is new.
func (h *holding) put(k registry.Key, e *registry.Endpoint) bool {
	if _, had := h.endpoints[k]; !had {
		h.services[k.Service]++
	}
	h.endpoints[k] = e
	return h.services[k.Service] == 1
}

// remove reports whether nothing of its service is left.
func (h *holding) remove(k registry.Key) bool {
	if _, had := h.endpoints[k]; !had {
		return false
	}
	delete(h.endpoints, k)
	if h.services[k.Service]--; h.services[k.Service] > 0 {
		return false
	}
	delete(h.services, k.Service)
	return true
}

// news is what an event brings.
type news uint8

const (
	nothing news = iota
	// changed: there is something to show, and more may follow.
	changed
	// loaded: all of it is there.
	loaded
)

// take applies one event.
func (f *followed) take(e registry.Event) news {
	f.mu.Lock()
	defer f.mu.Unlock()
	into := f.current
	if f.loading != nil {
		into = f.loading
	}
	first := false
	switch e.Kind {
	case registry.Reset:
		f.loading = newHolding()
		return nothing
	case registry.Synced:
		if f.loading != nil {
			f.current, f.loading = f.loading, nil
		}
		return loaded
	case registry.Put:
		first = into.put(e.Endpoint.Key, f.kept(e.Endpoint))
	case registry.Delete:
		first = into.remove(e.Endpoint.Key)
	}
	if f.loading != nil || f.all() && !first {
		return nothing
	}
	return changed
}

// kept is what is kept of an endpoint: of all services only that it is there.
func (f *followed) kept(e registry.Endpoint) *registry.Endpoint {
	if f.all() {
		return nil
	}
	return &e
}

// show makes of f what readers get, and reports whether it could.
func (f *followed) show() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.current == nil:
		return false
	case f.all():
		f.names = slices.Sorted(maps.Keys(f.current.services))
	default:
		f.shown = newSnapshot(f.query.Services[0], slices.Collect(maps.Values(f.current.endpoints)))
	}
	return true
}
