//go:build linux

package e2e

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/netnstest"
	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// withdrawalMargin is what the promise adds to the TTL.
	withdrawalMargin = 2 * time.Second
	// clientMargin is what may pass between a registrar's withdrawal and the last
	// call that a client begins by what it knew before.
	clientMargin = time.Second
)

// TestRegionFailover is the story of a fleet under calls. Each step prints its times
// and failed calls, and fails when a promise does not hold.
func TestRegionFailover(t *testing.T) {
	need(t)
	f := newFleet(t)
	for _, s := range []struct {
		name string
		do   func(*story)
	}{
		{"a new endpoint is seen in the other regions", visibility},
		{"local backends are drained and come back", drained},
		{"a region is cut off, both ways", cutOffBothWays},
		{"a region's packets are dropped, one way", cutOffOneWay},
		{"the packets to a region are dropped, one way", cutOffOtherWay},
		{"a region is killed and comes back", killed},
		{"everything is restarted, one after the other", restarted},
	} {
		t.Logf("--- %s", s.name)
		begin := time.Now()
		s.do(&story{f})
		for _, r := range f.regions {
			r.settled(f.regions)
		}
		for _, g := range groups {
			t.Logf("    failed calls to the %s: %s", g.name, counts(f.failed(g, begin)))
		}
		if t.Failed() {
			return
		}
	}
	for _, g := range groups {
		for _, c := range f.clients[g] {
			t.Logf("%s client of the %s: %v", c.Kind, g.name, c.Stop())
		}
	}
}

// story is the fleet that its steps are done to.
type story struct{ *fleet }

func (s *story) say(what string, took time.Duration) {
	s.t.Helper()
	s.t.Logf("    %8v  %s", took.Round(time.Millisecond), what)
}

// moved waits until all calls of those groups go to a region.
func (s *story) moved(what string, begin time.Time, to *region, some ...group) {
	s.t.Helper()
	for _, g := range some {
		arrived := s.reach(g, to.backends...)
		s.say(fmt.Sprintf("%s, to the %s (waited for %v)", what, g.name, arrived), time.Since(begin))
	}
}

// none fails if calls of those groups failed since.
func (s *story) none(begin time.Time, some ...group) {
	s.t.Helper()
	for _, g := range some {
		for _, c := range s.clients[g] {
			if tally := c.Since(begin); len(tally.Failed) > 0 {
				s.t.Errorf("calls of the %s client to the %s failed: %v", c.Kind, g.name, tally)
			}
		}
	}
}

func visibility(s *story) {
	begin := time.Now()
	s.b.addBackend()
	s.say("until every registrar of every region serves it", s.awaitWhole())
	s.moved("until every client calls it", begin, s.b, abroad, alert)
	s.none(begin, groups...)
}

func drained(s *story) {
	begin := time.Now()
	s.a.drain(nil, s.a.backends...)
	s.moved("until all calls go to the next region", begin, s.b, atHome)
	back := time.Now()
	s.a.drain([]string{"--undo"}, s.a.backends...)
	s.moved("until all calls are back", back, s.a, atHome)
	s.none(begin, groups...)
}

func cutOffBothWays(s *story) {
	s.cutOff(0, s.isolate)
}

func cutOffOneWay(s *story) {
	s.cutOff(0, func(what func(from, to *netnstest.Host)) { what(s.b.host, s.a.host) })
}

// cutOffOtherWay: what b sends still arrives, unanswered, so that a keepalive may get
// through after the cut.
func cutOffOtherWay(s *story) {
	s.cutOff(s.ttl/10+time.Second, func(what func(from, to *netnstest.Host)) { what(s.a.host, s.b.host) })
}

// cutOff drops packets until region a has withdrawn region b, whose last keepalive
// came by that time after the cut.
func (s *story) cutOff(late time.Duration, links func(func(from, to *netnstest.Host))) {
	begin := time.Now()
	links(s.network.Drop)
	s.lost(begin, late)
	s.moved("until all calls go to the third region", begin, s.c, abroad, alert)
	s.gone(begin, late)
	healed := time.Now()
	links(s.network.Pass)
	s.whole(healed)
	s.none(begin, atHome)
}

func killed(s *story) {
	begin := time.Now()
	s.b.kill()
	dead := time.Now()
	s.moved("until all calls go to the third region", begin, s.c, abroad, alert)
	moved := time.Now()
	s.lost(dead, 0)
	s.gone(dead, 0)
	s.none(moved, abroad, alert)
	revived := time.Now()
	s.b.revive()
	s.whole(revived)
	s.none(moved, abroad, alert)
	s.none(begin, atHome)
}

// lost waits until region b is withdrawn, which is late enough and soon enough.
func (s *story) lost(begin time.Time, late time.Duration) {
	s.t.Helper()
	first, last := s.awaitWithdrawal(begin)
	s.say("until the first registrar withdrew the region", first.Sub(begin))
	s.say("until the last did", last.Sub(begin))
	if most := s.ttl + withdrawalMargin + late; last.Sub(begin) > most {
		s.t.Errorf("withdrawn after %v, the most is %v", last.Sub(begin), most)
	}
	left := eventually(s.t, "its keys have left the etcd", func() bool { return s.left() == 0 })
	s.say("more until its keys have left the etcd", left)
	if took, most := time.Since(begin), s.ttl+withdrawalMargin+late; took > most {
		s.t.Errorf("its keys left the etcd after %v, the most is %v", took, most)
	}
	// The last keepalive was sent up to a tenth of the TTL before.
	if least := s.ttl * 8 / 10; first.Sub(begin) < least {
		s.t.Errorf("withdrawn after %v, the least is %v", first.Sub(begin), least)
	}
}

// left is how many keys of region b the etcd of region a holds.
func (s *story) left() int64 {
	s.t.Helper()
	held, err := s.peer.Get(s.t.Context(), keyspace.RegionPrefix("b"), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		s.t.Fatal(err)
	}
	return held.Count
}

// gone checks that no call went to region b after it was withdrawn.
func (s *story) gone(begin time.Time, late time.Duration) {
	s.t.Helper()
	for _, g := range []group{abroad, alert} {
		last := s.lastCall(g, begin, s.b.backends).Sub(begin)
		s.say("until the last call to the region that was lost, of the "+g.name, last)
		if most := s.ttl + withdrawalMargin + late + clientMargin; last > most {
			s.t.Errorf("a call to the %s went to the lost region after %v, the most is %v", g.name, last, most)
		}
	}
}

// whole waits until everything is as it was.
func (s *story) whole(begin time.Time) {
	s.t.Helper()
	s.awaitWhole()
	s.say("until every registrar serves everything again", time.Since(begin))
	s.moved("until all calls are back", begin, s.b, abroad, alert)
}

func restarted(s *story) {
	begin := time.Now()
	for _, r := range s.regions {
		s.rollingRestart(r)
		s.say("restarted region "+r.name, time.Since(begin))
	}
	if at := s.seen.withdrawn(begin); len(at) > 0 {
		s.t.Errorf("region b was withdrawn in a rolling restart, after %v", at[0].Sub(begin))
	}
	s.awaitWhole()
	s.reach(atHome, s.a.backends...)
	s.reach(abroad, s.b.backends...)
	s.reach(alert, s.b.backends...)
	s.none(begin, groups...)
}
