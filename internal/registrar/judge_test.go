package registrar

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
)

func TestJudge(t *testing.T) {
	now := time.Unix(1000, 0)
	ends := func(in time.Duration) lease { // between in and in + 1 s, read just now
		return lease{id: 1, granted: testTTL, asked: now, answered: now, earliest: now.Add(in), latest: now.Add(in + time.Second)}
	}
	old := func(l lease, ago time.Duration) lease {
		l.asked, l.answered = now.Add(-ago), now.Add(-ago)
		return l
	}
	gone := func(l lease) lease {
		l.gone = true
		return l
	}
	fine := facts{state: Live, shown: true, mirrored: true, complete: true, live: true, lease: ends(9 * time.Second)}
	with := func(change func(*facts)) facts {
		f := fine
		change(&f)
		return f
	}
	hidden := func(state State) func(*facts) { return func(f *facts) { f.shown, f.state = false, state } }
	both := func(a, b func(*facts)) func(*facts) { return func(f *facts) { a(f); b(f) } }
	tests := []struct {
		name  string
		facts facts
		blind bool
		want  verdict // without its reason
	}{
		{"fine", fine, false, verdict{state: Live, visible: true}},
		{"complete and alive at last", with(hidden(Syncing)), false, verdict{state: Live, visible: true}},
		{"back from a lapse", with(hidden(Lapsed)), false, verdict{state: Live, visible: true}},
		{"blind", fine, true, verdict{state: Stale, visible: true, hold: true}},
		{"blind, never shown", with(hidden(Syncing)), true, verdict{state: Syncing, hold: true}},
		{"blind after a lapse", with(hidden(Lapsed)), true, verdict{state: Lapsed, hold: true}},
		{"blind, its live key gone", with(func(f *facts) { f.live = false }), true, verdict{state: Stale, visible: true, hold: true}},
		{"no mirror state", with(func(f *facts) { *f = facts{} }), false, verdict{state: Syncing, hold: true}},
		{"filled for the first time", with(both(hidden(Syncing), func(f *facts) { f.complete = false })), false, verdict{state: Syncing, hold: true}},
		{"filled, live not there yet", with(func(f *facts) { *f = facts{mirrored: true} }), false, verdict{state: Syncing, hold: true}},
		{"filled again", with(func(f *facts) { f.complete = false }), false, verdict{state: Syncing, visible: true, hold: true}},
		{"state removed while alive", with(func(f *facts) { f.complete, f.mirrored = false, false }), false, verdict{state: Syncing, visible: true, hold: true}},
		{"complete from a former life", with(both(hidden(Lapsed), func(f *facts) { f.returned = now.Add(-time.Second) })), false, verdict{state: Syncing, hold: true}},
		{"complete for a whole TTL", with(both(hidden(Syncing), func(f *facts) { f.returned = now.Add(-testTTL) })), false, verdict{state: Live, visible: true}},
		{"lease not read", with(both(hidden(Syncing), func(f *facts) { f.lease = lease{id: 1} })), false, verdict{state: Syncing, hold: true}},
		{"at risk", with(func(f *facts) { f.lease = ends(time.Second) }), false, verdict{state: Live, visible: true, hold: true}},
		{"at risk, not shown", with(both(hidden(Syncing), func(f *facts) { f.lease = ends(time.Second) })), false, verdict{state: Syncing, hold: true}},
		{"perhaps over", with(func(f *facts) { f.lease = ends(-time.Second / 2) }), false, verdict{state: Live, visible: true, hold: true}},
		{"over for certain", with(func(f *facts) { f.lease = ends(-time.Second) }), false, verdict{state: Lapsed, hold: true, cause: LeaseOverdue}},
		{"over, but read too long ago", with(func(f *facts) { f.lease = old(ends(-time.Second), proofAge+1) }), false, verdict{state: Stale, visible: true, hold: true}},
		{"over while filled again", with(func(f *facts) { f.complete, f.lease = false, ends(-time.Second) }), false, verdict{state: Lapsed, hold: true, cause: LeaseOverdue}},
		{"live gone at its time", with(func(f *facts) { f.live, f.lost, f.lease = false, now, ends(-time.Second/2) }), false, verdict{state: Lapsed, hold: true, cause: LiveGone}},
		{"live gone before its time", with(func(f *facts) { f.live, f.lost = false, now }), false, verdict{state: Stale, visible: true, hold: true}},
		{"lease gone before its time", with(func(f *facts) { f.lost, f.lease = now, gone(ends(9*time.Second)) }), false, verdict{state: Stale, visible: true, hold: true}},
		{"lease gone at its time", with(func(f *facts) { f.lost, f.lease = now, gone(ends(-time.Second/2)) }), false, verdict{state: Lapsed, hold: true, cause: LeaseGone}},
		{"gone early, and now it is time", with(func(f *facts) {
			f.live, f.lost, f.lease = false, now.Add(-5*time.Second), ends(-time.Second)
		}), false, verdict{state: Lapsed, hold: true, cause: LiveGone}},
		{"live gone, not shown", with(both(hidden(Lapsed), func(f *facts) { f.live, f.lost = false, now })), false, verdict{state: Lapsed, hold: true, cause: LiveGone}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := judge(tt.facts, !tt.blind, now)
			if healthy := got == (verdict{state: Live, visible: true}); healthy != (got.reason == "") {
				t.Errorf("reason %q of %s", got.reason, got.state)
			}
			got.reason = ""
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestNothingIsLost drives a core at random: at every moment what is shown,
// overlaid with what is pending, is what the local etcd holds; a foreign region
// changes only when it may; and it goes in one step.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &driver{T: t, core: newCore("own", DefaultBlindAfter), now: time.Unix(1000, 0), held: map[registry.Key]registry.Endpoint{}}
		d.step(Update{Reset: true, Synced: true})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "action") {
			case 0:
				d.now = d.now.Add(time.Duration(rapid.IntRange(0, 12000).Draw(t, "ms")) * time.Millisecond)
				d.took(d.core.settle(d.now))
			case 1, 2:
				d.now = d.now.Add(beat)
				d.step(Update{Progress: true, At: d.now})
			case 3, 4:
				left := time.Duration(rapid.IntRange(-1, 10).Draw(t, "left")) * time.Second
				r := Reading{Asked: d.now, Answered: d.now, TTL: left, Granted: testTTL}
				d.took(d.core.read("b", int64(rapid.IntRange(1, 2).Draw(t, "lease")), r, d.now))
			case 5:
				d.reload()
			case 6:
				d.step(mirrors(d.someMirror()))
			default:
				d.change()
			}
		}
	})
}

