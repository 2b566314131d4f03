package registrar

import (
	"time"

	"github.com/aether-federation/aether/registry"
)

// region is one origin: what the local etcd holds of it is what is shown of it,
// overlaid with what is pending.
type region struct {
	name string
	own  bool
	// served counts the endpoints that are shown.
	served int
	// kept counts those that are kept as a last resort.
	kept    int
	pending map[registry.Key]*registry.Endpoint // nil: deleted
	facts   facts
	verdict verdict
	// checkpoint is the origin's revision that its mirror here has reached.
	checkpoint int64
}

// put takes an endpoint that the feed told of.
func (r *region) put(e *registry.Endpoint) { r.pending[e.Key] = e }

// remove takes a deletion that the feed told of.
func (r *region) remove(key registry.Key) {
	if r.own || r.facts.shown {
		r.pending[key] = nil
	} else {
		delete(r.pending, key)
	}
}

// mirror takes a change of the mirror's own keys.
func (r *region) mirror(c MirrorChange, now time.Time) {
	switch {
	case c.Leaf == LeafState:
		r.facts.mirrored = !c.Deleted
		r.facts.complete = c.Complete && !c.Deleted
		r.facts.returned = time.Time{}
		r.checkpoint = c.Checkpoint
	case c.Leaf == LeafLive && c.Deleted:
		r.facts.live = false
		r.facts.lose(now)
	case c.Leaf == LeafLive:
		if !r.facts.live {
			r.facts.returned = now
		}
		r.facts.live = true
		r.facts.lease = r.facts.lease.moved(c.Lease)
		if !r.facts.lease.gone {
			r.facts.lost = time.Time{}
		}
	}
}

// reload replaces what is known of the mirror's own keys. Whether its state was
// written since the origin returned cannot be told from a load.
func (r *region) reload(mirror []MirrorChange, now time.Time) {
	live, returned := r.facts.live, r.facts.returned
	r.facts.mirrored, r.facts.complete, r.facts.live = false, false, false
	for _, m := range mirror {
		r.mirror(m, now)
	}
	switch {
	case live && r.facts.live:
		r.facts.returned = returned
	case live:
		r.facts.lose(now)
	case r.facts.live:
		r.facts.returned = now
	}
}

// read takes a reading of the lease of the origin's live key.
func (r *region) read(reading Reading) {
	r.facts.lease = r.facts.lease.read(reading)
	if r.facts.lease.gone {
		r.facts.lose(reading.Answered)
	}
}

// lose notes when the proof of life was first missed.
func (f *facts) lose(now time.Time) {
	if f.lost.IsZero() {
		f.lost = now
	}
}

// empty reports whether nothing is left to say of the region.
func (r *region) empty() bool {
	return !r.own && !r.facts.shown && !r.facts.mirrored && !r.facts.live && r.kept == 0 && len(r.pending) == 0
}

// load is what the feed tells between a Reset and its Synced.
type load struct {
	endpoints map[registry.Key]*registry.Endpoint
	mirrors   map[string][]MirrorChange
}

func newLoad() *load {
	return &load{endpoints: map[registry.Key]*registry.Endpoint{}, mirrors: map[string][]MirrorChange{}}
}

func (l *load) add(u Update) {
	for i := range u.Endpoints {
		e := &u.Endpoints[i].Endpoint
		if u.Endpoints[i].Delete {
			delete(l.endpoints, e.Key)
		} else {
			l.endpoints[e.Key] = e
		}
	}
	for _, m := range u.Mirrors {
		l.mirrors[m.Origin] = append(l.mirrors[m.Origin], m)
	}
}
