package registrar

import (
	"cmp"
	"slices"

	"github.com/aether-federation/aether/registry"
)

// change is one step from one version of the view to the next. A Delete's
// endpoint is the one that was there, of which only the Key counts.
type change struct {
	kind     registry.EventKind
	endpoint *registry.Endpoint
}

// index holds the endpoints that are shown, by service. A slice in it is sorted
// by key and never changed, so that readers may keep it.
type index map[string][]*registry.Endpoint

// merge applies changes of one service, sorted by key and one per key, and
// returns those that changed something.
func (ix index) merge(service string, changes []change) []change {
	old := ix[service]
	merged := make([]*registry.Endpoint, 0, len(old)+len(changes))
	effective := changes[:0:0]
	for _, c := range changes {
		n, found := slices.BinarySearchFunc(old, c.endpoint.Key, compareKey)
		merged = append(merged, old[:n]...)
		old = old[n:]
		var was *registry.Endpoint
		if found {
			was, old = old[0], old[1:]
		}
		switch {
		case c.kind == registry.Delete && was == nil:
			continue
		case c.kind == registry.Put && was != nil && was.Equal(*c.endpoint):
			merged = append(merged, was)
			continue
		case c.kind == registry.Put:
			merged = append(merged, c.endpoint)
		}
		effective = append(effective, c)
	}
	if len(effective) > 0 {
		ix.set(service, append(merged, old...))
	}
	return effective
}

func (ix index) set(service string, endpoints []*registry.Endpoint) {
	if len(endpoints) == 0 {
		delete(ix, service)
		return
	}
	ix[service] = slices.Clip(endpoints)
}

// sortByService orders changes as byService needs them, and keeps the order
// within each service.
func sortByService(changes []change) {
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.endpoint.Service, b.endpoint.Service) })
}

func compareKey(e *registry.Endpoint, key registry.Key) int { return e.Key.Compare(key) }

func compareChanges(a, b change) int { return a.endpoint.Key.Compare(b.endpoint.Key) }
