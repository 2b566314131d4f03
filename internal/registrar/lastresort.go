package registrar

import (
	"maps"
	"slices"

	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
)

// lastResort returns which of the kept endpoints of lapsed regions to serve
// beside what is shown of a service: none while anything healthy is shown.
func lastResort(shown, kept []*registry.Endpoint) []*registry.Endpoint {
	for _, e := range shown {
		if !e.Lapsed && e.Health.Serving() {
			return nil
		}
	}
	return kept
}

// fallback returns the changes, sorted by key, that make the lapsed endpoints
// among shown those that lastResort wants.
func fallback(shown, kept []*registry.Endpoint) []view.Change {
	want := lastResort(shown, kept)
	wanted := make(map[registry.Key]bool, len(want))
	taken := make(map[registry.Key]bool)
	for _, e := range want {
		wanted[e.Key] = true
	}
	var changes []view.Change
	for _, e := range shown {
		if e.Lapsed && !wanted[e.Key] {
			changes = append(changes, view.Change{Kind: registry.Delete, Endpoint: e})
		}
		taken[e.Key] = !e.Lapsed
	}
	for _, e := range want {
		if !taken[e.Key] {
			changes = append(changes, view.Change{Kind: registry.Put, Endpoint: e})
		}
	}
	slices.SortFunc(changes, view.CompareChanges)
	return changes
}

// keep remembers the serving endpoints of a region that is being withdrawn.
func (c *core) keep(r *region, gone []view.Change) {
	if !c.lastResort {
		return
	}
	for _, g := range gone {
		if !g.Endpoint.Health.Serving() {
			continue
		}
		e := *g.Endpoint
		e.Lapsed = true
		c.kept[e.Service] = append(c.kept[e.Service], &e)
		r.kept++
	}
}

// forget drops what was kept of a region that is shown again, and returns the
// services that it was of.
func (c *core) forget(r *region) []string {
	if r.kept == 0 {
		return nil
	}
	var services []string
	for service, kept := range c.kept {
		n := len(kept)
		kept = slices.DeleteFunc(kept, func(e *registry.Endpoint) bool { return e.Region == r.name })
		if len(kept) < n {
			services = append(services, service)
		}
		if c.kept[service] = kept; len(kept) == 0 {
			delete(c.kept, service)
		}
	}
	r.kept = 0
	return services
}

// fall serves the last resort of the services that changed, and no longer of
// those that have something better again.
func (c *core) fall(s *step, freed []string) {
	if len(c.kept) == 0 && len(freed) == 0 {
		return
	}
	touched := map[string]bool{}
	for _, service := range freed {
		touched[service] = true
	}
	for _, ch := range s.changes {
		touched[ch.Endpoint.Service] = true
	}
	for _, service := range slices.Sorted(maps.Keys(touched)) {
		s.changes = append(s.changes, c.index.Merge(service, fallback(c.index[service], c.kept[service]))...)
	}
	if len(touched) > 0 {
		s.changes = view.Latest([][]view.Change{s.changes, nil}, len(s.changes))
		view.SortByService(s.changes)
	}
}

// lapsed counts the endpoints of a service that are served as a last resort.
func (c *core) lapsed(service string) int {
	if !c.lastResort {
		return 0
	}
	n := 0
	for _, e := range c.index[service] {
		if e.Lapsed {
			n++
		}
	}
	return n
}

// resorted returns how many endpoints of each region are served as a last resort.
func (c *core) resorted() map[string]int {
	served := map[string]int{}
	for service := range c.kept {
		for _, e := range c.index[service] {
			if e.Lapsed {
				served[e.Region]++
			}
		}
	}
	return served
}
