package registrar

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
)

// core keeps what the local etcd holds and what is shown of it, and decides
// from the one to the other. Time is told to it.
type core struct {
	own        string
	blindAfter time.Duration
	regions    map[string]*region
	index      view.Index
	// loading is the load under way, nil if there is none.
	loading *load
	loaded  bool
	// kept are the endpoints of lapsed regions, marked, by service, if lastResort
	// is set.
	lastResort bool
	kept       map[string][]*registry.Endpoint
	// proven is when the feed was last known to be current.
	proven time.Time
}

// step is what one input changed.
type step struct {
	// changes, one per key and sorted within a service.
	changes []view.Change
	notes   []note
}

const (
	// massDeletes is how many endpoints a region may lose at once, and massShare
	// which share of its own, before it is a mass withdrawal.
	massDeletes = 100
	massShare   = 2
)

// flushed adds the changes that were made to a region that is shown. If it lost
// half of itself at once, that is noted: its origin did it, or lost its etcd.
func (s *step) flushed(r *region, changes []view.Change) {
	s.changes = append(s.changes, changes...)
	gone := 0
	for _, c := range changes {
		if c.Kind == registry.Delete {
			gone++
		}
	}
	if gone >= massDeletes && gone*massShare >= gone+r.served {
		s.notes = append(s.notes, note{region: r.name, cause: Deleted, reason: "deleted at once in the region's own registry", endpoints: gone, left: r.served})
	}
}

// note tells of a region that came or went.
type note struct {
	// left is how many endpoints a region still has that lost many at once.
	left      int
	region    string
	shown     bool
	cause     Cause
	reason    string
	endpoints int
}

func newCore(own string, blindAfter time.Duration) *core {
	c := &core{own: own, blindAfter: blindAfter, regions: map[string]*region{}, index: view.Index{}, kept: map[string][]*registry.Endpoint{}}
	c.region(own).verdict.state = Own
	return c
}

// region returns the region of that name, new if it is not known yet.
func (c *core) region(name string) *region {
	r := c.regions[name]
	if r == nil {
		r = &region{name: name, own: name == c.own, pending: map[registry.Key]*registry.Endpoint{}}
		c.regions[name] = r
	}
	return r
}

// apply takes one update of the feed.
func (c *core) apply(u Update, now time.Time) step {
	if u.Reset {
		c.loading = newLoad()
	}
	if c.loading != nil {
		c.loading.add(u)
		if !u.Synced {
			return step{}
		}
		c.finish(now)
		c.proven = now
		return c.settle(now)
	}
	if u.Progress {
		c.proven = later(c.proven, u.At)
	}
	c.take(u, now)
	return c.settle(now)
}

// take notes the changes of an update.
func (c *core) take(u Update, now time.Time) {
	for i := range u.Endpoints {
		e := &u.Endpoints[i].Endpoint
		if u.Endpoints[i].Delete {
			c.region(e.Region).remove(e.Key)
		} else {
			c.region(e.Region).put(e)
		}
	}
	for _, m := range u.Mirrors {
		c.region(m.Origin).mirror(m, now)
	}
}

// finish makes the load that has ended what the local etcd holds: what differs
// from what is shown becomes pending.
func (c *core) finish(now time.Time) {
	l, first := c.loading, !c.loaded
	c.loading, c.loaded = nil, true
	for _, r := range c.regions {
		clear(r.pending)
	}
	for _, endpoints := range c.index {
		for _, e := range endpoints {
			fresh, found := l.endpoints[e.Key]
			switch {
			case !found:
				c.region(e.Region).remove(e.Key)
			case fresh.Equal(*e):
				delete(l.endpoints, e.Key)
			}
		}
	}
	for _, e := range l.endpoints {
		c.region(e.Region).put(e)
	}
	for origin := range l.mirrors {
		c.region(origin)
	}
	for _, r := range c.regions {
		r.reload(l.mirrors[r.name], now)
		if first {
			r.facts.returned = time.Time{} // there was no life before
		}
	}
}

// read takes a reading of the lease of a region's live key.
func (c *core) read(name string, id int64, reading Reading, now time.Time) step {
	r := c.regions[name]
	if r == nil || r.facts.lease.id != id || !c.current(now) {
		return step{}
	}
	r.read(reading)
	return c.settle(now)
}

// current reports whether what the feed told is proven to be current.
func (c *core) current(now time.Time) bool {
	return c.loaded && now.Sub(c.proven) <= c.blindAfter
}

// settle judges every region and shows, withdraws or updates it.
func (c *core) settle(now time.Time) step {
	var s step
	if !c.loaded {
		return s
	}
	var freed []string
	for _, name := range slices.Sorted(maps.Keys(c.regions)) {
		freed = append(freed, c.settleRegion(c.regions[name], now, &s)...)
	}
	c.fall(&s, freed)
	return s
}

