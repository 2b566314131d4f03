package registrar

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/aether-federation/aether/registry"
	"github.com/google/go-cmp/cmp"
)

// script drives a core through time, as region "own" sees it.
type script struct {
	t    *testing.T
	core *core
	now  time.Time
	// versions counts the steps that changed what is shown.
	versions int
	notes    []note
}

const testTTL = 10 * time.Second

func newScript(t *testing.T) *script {
	return &script{t: t, core: newCore("own", DefaultBlindAfter), now: time.Unix(1000, 0)}
}

func (s *script) took(st step) {
	if len(st.changes) > 0 {
		s.versions++
	}
	s.notes = append(s.notes, st.notes...)
}

func (s *script) apply(u Update) {
	if u.Progress {
		u.At = s.now
	}
	s.took(s.core.apply(u, s.now))
}

// load tells a whole snapshot in one update.
func (s *script) load(u Update) {
	u.Reset, u.Synced = true, true
	s.apply(u)
}

// pass lets time go by with proof that the feed is current.
func (s *script) pass(d time.Duration) {
	for range int(d / beat) {
		s.now = s.now.Add(beat)
		s.apply(Update{Progress: true})
	}
}

// blind lets time go by without.
func (s *script) blind(d time.Duration) {
	for range int(d / beat) {
		s.now = s.now.Add(beat)
		s.took(s.core.settle(s.now))
	}
}

// read answers for region b's lease that left is what it has, as etcd tells it.
func (s *script) read(id int64, left time.Duration) {
	r := Reading{Asked: s.now, Answered: s.now, TTL: left.Truncate(time.Second), Granted: testTTL}
	s.took(s.core.read("b", id, r, s.now))
}

func (s *script) want(state State, served int) {
	s.t.Helper()
	for _, r := range s.core.status(s.now) {
		if r.Region == "b" {
			if r.State != state || r.Endpoints != served {
				s.t.Errorf("b is %s with %d endpoints (%s), want %s with %d", r.State, r.Endpoints, r.Reason, state, served)
			}
			return
		}
	}
	if state != "" {
		s.t.Errorf("b is not known, want %s", state)
	}
}

// during fails if what is shown changes while f runs.
func (s *script) during(what string, f func()) {
	s.t.Helper()
	before := s.versions
	f()
	if s.versions != before {
		s.t.Errorf("%s: %d versions, want none", what, s.versions-before)
	}
}

// once fails unless f makes exactly one new version.
func (s *script) once(what string, f func()) {
	s.t.Helper()
	before := s.versions
	f()
	if s.versions != before+1 {
		s.t.Errorf("%s: %d versions, want one", what, s.versions-before)
	}
}

func endpoint(region string, n int) registry.Endpoint {
	return registry.Endpoint{Key: registry.Key{
		Origin:   registry.Origin{Region: region, Cluster: "c1"},
		Service:  fmt.Sprintf("s%d", n%3),
		Protocol: registry.HTTP,
		IP:       netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}),
	}}
}

func puts(region string, from, to int) []EndpointChange {
	var all []EndpointChange
	for n := from; n < to; n++ {
		all = append(all, EndpointChange{Endpoint: endpoint(region, n)})
	}
	return all
}

func deletes(region string, from, to int) []EndpointChange {
	all := puts(region, from, to)
	for i := range all {
		all[i].Delete = true
	}
	return all
}

func mirrorState(complete bool) MirrorChange {
	return MirrorChange{Origin: "b", Leaf: LeafState, Complete: complete, Checkpoint: 7}
}

func liveOn(lease int64) MirrorChange {
	return MirrorChange{Origin: "b", Leaf: LeafLive, Lease: lease}
}

var liveGone = MirrorChange{Origin: "b", Leaf: LeafLive, Deleted: true}

func mirrors(changes ...MirrorChange) Update { return Update{Mirrors: changes} }

// shownScript is a script in which b is shown with 10 endpoints, and its lease
// was just renewed.
func shownScript(t *testing.T) *script {
	s := newScript(t)
	s.load(Update{
		Endpoints: slices.Concat(puts("own", 0, 5), puts("b", 0, 10)),
		Mirrors:   []MirrorChange{mirrorState(true), liveOn(1)},
	})
	s.want(Syncing, 0)
	s.once("the first reading", func() { s.read(1, testTTL) })
	s.want(Live, 10)
	return s
}

