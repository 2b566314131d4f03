package sweep

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
)

var policy = Policy{Grace: time.Minute, Passes: 3, MaxGap: 24 * time.Second, MaxShare: 0.3, Floor: 10}

const interval = 6 * time.Second

// script runs passes over a cluster through time.
type script struct {
	memory Memory
	now    time.Time
	epoch  int
}

func begin() *script { return &script{now: time.Unix(1000, 0), epoch: 1} }

// roll is a census of a cluster of endpoints in which absent nodes hold some each.
func (s *script) roll(endpoints int, absent map[string]int) registrar.Roll {
	r := registrar.Roll{Current: true, Epoch: s.epoch, Registrars: 1, Endpoints: endpoints, Absent: map[string][]registrar.Holding{}}
	for node, n := range absent {
		for range n {
			r.Absent[node] = append(r.Absent[node], registrar.Holding{Endpoint: &registry.Endpoint{Node: node}})
		}
	}
	return r
}

func (s *script) pass(r registrar.Roll) Plan {
	s.now = s.now.Add(interval)
	var p Plan
	s.memory, p = policy.Pass(s.memory, r, s.now)
	if p.Held == "" && p.Unproven == "" {
		s.memory = s.memory.Removed(p.Due)
	}
	return p
}

// passes lets d go by and returns the last plan.
func (s *script) passes(d time.Duration, r registrar.Roll) (p Plan) {
	for range int(d / interval) {
		p = s.pass(r)
	}
	return p
}

func TestGraceThenSwept(t *testing.T) {
	s := begin()
	r := s.roll(100, map[string]int{"n1": 5})
	if p := s.passes(policy.Grace, r); p.Due != 0 || len(p.Ghosts) != 1 {
		t.Errorf("within the grace: %+v", p)
	}
	if p := s.pass(r); p.Due != 5 || p.Held != "" {
		t.Errorf("after it: %+v", p)
	}
}

func TestPresenceStartsOver(t *testing.T) {
	s := begin()
	gone, back := s.roll(100, map[string]int{"n1": 5}), s.roll(100, nil)
	s.passes(policy.Grace, gone)
	s.pass(back)
	if p := s.passes(policy.Grace, gone); p.Due != 0 {
		t.Errorf("swept although it was back: %+v", p)
	}
}

// What is not proven is not swept, and what was seen before does not count after.
func TestUnprovenStartsOver(t *testing.T) {
	for name, breach := range map[string]func(*script, *registrar.Roll){
		"blind":        func(_ *script, r *registrar.Roll) { r.Current = false },
		"no registrar": func(_ *script, r *registrar.Roll) { r.Registrars = 0 },
		"read anew":    func(s *script, r *registrar.Roll) { s.epoch++; r.Epoch = s.epoch },
		"asleep":       func(s *script, _ *registrar.Roll) { s.now = s.now.Add(policy.MaxGap) },
	} {
		s := begin()
		absent := map[string]int{"n1": 5}
		s.passes(policy.Grace, s.roll(100, absent))
		r := s.roll(100, absent)
		breach(s, &r)
		if p := s.pass(r); p.Due != 0 {
			t.Errorf("%s: swept: %+v", name, p)
		}
		if p := s.passes(policy.Grace-interval, s.roll(100, absent)); p.Due != 0 {
			t.Errorf("%s: swept soon after: %+v", name, p)
		}
		if p := s.passes(2*interval, s.roll(100, absent)); p.Due != 5 {
			t.Errorf("%s: not swept in the end: %+v", name, p)
		}
	}
}

