package sweep

import (
	"fmt"
	"time"

	"github.com/aether-federation/aether/internal/registrar"
)

// Policy says when an endpoint is a ghost that is removed.
type Policy struct {
	// Grace is how long a node must have been absent, without a break.
	Grace time.Duration
	// Passes that must have seen it absent.
	Passes int
	// MaxGap between two passes; after a longer one, what was seen before does
	// not count.
	MaxGap time.Duration
	// MaxShare of the cluster's endpoints that may be lost within one Grace, if
	// they are more than Floor. 1: there is no brake.
	MaxShare float64
	Floor    int
}

// Memory is what a pass has to know of those before it. It is a value: a pass
// returns another and leaves its own alone.
type Memory struct {
	at       time.Time
	epoch    int
	sighted  map[string]sighting
	removals []removal
}

// sighting is a node that is absent.
type sighting struct {
	since  time.Time
	passes int
}

// removal is what a pass removed.
type removal struct {
	at    time.Time
	count int
}

// Plan is what a pass found.
type Plan struct {
	// Unproven says why absence is not known; empty: it is.
	Unproven string
	// Held says why what is due is not removed; empty: it is.
	Held string
	// Ghosts are the absent nodes that hold endpoints.
	Ghosts []Ghost
	// Due counts the endpoints that are due.
	Due int
	// Endpoints of the cluster.
	Endpoints int
}

// swept is p once what was due has gone, by so many removals.
func (p Plan) swept(removed int) Plan {
	ghosts := make([]Ghost, 0, len(p.Ghosts))
	for _, g := range p.Ghosts {
		if !g.Due {
			ghosts = append(ghosts, g)
		}
	}
	return Plan{Unproven: p.Unproven, Ghosts: ghosts, Endpoints: p.Endpoints - removed}
}

// Ghost is a node that is absent and holds endpoints.
type Ghost struct {
	Node     string
	Absent   time.Duration
	Due      bool
	Holdings []registrar.Holding
}

// Pass decides at the time now what is to be removed, by the census r and what
// former passes saw.
func (p Policy) Pass(m Memory, r registrar.Roll, now time.Time) (Memory, Plan) {
	plan := Plan{Endpoints: r.Endpoints}
	next := Memory{at: now, epoch: r.Epoch, sighted: map[string]sighting{}, removals: m.recent(now, p.Grace)}
	switch {
	case !r.Current:
		plan.Unproven = "the own etcd does not answer, or its content is being read anew"
	case r.Registrars == 0:
		plan.Unproven = "no registrar of this cluster is present, not even this one: its lease is missing"
	}
	if plan.Unproven != "" {
		return next, plan
	}
	before := m.sighted
	if r.Epoch != m.epoch || now.Sub(m.at) > p.MaxGap {
		before = nil
	}
	absent := 0
	for node, holdings := range r.Absent {
		s, known := before[node]
		if !known {
			s.since = now
		}
		s.passes++
		next.sighted[node] = s
		g := Ghost{Node: node, Absent: now.Sub(s.since), Holdings: holdings}
		g.Due = g.Absent >= p.Grace && s.passes >= p.Passes
		if g.Due {
			plan.Due += len(holdings)
		}
		if g.Absent >= p.Grace/2 {
			absent += len(holdings)
		}
		plan.Ghosts = append(plan.Ghosts, g)
	}
	plan.Held = p.brake(next, r, plan.Due, absent)
	return next, plan
}

// brake says why a pass removes nothing, if it must not: too much would have
// gone within a grace, with what is absent for half of that already.
func (p Policy) brake(m Memory, r registrar.Roll, due, absent int) string {
	gone := 0
	for _, x := range m.removals {
		gone += x.count
	}
	lost, all := gone+max(due, absent), r.Endpoints+gone
	if due == 0 || lost <= p.Floor || float64(lost) <= p.MaxShare*float64(all) {
		return ""
	}
	return fmt.Sprintf("%d of %d endpoints would be gone, more than the share of %g that may: "+
		"find out why their nodes do not report; if they are really gone, let the %d that are due go: aether sweep --accept %d",
		lost, all, p.MaxShare, due, due)
}

// Removed returns m with a pass's removals noted.
func (m Memory) Removed(count int) Memory {
	if count > 0 {
		m.removals = append(m.removals[:len(m.removals):len(m.removals)], removal{at: m.at, count: count})
	}
	return m
}

func (m Memory) recent(now time.Time, window time.Duration) []removal {
	var out []removal
	for _, x := range m.removals {
		if now.Sub(x.at) <= window {
			out = append(out, x)
		}
	}
	return out
}