func TestOwnRegionIsAlwaysShown(t *testing.T) {
	s := newScript(t)
	s.load(Update{Endpoints: puts("own", 0, 5)})
	s.blind(time.Minute)
	s.apply(Update{Endpoints: deletes("own", 0, 1)})
	want := []RegionStatus{{Region: "own", State: Own, Endpoints: 4, Age: time.Minute, Reason: "own etcd has not answered for 1m0s"}}
	if diff := cmp.Diff(want, s.core.status(s.now)); diff != "" {
		t.Error(diff)
	}
	s.pass(beat)
	if age := s.core.status(s.now)[0].Age; age != 0 {
		t.Errorf("age is %v while etcd answers", age)
	}
}

func TestOwnEtcdThatIsSilentIsTold(t *testing.T) {
	s := newScript(t)
	s.load(Update{Endpoints: puts("own", 0, 1)})
	for _, want := range []string{"", "own etcd has not answered for 8s"} {
		if got := s.core.status(s.now)[0]; got.State != Own || got.Reason != want {
			t.Errorf("%+v, want the reason %q", got, want)
		}
		s.blind(8 * time.Second)
	}
	s.apply(Update{Progress: true})
	if got := s.core.status(s.now)[0]; got.Reason != "" {
		t.Errorf("etcd answers again: %+v", got)
	}
}

func TestRegionWithoutMirrorStateIsNotShown(t *testing.T) {
	s := newScript(t)
	s.load(Update{Endpoints: puts("b", 0, 10)})
	s.want(Syncing, 0)
	s.pass(time.Minute)
	s.want(Syncing, 0)
	s.apply(Update{Endpoints: deletes("b", 0, 10)})
	s.want("", 0)
}

// TestCase12HalfMirroredRegion is a registrar that starts while a region is
// half mirrored, and one that has shown it before.
func TestCase12HalfMirroredRegion(t *testing.T) {
	s := newScript(t)
	s.load(Update{Endpoints: puts("b", 0, 4), Mirrors: []MirrorChange{mirrorState(false), liveOn(1)}})
	s.read(1, testTTL)
	s.want(Syncing, 0)
	s.during("filling", func() { s.apply(Update{Endpoints: puts("b", 4, 10)}) })
	s.want(Syncing, 0)
	s.once("completion", func() { s.apply(mirrors(mirrorState(true))) })
	s.want(Live, 10)

	s.during("filling again", func() {
		s.apply(mirrors(mirrorState(false)))
		s.apply(Update{Endpoints: deletes("b", 0, 8)})
		s.apply(Update{Endpoints: puts("b", 20, 22)})
	})
	s.want(Syncing, 10)
	s.once("completion", func() { s.apply(mirrors(mirrorState(true))) })
	s.want(Live, 4)
}

func TestResetDuringResyncKeepsTheLastCompleteView(t *testing.T) {
	s := shownScript(t)
	s.during("a load of a region that is being filled", func() {
		s.load(Update{Endpoints: slices.Concat(puts("own", 0, 5), puts("b", 5, 7)), Mirrors: []MirrorChange{mirrorState(false), liveOn(1)}})
	})
	s.want(Syncing, 10)
	s.once("completion", func() {
		s.apply(Update{Endpoints: puts("b", 7, 9), Mirrors: []MirrorChange{mirrorState(true)}})
	})
	s.want(Live, 4)
}

func TestEqualLoadChangesNothing(t *testing.T) {
	s := shownScript(t)
	s.during("a load of the same", func() {
		s.load(Update{Endpoints: slices.Concat(puts("b", 0, 10), puts("own", 0, 5)), Mirrors: []MirrorChange{liveOn(1), mirrorState(true)}})
	})
	s.want(Live, 10)
}

func TestChangesFlowWhileLive(t *testing.T) {
	s := shownScript(t)
	s.once("a delete", func() { s.apply(Update{Endpoints: deletes("b", 0, 1)}) })
	s.once("a put", func() { s.apply(Update{Endpoints: puts("b", 30, 31)}) })
	s.during("an equal put", func() { s.apply(Update{Endpoints: puts("b", 30, 31)}) })
	s.want(Live, 10)
}

