package report

import (
	"math/bits"
	"time"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// rivalFrom is how many surprises within rivalWithin make a rival. One or two have
// other causes: somebody who unregisters by hand, a registry that was restored.
const (
	rivalFrom   = 3
	rivalWithin = 10
)

// rival suspects another agent of the same node's name. Each report is the full set,
// so the two undo each other's, and the registry changes more than the difference
// from one's own last report: a surprise.
type rival struct {
	// last is what came through last, and conflicts how many endpoints of it did not.
	last      Announcement
	conflicts int
	// surprises are those within the last rivalWithin reports, newest in the lowest
	// bit.
	surprises uint
	// since is since when there is a rival; zero: there is none.
	since time.Time
}

// took notes a report that came through at now, and its answer.
func (r *rival) took(a Announcement, answer remote.Reported, now time.Time) {
	if !a.Known {
		return
	}
	changed := answer.Written + answer.Removed
	surprised := r.last.Known && changed > difference(r.last.Endpoints, a.Endpoints)+r.conflicts
	r.last, r.conflicts = a, len(answer.Conflicts)
	r.surprises = r.surprises << 1 & (1<<rivalWithin - 1)
	if surprised {
		r.surprises |= 1
	}
	switch n := bits.OnesCount(r.surprises); {
	case n == 0:
		r.since = time.Time{}
	case n >= rivalFrom && r.since.IsZero():
		r.since = now
	}
}

// difference counts the endpoints that are in one of both alone, or not the same.
func difference(a, b []registry.Endpoint) int {
	in := make(map[registry.Key]registry.Endpoint, len(a))
	for _, e := range a {
		in[e.Key] = e
	}
	n := 0
	for _, e := range b {
		was, there := in[e.Key]
		if !there || !was.Equal(e) {
			n++
		}
		delete(in, e.Key)
	}
	return n + len(in)
}