func TestBrake(t *testing.T) {
	for name, tt := range map[string]struct {
		endpoints int
		absent    map[string]int
		held      bool
	}{
		"few":              {100, map[string]int{"n1": 30}, false},
		"too many":         {100, map[string]int{"n1": 31}, true},
		"too many in all":  {100, map[string]int{"n1": 20, "n2": 20}, true},
		"all of few":       {10, map[string]int{"n1": 10}, false},
		"all, over floor":  {11, map[string]int{"n1": 11}, true},
		"nothing is there": {0, nil, false},
	} {
		s := begin()
		if p := s.passes(policy.Grace+interval, s.roll(tt.endpoints, tt.absent)); (p.Held != "") != tt.held {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// Nodes that are lost one after the other, each of them few, add up.
func TestBrakeAddsUp(t *testing.T) {
	s := begin()
	left, absent, lost := 100, map[string]int{}, 0
	for i := range 40 {
		absent[fmt.Sprint("n", i)] = 2
		p := s.pass(s.roll(left, absent))
		if p.Held != "" {
			break
		}
		for _, g := range p.Ghosts {
			if g.Due {
				delete(absent, g.Node)
				left -= len(g.Holdings)
				lost += len(g.Holdings)
			}
		}
	}
	if lost > 30 {
		t.Errorf("%d of 100 endpoints were swept within a grace", lost)
	}
}

// Whatever happens: nothing goes that was not absent at each pass of a whole grace
// of proven passes, and never more than the share within one.
func TestNothingGoesUnproven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := begin()
		nodes := map[string]int{}
		for i := range rapid.IntRange(1, 12).Draw(t, "nodes") {
			nodes[fmt.Sprint("n", i)] = rapid.IntRange(1, 20).Draw(t, "endpoints")
		}
		absentSince := map[string]time.Time{}
		var swept []removal
		for range rapid.IntRange(1, 120).Draw(t, "passes") {
			total := 0
			absent := map[string]int{}
			for n, held := range nodes {
				total += held
				_, was := absentSince[n]
				if was != (rapid.IntRange(0, 9).Draw(t, "turn") == 0) {
					absent[n] = held
				}
			}
			r := s.roll(total, absent)
			pause := rapid.SampledFrom([]time.Duration{0, 0, 0, 0, 0, policy.MaxGap}).Draw(t, "pause")
			s.now = s.now.Add(pause)
			r.Current = rapid.IntRange(0, 30).Draw(t, "blind") != 0
			if !r.Current || pause > 0 {
				clear(absentSince)
			}
			p := s.pass(r)
			for n := range nodes {
				if absent[n] == 0 || !r.Current {
					delete(absentSince, n)
				} else if _, was := absentSince[n]; !was {
					absentSince[n] = s.now
				}
			}
			if p.Held != "" || p.Unproven != "" {
				continue
			}
			gone := 0
			for _, g := range p.Ghosts {
				if !g.Due {
					continue
				}
				if since, ok := absentSince[g.Node]; !ok || s.now.Sub(since) < policy.Grace {
					t.Fatalf("%s goes, which was absent since %v at %v", g.Node, since, s.now)
				}
				gone += len(g.Holdings)
				delete(nodes, g.Node)
				delete(absentSince, g.Node)
			}
			swept = append(swept, removal{s.now, gone})
			recent := 0
			for _, x := range swept {
				if s.now.Sub(x.at) <= policy.Grace {
					recent += x.count
				}
			}
			if gone > 0 && recent > policy.Floor && float64(recent) > policy.MaxShare*float64(total-gone+recent) {
				t.Fatalf("%d of %d went within a grace", recent, total-gone+recent)
			}
		}
	})
}

// What an operator let go is not told as held, and due, until the next pass.
func TestSweptIsNotDueAnyMore(t *testing.T) {
	p := Plan{Held: "too many", Due: 20, Endpoints: 30, Ghosts: []Ghost{{Node: "gone", Due: true}, {Node: "away"}}}
	got := p.swept(20)
	if got.Held != "" || got.Due != 0 || got.Endpoints != 10 || len(got.Ghosts) != 1 || got.Ghosts[0].Node != "away" {
		t.Errorf("got %+v, want the node that is not due, among 10 endpoints", got)
	}
	if p.Due != 20 || len(p.Ghosts) != 2 {
		t.Errorf("the plan itself became %+v", p)
	}
}