func TestExpiryWithdrawsInOneStep(t *testing.T) {
	s := shownScript(t)
	s.during("the time before the lease ends", func() {
		s.pass(testTTL - time.Second)
		s.read(1, time.Second)
		s.pass(time.Second + beat)
		for n := range 6 { // etcd deletes lease by lease
			s.apply(Update{Endpoints: deletes("b", n, n+1)})
		}
	})
	s.want(Live, 10)
	s.once("the end of the lease", func() { s.apply(mirrors(liveGone)) })
	s.want(Lapsed, 0)
	s.during("the rest", func() { s.apply(Update{Endpoints: deletes("b", 6, 10)}) })
	if n := s.notes[len(s.notes)-1]; n.shown || n.cause != LiveGone || n.endpoints != 10 {
		t.Errorf("noted %+v", n)
	}
}

func TestLateRenewalReleasesWhatWasHeld(t *testing.T) {
	s := shownScript(t)
	s.during("risk", func() {
		s.pass(testTTL - time.Second)
		s.apply(Update{Endpoints: deletes("b", 0, 3)})
	})
	s.once("the renewal", func() { s.read(1, testTTL) })
	s.want(Live, 7)
}

func TestOverdueLeaseWithdrawsAlthoughItsKeysStay(t *testing.T) {
	s := shownScript(t)
	start, shown := s.now, s.versions
	for s.versions == shown && s.now.Sub(start) < time.Minute {
		s.pass(beat)
		s.read(1, testTTL-s.now.Sub(start))
	}
	s.want(Lapsed, 0)
	if took := s.now.Sub(start); took < testTTL || took > testTTL+2*time.Second {
		t.Errorf("withdrawn %v after the last renewal, with a TTL of %v", took, testTTL)
	}
	if n := s.notes[len(s.notes)-1]; n.cause != LeaseOverdue {
		t.Errorf("noted %+v", n)
	}
	s.during("more of the same", func() { s.pass(testTTL) })
	s.want(Lapsed, 0)
}

func TestBlindFeedWithdrawsNothing(t *testing.T) {
	s := shownScript(t)
	s.during("blindness", func() { s.blind(10 * testTTL) })
	s.want(Stale, 10)
	if age := s.core.status(s.now)[0].Age; age < 10*testTTL {
		t.Errorf("age is %v", age)
	}
	s.during("sight, before the lease is read", func() { s.pass(time.Second) })
	s.want(Stale, 10)
	s.during("a renewed lease", func() { s.read(1, testTTL) })
	s.want(Live, 10)
}

func TestSightAfterBlindnessShowsThatTheRegionLapsed(t *testing.T) {
	s := shownScript(t)
	s.blind(2 * testTTL)
	s.once("a resumed watch", func() {
		s.apply(Update{Endpoints: deletes("b", 0, 5)})
		s.apply(Update{Progress: true})
		s.apply(Update{Endpoints: deletes("b", 5, 10), Mirrors: []MirrorChange{liveGone}})
	})
	s.want(Lapsed, 0)

	s = shownScript(t)
	s.blind(2 * testTTL)
	s.once("a load", func() { s.load(Update{Endpoints: puts("own", 0, 5), Mirrors: []MirrorChange{mirrorState(true)}}) })
	s.want(Lapsed, 0)
}

func TestReturnAfterLapse(t *testing.T) {
	s := shownScript(t)
	s.pass(testTTL + time.Second)
	s.apply(Update{Endpoints: deletes("b", 0, 10), Mirrors: []MirrorChange{liveGone}})
	s.want(Lapsed, 0)
	s.during("the return", func() {
		s.apply(mirrors(mirrorState(false), liveOn(2)))
		s.read(2, testTTL)
		s.apply(Update{Endpoints: puts("b", 0, 10)})
	})
	s.want(Syncing, 0)
	s.once("completion", func() { s.apply(mirrors(mirrorState(true))) })
	s.want(Live, 10)
	if n := s.notes[len(s.notes)-1]; !n.shown || n.endpoints != 10 {
		t.Errorf("noted %+v", n)
	}
}

func TestCompleteWithoutLiveStaysLapsed(t *testing.T) {
	s := newScript(t)
	s.load(Update{Endpoints: puts("b", 0, 3), Mirrors: []MirrorChange{mirrorState(true)}})
	s.want(Lapsed, 0)
	s.during("the return", func() {
		s.apply(mirrors(liveOn(1)))
		s.read(1, testTTL)
	})
	s.want(Syncing, 0)
	s.once("the state", func() { s.apply(mirrors(mirrorState(true))) })
	s.want(Live, 3)
}

