//go:build linux

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/netnstest"
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
		t.Logf("    failed calls to %s: %s; to %s: %s; %v in all", local, counts(f.failed(local, begin)),
			remote, counts(f.failed(remote, begin)), time.Since(begin).Round(time.Millisecond))
		if t.Failed() {
			return
		}
	}
	for _, service := range []string{local, remote} {
		for _, c := range f.clients[service] {
			t.Logf("%s client of %s: %v", c.Kind, service, c.Stop())
		}
	}
}

// story is the fleet that its steps are done to.
type story struct{ *fleet }

func (s *story) say(what string, took time.Duration) {
	s.t.Helper()
	s.t.Logf("    %8v  %s", took.Round(time.Millisecond), what)
}

// moved waits until all calls to a service go to a region.
func (s *story) moved(what string, begin time.Time, service string, to *region) {
	s.t.Helper()
	arrived := s.reach(service, to.backends...)
	s.say(fmt.Sprintf("%s (waited for %v)", what, arrived), time.Since(begin))
}

// none fails if calls to a service failed since.
func (s *story) none(service string, begin time.Time) {
	s.t.Helper()
	for _, c := range s.clients[service] {
		if tally := c.Since(begin); len(tally.Failed) > 0 {
			s.t.Errorf("calls of the %s client to %s failed: %v", c.Kind, service, tally)
		}
	}
}

func visibility(s *story) {
	begin := time.Now()
	s.b.addBackend()
	s.say("until every registrar of every region serves it", s.awaitWhole())
	s.moved("until every client calls it", begin, remote, s.b)
	s.none(local, begin)
	s.none(remote, begin)
}

func drained(s *story) {
	begin := time.Now()
	s.a.drain(nil, s.a.backends...)
	s.moved("until all calls go to the next region", begin, local, s.b)
	back := time.Now()
	s.a.drain([]string{"--undo"}, s.a.backends...)
	s.moved("until all calls are back", back, local, s.a)
	s.none(local, begin)
	s.none(remote, begin)
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
	s.moved("until all calls go to the third region", begin, remote, s.c)
	s.gone(begin, late)
	healed := time.Now()
	links(s.network.Pass)
	s.whole(healed)
	s.none(local, begin)
}

func killed(s *story) {
	begin := time.Now()
	s.b.kill()
	dead := time.Now()
	s.moved("until all calls go to the third region", begin, remote, s.c)
	moved := time.Now()
	s.lost(dead, 0)
	s.gone(dead, 0)
	s.none(remote, moved)
	revived := time.Now()
	s.b.revive()
	s.whole(revived)
	s.none(remote, moved)
	s.none(local, begin)
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
	// The last keepalive was sent up to a tenth of the TTL before.
	if least := s.ttl * 8 / 10; first.Sub(begin) < least {
		s.t.Errorf("withdrawn after %v, the least is %v", first.Sub(begin), least)
	}
}

// gone checks that no call went to region b after it was withdrawn.
func (s *story) gone(begin time.Time, late time.Duration) {
	s.t.Helper()
	last := s.lastCall(remote, begin, s.b.backends).Sub(begin)
	s.say("until the last call to the region that was lost", last)
	if most := s.ttl + withdrawalMargin + late + clientMargin; last > most {
		s.t.Errorf("a call went to the lost region after %v, the most is %v", last, most)
	}
}

// whole waits until everything is as it was.
func (s *story) whole(begin time.Time) {
	s.t.Helper()
	s.awaitWhole()
	s.say("until every registrar serves everything again", time.Since(begin))
	s.moved("until all calls are back", begin, remote, s.b)
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
	s.reach(local, s.a.backends...)
	s.reach(remote, s.b.backends...)
	s.none(local, begin)
	s.none(remote, begin)
}
