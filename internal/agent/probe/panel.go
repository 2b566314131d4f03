package probe

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/aether-federation/aether/registry"
)

const (
	// suspectFrom is how many addresses must fail together before a machine
	// suspects itself: fewer may well be ill together.
	suspectFrom = 3
	// witnesses is how many others are asked ahead of their time when an endpoint
	// fails, to learn whether the machine does.
	witnesses = 8
)

// Result is what one question brought.
type Result struct {
	// At is when it was there.
	At   time.Time
	Took time.Duration
	// Err is why the endpoint is not well; nil: it is.
	Err error
}

// Verdict is what is known of one endpoint.
type Verdict struct {
	// Known: Healthy has been established, by a probe or by what was handed over.
	Known, Healthy bool
	// Streak counts the results in a row that speak against Healthy.
	Streak int
	// Last is the latest result; its At is zero before the first.
	Last Result
}

// panel judges endpoints by their results. It has no clock and does no I/O.
type panel struct {
	cases map[registry.Key]*trial
	// suspect is since when all probes fail at once, zero while they do not.
	suspect time.Time
	// succeeded is when the last probe began that did.
	succeeded time.Time
}

// trial is what the panel remembers of one endpoint.
type trial struct {
	check Check
	Verdict
	// failing is since when each result is a failure.
	failing time.Time
}

func newPanel() *panel { return &panel{cases: map[registry.Key]*trial{}} }

// set takes the endpoints that are probed from now on. One whose check changes
// keeps its health until results say otherwise; a new one begins with what known
// says of it, if it does.
func (p *panel) set(checks map[registry.Key]Check, known map[registry.Key]bool) {
	for key := range p.cases {
		if _, stays := checks[key]; !stays {
			delete(p.cases, key)
		}
	}
	for key, check := range checks {
		t := p.cases[key]
		if t == nil {
			t = &trial{}
			t.Healthy, t.Known = known[key]
			p.cases[key] = t
		}
		if t.check != check {
			t.check, t.Streak, t.failing, t.Last = check, 0, time.Time{}, Result{}
		}
	}
	if !p.suspect.IsZero() && !p.allFail() {
		p.acquit()
	}
}

// take judges by a result. It tells whether anything changed that others are to
// know, and which endpoints should be asked at once.
func (p *panel) take(key registry.Key, r Result) (changed bool, ask []registry.Key) {
	t := p.cases[key]
	if t == nil {
		return false, nil
	}
	first := t.Last.At.IsZero()
	t.Last = r
	if r.Err == nil {
		p.succeeded = r.At.Add(-r.Took)
		changed = p.succeed(t)
	} else {
		p.fail(t, r.At)
		ask = p.witnesses(t)
	}
	changed = p.judge(r.At) || changed
	return p.settle(r.At) || changed || first, ask
}

func (p *panel) succeed(t *trial) (changed bool) {
	t.failing = time.Time{}
	if !p.suspect.IsZero() {
		p.acquit()
		changed = true
	}
	if t.Known && t.Healthy {
		t.Streak = 0
		return changed
	}
	t.Streak++
	if t.Known && t.Streak < t.check.Rise {
		return changed
	}
	t.Known, t.Healthy, t.Streak = true, true, 0
	return true
}

func (p *panel) fail(t *trial, now time.Time) {
	if t.failing.IsZero() {
		t.failing = now
	}
	if t.Known && !t.Healthy {
		t.Streak = 0
		return
	}
	t.Streak++
}

// judge decides on healthy endpoints that have failed often enough: they are ill, or
// the machine is. While that is open it waits for the witnesses, whose answers are at
// most a timeout away: on a machine that is starved they are late.
func (p *panel) judge(now time.Time) (changed bool) {
	if !p.suspect.IsZero() {
		return false
	}
	for _, t := range p.cases {
		if !t.Known || !t.Healthy || t.Streak < t.check.Fall || t.failing.IsZero() {
			continue
		}
		if p.allFail() {
			p.suspect = now
			return true
		}
		if p.succeeded.After(t.failing) || !p.open() {
			t.Healthy, t.Streak, changed = false, 0, true
		}
	}
	return changed
}

// open reports whether endpoints that have not been heard of yet may show that the
// machine is at fault, provided that nothing succeeded since others began to fail.
func (p *panel) open() bool {
	unheard, may := false, map[netip.AddrPort]bool{}
	for _, t := range p.cases {
		if !t.candidate() {
			continue
		}
		unheard = unheard || t.failing.IsZero()
		if t.failing.IsZero() || t.failing.After(p.succeeded) {
			may[t.check.Target] = true
		}
	}
	return unheard && len(may) >= suspectFrom
}

// settle decides on endpoints of which nothing was known and that fail, once each
// endpoint has been asked: until then whether the machine is at fault can't be told.
func (p *panel) settle(now time.Time) (changed bool) {
	if !p.suspect.IsZero() {
		return false
	}
	var unknown []*trial
	for _, t := range p.cases {
		if t.Last.At.IsZero() {
			return false
		}
		if !t.Known {
			unknown = append(unknown, t)
		}
	}
	if len(unknown) == 0 {
		return false
	}
	if p.allFail() {
		p.suspect = now
		return true
	}
	for _, t := range unknown {
		t.Known, t.Healthy, t.Streak = true, false, 0
	}
	return true
}

// allFail reports whether everything that is not known to be ill fails, and enough
// addresses began to after anything succeeded last. One that had failed when another
// was asked, and well, is ill by itself. No clock decides, so that a machine that is starved and
// slow to probe is not mistaken for services that die one after another.
func (p *panel) allFail() bool {
	together := map[netip.AddrPort]bool{}
	for _, t := range p.cases {
		if !t.candidate() {
			continue
		}
		if t.failing.IsZero() {
			return false
		}
		if t.failing.After(p.succeeded) {
			together[t.check.Target] = true
		}
	}
	return len(together) >= suspectFrom
}

// candidate reports whether t may be well for all that is known.
func (t *trial) candidate() bool { return !t.Known || t.Healthy }

// acquit ends the suspicion: something answers. What still fails gets a new count,
// because it may only be slower to come back.
func (p *panel) acquit() {
	p.suspect = time.Time{}
	for _, t := range p.cases {
		if t.candidate() && !t.failing.IsZero() {
			t.Streak, t.failing = 0, time.Time{}
			if !t.Known {
				t.Last = Result{}
			}
		}
	}
}

// witnesses are the endpoints that have not been heard of for longest, unless one
// has answered since t began to fail.
func (p *panel) witnesses(t *trial) []registry.Key {
	if !t.candidate() || !p.suspect.IsZero() || p.succeeded.After(t.failing) {
		return nil
	}
	var stale []registry.Key
	for key, o := range p.cases {
		if o == t || !o.candidate() || !o.failing.IsZero() || o.Last.At.IsZero() {
			continue
		}
		stale = append(stale, key)
	}
	slices.SortFunc(stale, func(a, b registry.Key) int {
		return cmp.Or(p.cases[a].Last.At.Compare(p.cases[b].Last.At), a.Compare(b))
	})
	return stale[:min(len(stale), witnesses)]
}