// settleRegion returns the services whose last resort r was and is no more.
func (c *core) settleRegion(r *region, now time.Time, s *step) (freed []string) {
	v := verdict{state: Own, visible: true}
	if !r.own {
		v = judge(r.facts, c.current(now), now)
	}
	if r.kept > 0 && !r.facts.live && !r.facts.mirrored {
		v.state, v.reason = Lapsed, "nothing is left of its mirror; what it had is kept as a last resort"
	}
	was := r.facts.shown
	r.verdict, r.facts.state, r.facts.shown = v, v.state, v.visible
	switch {
	case was && !v.visible:
		n := r.served
		s.changes = append(s.changes, c.withdraw(r)...)
		s.notes = append(s.notes, note{region: r.name, cause: v.cause, reason: v.reason, endpoints: n})
	case v.visible && !v.hold:
		s.flushed(r, c.flush(r))
		if !was && !r.own {
			freed = c.forget(r)
			s.notes = append(s.notes, note{region: r.name, shown: true, endpoints: r.served})
		}
	}
	if r.empty() {
		delete(c.regions, r.name)
	}
	return freed
}

// flush shows what is pending.
func (c *core) flush(r *region) []view.Change {
	if len(r.pending) == 0 {
		return nil
	}
	pending := make([]view.Change, 0, len(r.pending))
	for key, e := range r.pending {
		if e == nil {
			pending = append(pending, view.Change{Kind: registry.Delete, Endpoint: &registry.Endpoint{Key: key}})
		} else {
			pending = append(pending, view.Change{Kind: registry.Put, Endpoint: e})
		}
	}
	r.pending = map[registry.Key]*registry.Endpoint{}
	return c.merge(r, pending)
}

// withdraw takes a region out of what is shown. Its endpoints are pending from
// then on, as far as the local etcd still holds them.
func (c *core) withdraw(r *region) []view.Change {
	var gone []view.Change
	for _, endpoints := range c.index {
		for _, e := range endpoints {
			if e.Region != r.name {
				continue
			}
			gone = append(gone, view.Change{Kind: registry.Delete, Endpoint: e})
			if _, changed := r.pending[e.Key]; !changed {
				r.pending[e.Key] = e
			}
		}
	}
	c.keep(r, gone)
	maps.DeleteFunc(r.pending, func(_ registry.Key, e *registry.Endpoint) bool { return e == nil })
	return c.merge(r, gone)
}

// merge applies changes of one region to the index and returns the effective
// ones.
func (c *core) merge(r *region, changes []view.Change) []view.Change {
	slices.SortFunc(changes, view.CompareChanges)
	effective := make([]view.Change, 0, len(changes))
	for chunk := range view.ByService(changes) {
		service := chunk[0].Endpoint.Service
		before := len(c.index[service]) - c.lapsed(service)
		effective = append(effective, c.index.Merge(service, chunk)...)
		r.served += len(c.index[service]) - c.lapsed(service) - before
	}
	return effective
}

// RegionStatus is a region as this registrar sees it.
type RegionStatus struct {
	Region string
	State  State
	// Endpoints that are served.
	Endpoints int
	// Held is how many changes of a region that is shown are kept for later.
	Held int
	// Kept is how many endpoints of a lapsed region are kept as a last resort.
	Kept int
	// Age since the last proof that the origin lives; for the own region, that
	// its etcd answers. Negative: there has been none.
	Age time.Duration
	// Revision of the origin that the mirror here has reached; 0: none.
	Revision int64
	// Reason for a state that is not as it should be.
	Reason string
}

// status tells of every region, sorted by name.
func (c *core) status(now time.Time) []RegionStatus {
	all := make([]RegionStatus, 0, len(c.regions))
	resorted := c.resorted()
	for _, r := range c.regions {
		s := RegionStatus{
			Region:    r.name,
			State:     r.verdict.state,
			Endpoints: r.served + resorted[r.name],
			Kept:      r.kept,
			Age:       c.age(r, now),
			Revision:  r.checkpoint,
			Reason:    c.reason(r, now),
		}
		if r.facts.shown {
			s.Held = len(r.pending)
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b RegionStatus) int { return cmp.Compare(a.Region, b.Region) })
	return all
}

// reason says why a region is not as it should be. The own region is always
// served, and may be out of date.
func (c *core) reason(r *region, now time.Time) string {
	if !r.own || !c.loaded || c.current(now) {
		return r.verdict.reason
	}
	return fmt.Sprintf("own etcd has not answered for %v", now.Sub(c.proven).Round(time.Second))
}

func (c *core) age(r *region, now time.Time) time.Duration {
	switch {
	case r.own && (c.current(now) || !c.loaded):
		return 0
	case r.own:
		return now.Sub(c.proven)
	case !r.facts.lease.known():
		return -1
	default:
		return max(0, now.Sub(r.facts.lease.renewed()))
	}
}