// TestReturnBeforeItsState is an origin that renews its live key before it says
// that the mirror, which ran out, is to be filled.
func TestReturnBeforeItsState(t *testing.T) {
	s := shownScript(t)
	s.pass(testTTL + time.Second)
	s.apply(Update{Endpoints: deletes("b", 0, 4), Mirrors: []MirrorChange{liveGone}})
	s.during("the return to a part of what was", func() {
		s.apply(mirrors(liveOn(2)))
		s.read(2, testTTL)
		s.want(Syncing, 0)
		s.apply(mirrors(mirrorState(false)))
		s.apply(Update{Endpoints: puts("b", 0, 10)})
	})
	s.once("completion", func() { s.apply(mirrors(mirrorState(true))) })
	s.want(Live, 10)
}

// TestReturnWithNothingToSay is an origin of which only the live key was lost.
func TestReturnWithNothingToSay(t *testing.T) {
	s := shownScript(t)
	s.pass(testTTL + time.Second)
	s.apply(mirrors(liveGone))
	s.want(Lapsed, 0)
	s.once("a TTL of life", func() {
		s.apply(mirrors(liveOn(2)))
		s.read(2, testTTL)
		s.pass(testTTL)
		s.read(2, testTTL)
	})
	s.want(Live, 10)
}

func TestRevokedLeaseIsGivenItsTime(t *testing.T) {
	s := shownScript(t)
	s.during("a revocation", func() {
		s.pass(time.Second)
		s.apply(mirrors(liveGone))
		s.apply(Update{Endpoints: deletes("b", 0, 10)})
	})
	s.want(Stale, 10)
	s.during("its repair", func() {
		s.apply(mirrors(liveOn(2)))
		s.read(2, testTTL)
		s.apply(mirrors(mirrorState(false)))
		s.apply(Update{Endpoints: puts("b", 0, 10)})
		s.apply(mirrors(mirrorState(true)))
	})
	s.want(Live, 10)

	s.apply(mirrors(liveGone))
	s.during("the time that it had", func() { s.pass(testTTL - beat) })
	s.once("its end", func() { s.pass(2 * time.Second) })
	s.want(Lapsed, 0)
}

func TestLeaseOfAnotherLiveIsIgnored(t *testing.T) {
	s := shownScript(t)
	s.during("a reading of a former lease", func() {
		s.apply(mirrors(liveOn(2)))
		s.took(s.core.read("b", 1, Reading{Asked: s.now, Answered: s.now, TTL: -1}, s.now))
	})
	s.want(Live, 10)
}

func TestShortLeasesAreNotHeldForEver(t *testing.T) {
	l := lease{id: 1}.read(Reading{Asked: time.Unix(100, 0), Answered: time.Unix(100, 0), TTL: 2 * time.Second, Granted: 3 * time.Second})
	if l.atRisk(time.Unix(100, 0).Add(beat)) {
		t.Error("a lease of three seconds is at risk right after its renewal")
	}
}

func TestReadingBoundsTheEnd(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	read := func(l lease, ms int, ttl time.Duration) lease {
		return l.read(Reading{Asked: at(ms), Answered: at(ms), TTL: ttl, Granted: testTTL})
	}
	l := read(lease{id: 1}, 0, 4*time.Second)
	if !l.earliest.Equal(at(4000)) || !l.latest.Equal(at(5000)) {
		t.Errorf("ends between %v and %v", l.earliest, l.latest)
	}
	l = read(l, 700, 3*time.Second) // not renewed: both readings hold
	if !l.earliest.Equal(at(4000)) || !l.latest.Equal(at(4700)) {
		t.Errorf("ends between %v and %v", l.earliest, l.latest)
	}
	l = read(l, 1000, 9*time.Second) // renewed: only the last one holds
	if !l.earliest.Equal(at(10000)) || !l.latest.Equal(at(11000)) {
		t.Errorf("ends between %v and %v", l.earliest, l.latest)
	}
	if l = read(l, 2000, -time.Second); !l.gone {
		t.Error("a lease that is not there is not gone")
	}
}