// driver holds what the local etcd holds.
type driver struct {
	*rapid.T
	core    *core
	now     time.Time
	held    map[registry.Key]registry.Endpoint
	mirrors []MirrorChange
}

func (d *driver) someMirror() MirrorChange {
	m := rapid.SampledFrom([]MirrorChange{
		mirrorState(true), mirrorState(true), mirrorState(false), liveOn(1), liveOn(2), liveGone,
		{Origin: "b", Leaf: LeafState, Deleted: true},
	}).Draw(d.T, "mirror")
	d.mirrors = slices.DeleteFunc(d.mirrors, func(o MirrorChange) bool { return o.Leaf == m.Leaf })
	if !m.Deleted {
		d.mirrors = append(d.mirrors, m)
	}
	return m
}

func (d *driver) change() {
	changes := make([]EndpointChange, rapid.IntRange(1, 4).Draw(d.T, "changes"))
	for i := range changes {
		region := rapid.SampledFrom([]string{"own", "b", "b"}).Draw(d.T, "region")
		e := endpoint(region, rapid.IntRange(0, 5).Draw(d.T, "endpoint"))
		e.Weight = rapid.Uint32Range(1, 2).Draw(d.T, "weight")
		changes[i] = EndpointChange{Endpoint: e, Delete: rapid.Bool().Draw(d.T, "delete")}
		if changes[i].Delete {
			delete(d.held, e.Key)
		} else {
			d.held[e.Key] = e
		}
	}
	d.step(Update{Endpoints: changes})
}

func (d *driver) reload() {
	u := Update{Reset: true, Synced: true, Mirrors: slices.Clone(d.mirrors)}
	for _, e := range d.held {
		u.Endpoints = append(u.Endpoints, EndpointChange{Endpoint: e})
	}
	d.step(u)
}

func (d *driver) step(u Update) { d.took(d.core.apply(u, d.now)) }

// took checks what must hold after each step.
func (d *driver) took(s step) {
	have := map[registry.Key]registry.Endpoint{}
	served := map[string]int{}
	for service, endpoints := range d.core.index {
		if !slices.IsSortedFunc(endpoints, func(a, b *registry.Endpoint) int { return a.Key.Compare(b.Key) }) || len(endpoints) == 0 {
			d.Fatalf("service %s is not sorted, or empty", service)
		}
		for _, e := range endpoints {
			have[e.Key] = *e
			served[e.Region]++
		}
	}
	for name, r := range d.core.regions {
		if r.served != served[name] {
			d.Fatalf("%s is said to serve %d and serves %d", name, r.served, served[name])
		}
		for key, e := range r.pending {
			if e == nil {
				delete(have, key)
			} else {
				have[key] = *e
			}
		}
	}
	if !maps.EqualFunc(have, d.held, registry.Endpoint.Equal) {
		d.Fatalf("shown and pending are %v, etcd holds %v", have, d.held)
	}
	d.checkForeign(s)
}

func (d *driver) checkForeign(s step) {
	changed := slices.ContainsFunc(s.changes, func(c view.Change) bool { return c.Endpoint.Region == "b" })
	r := d.core.regions["b"]
	switch {
	case r == nil || !r.verdict.visible:
		if r != nil && r.served != 0 {
			d.Fatalf("%d endpoints of a region that is not visible", r.served)
		}
	case changed && (r.verdict.hold || !d.core.current(d.now) || !r.facts.complete):
		d.Fatalf("a region changed that is %s: %s", r.verdict.state, r.verdict.reason)
	}
}
