package view

import (
	"cmp"
	"slices"

	"github.com/aether-federation/aether/registry"
)

// Change is one step from one version of a view to the next. A Delete's endpoint
// is the one that was there, of which only the Key counts.
type Change struct {
	Kind     registry.EventKind
	Endpoint *registry.Endpoint
}

// Index holds endpoints by service. A slice in it is never empty, is sorted by
// key, and never changes, so that readers may keep it.
type Index map[string][]*registry.Endpoint

// Merge applies changes of one service, sorted by key and one per key, and
// returns those that changed something.
func (ix Index) Merge(service string, changes []Change) []Change {
	old := ix[service]
	merged := make([]*registry.Endpoint, 0, len(old)+len(changes))
	effective := changes[:0:0]
	for _, c := range changes {
		n, found := slices.BinarySearchFunc(old, c.Endpoint.Key, compareKey)
		merged = append(merged, old[:n]...)
		old = old[n:]
		var was *registry.Endpoint
		if found {
			was, old = old[0], old[1:]
		}
		switch {
		case c.Kind == registry.Delete && was == nil:
			continue
		case c.Kind == registry.Put && was != nil && was.Equal(*c.Endpoint):
			merged = append(merged, was)
			continue
		case c.Kind == registry.Put:
			merged = append(merged, c.Endpoint)
		}
		effective = append(effective, c)
	}
	if len(effective) > 0 {
		ix.set(service, append(merged, old...))
	}
	return effective
}

func (ix Index) set(service string, endpoints []*registry.Endpoint) {
	if len(endpoints) == 0 {
		delete(ix, service)
		return
	}
	ix[service] = slices.Clip(endpoints)
}

// ByService splits changes, sorted, where the service changes.
func ByService(changes []Change) func(yield func([]Change) bool) {
	return func(yield func([]Change) bool) {
		for len(changes) > 0 {
			service := changes[0].Endpoint.Service
			n := slices.IndexFunc(changes, func(c Change) bool { return c.Endpoint.Service != service })
			if n < 0 {
				n = len(changes)
			}
			if !yield(changes[:n]) {
				return
			}
			changes = changes[n:]
		}
	}
}

// SortByService orders changes as ByService needs them, and keeps the order
// within each service.
func SortByService(changes []Change) {
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(a.Endpoint.Service, b.Endpoint.Service) })
}

// CompareChanges orders changes by their keys, and so by their services too.
func CompareChanges(a, b Change) int { return a.Endpoint.Key.Compare(b.Endpoint.Key) }

func compareKey(e *registry.Endpoint, key registry.Key) int { return e.Key.Compare(key) }

// Latest joins batches of n changes and keeps the last change of each key, in the
// order in which the last ones were made. A batch that is alone is returned as it
// is.
func Latest(batches [][]Change, n int) []Change {
	if len(batches) == 1 {
		return batches[0]
	}
	last := make(map[registry.Key]int, n)
	all := make([]Change, 0, n)
	for _, batch := range batches {
		for _, c := range batch {
			last[c.Endpoint.Key] = len(all)
			all = append(all, c)
		}
	}
	if len(last) == len(all) {
		return all
	}
	kept := all[:0]
	for i, c := range all {
		if last[c.Endpoint.Key] == i {
			kept = append(kept, c)
		}
	}
	return kept
}
