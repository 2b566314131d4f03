package report

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds a wait for a condition.
const patience = 30 * time.Second

// fakeRegistrar keeps one node's endpoints as a registrar does.
type fakeRegistrar struct {
	mu      sync.Mutex
	err     error
	stored  map[registry.Key]registry.Endpoint
	taken   map[registry.Key]bool // by others
	reports []remote.Report
	ttl     time.Duration
	// seen tells of each report.
	seen chan struct{}
}

func newFake() *fakeRegistrar {
	return &fakeRegistrar{stored: map[registry.Key]registry.Endpoint{}, taken: map[registry.Key]bool{}, ttl: time.Hour, seen: make(chan struct{}, 1000)}
}

func (f *fakeRegistrar) Report(_ context.Context, r remote.Report) (remote.Reported, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.seen <- struct{}{} }()
	f.reports = append(f.reports, r)
	out := remote.Reported{PresenceTTL: f.ttl}
	out.Conflicts = map[int]error{}
	if f.err != nil {
		return remote.Reported{}, f.err
	}
	if r.PresenceOnly {
		return out, nil
	}
	before := maps.Clone(f.stored)
	f.stored = map[registry.Key]registry.Endpoint{}
	for i, e := range r.Endpoints {
		if f.taken[e.Key] {
			out.Conflicts[i] = registry.Errorf(registry.Conflict, "held by n9")
			continue
		}
		was, there := before[e.Key]
		if there {
			e = e.KeepDraining(was)
		}
		if !there || !was.Equal(e) {
			out.Written++
		}
		f.stored[e.Key] = e
	}
	return out, nil
}

func (f *fakeRegistrar) SetHealth(_ context.Context, claims []registry.Claim, h registry.Health) (registry.Revision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range claims {
		e, there := f.stored[c.Key]
		if !there {
			return "", registry.Errorf(registry.NotFound, "there is none")
		}
		e.Health = h
		f.stored[c.Key] = e
	}
	return "", nil
}

func (f *fakeRegistrar) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// health of an endpoint; false: it is not there.
func (f *fakeRegistrar) health(e registry.Endpoint) (registry.Health, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	stored, there := f.stored[e.Key]
	return stored.Health, there
}

func (f *fakeRegistrar) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.reports)
}

func (f *fakeRegistrar) report(n int) remote.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reports[n]
}

// await waits for a condition that reports bring about.
func (f *fakeRegistrar) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-f.seen:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// memoryFake remembers.
type memoryFake struct {
	mu    sync.Mutex
	saved map[registry.Key]registry.Health
	saves int
}

func (m *memoryFake) Save(a map[registry.Key]registry.Health) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved, m.saves = maps.Clone(a), m.saves+1
	return nil
}

func (*memoryFake) Touch() error { return nil }

func (m *memoryFake) get() (map[registry.Key]registry.Health, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saved, m.saves
}

func endpointOf(n int, h registry.Health) registry.Endpoint {
	return registry.Endpoint{
		Key:    registry.Key{Service: "api", Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})},
		Health: h, Node: "n1",
	}
}

func announcing(endpoints ...registry.Endpoint) Announcement {
	return Announcement{Known: true, Endpoints: endpoints}
}

func run(t *testing.T, r *Reporter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func flush(t *testing.T, r *Reporter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownIsPresenceAlone(t *testing.T) {
	f := newFake()
	r := New(Config{Node: "n1", Registrar: f})
	run(t, r)
	f.await(t, "a report", func() bool { return f.count() > 0 })
	if first := f.report(0); !first.PresenceOnly || first.Node != "n1" {
		t.Errorf("reported %+v", first)
	}
	r.Announce(announcing())
	flush(t, r)
	if last := f.report(f.count() - 1); last.PresenceOnly || !last.Empty {
		t.Errorf("reported %+v", last)
	}
}

// TestOutage: what was announced last comes through, and a moment's changes are few
// reports.
func TestOutage(t *testing.T) {
	f := newFake()
	f.fail(registry.Errorf(registry.Unavailable, "away"))
	r := New(Config{Node: "n1", Registrar: f})
	run(t, r)
	f.await(t, "a failure is told", func() bool { return r.Status().Err != nil })
	for n := range 100 {
		r.Announce(announcing(endpointOf(n, registry.Healthy)))
	}
	f.fail(nil)
	flush(t, r)
	if last := f.report(f.count() - 1); len(last.Endpoints) != 1 || last.Endpoints[0].Key != endpointOf(99, 0).Key {
		t.Errorf("reported %+v", last)
	}
	if s := r.Status(); s.Err != nil || s.Last.IsZero() || s.PresenceTTL != f.ttl {
		t.Errorf("status is %+v", s)
	}
}

func TestHeartbeatFollowsThePresenceTTL(t *testing.T) {
	f := newFake()
	f.ttl = 150 * time.Millisecond
	r := New(Config{Node: "n1", Registrar: f})
	run(t, r)
	r.Announce(announcing(endpointOf(1, registry.Healthy)))
	f.await(t, "reports without a change", func() bool { return f.count() > 5 })
}

func TestConflictsAreToldAndEnd(t *testing.T) {
	f := newFake()
	f.ttl = 150 * time.Millisecond
	mine, theirs := endpointOf(1, registry.Healthy), endpointOf(2, registry.Healthy)
	f.taken[theirs.Key] = true
	r := New(Config{Node: "n1", Registrar: f})
	run(t, r)
	r.Announce(announcing(mine, theirs))
	flush(t, r)
	if c := r.Status().Conflicts; len(c) != 1 || c[theirs.Key] == nil {
		t.Errorf("conflicts are %v", c)
	}
	f.mu.Lock()
	delete(f.taken, theirs.Key)
	f.mu.Unlock()
	f.await(t, "the conflict is over", func() bool { return len(r.Status().Conflicts) == 0 })
}

// TestOwnDrainsEnd: a registrar keeps a drain whatever is reported; the one who
// began it ends it, even an agent that was killed and started again.
func TestOwnDrainsEnd(t *testing.T) {
	f, m := newFake(), &memoryFake{}
	r := New(Config{Node: "n1", Registrar: f, Memory: m})
	stop := run(t, r)
	e := endpointOf(1, registry.Healthy)
	r.Announce(announcing(endpointOf(1, registry.Draining)))
	flush(t, r)
	r.Announce(announcing(e))
	flush(t, r)
	if h, _ := f.health(e); h != registry.Healthy {
		t.Errorf("the drain that was ended is %v", h)
	}
	r.Announce(announcing(endpointOf(1, registry.Draining)))
	flush(t, r)
	stop()

	saved, _ := m.get()
	again := New(Config{Node: "n1", Registrar: f, Memory: m, Announced: saved})
	run(t, again)
	again.Announce(announcing(e))
	flush(t, again)
	if h, _ := f.health(e); h != registry.Healthy {
		t.Errorf("after a restart it is %v", h)
	}
}

func TestDrainsOfOthersStay(t *testing.T) {
	f, m := newFake(), &memoryFake{}
	r := New(Config{Node: "n1", Registrar: f, Memory: m})
	run(t, r)
	e := endpointOf(1, registry.Healthy)
	r.Announce(announcing(e))
	flush(t, r)
	if _, err := f.SetHealth(t.Context(), []registry.Claim{{Key: e.Key}}, registry.Draining); err != nil {
		t.Fatal(err)
	}
	r.Announce(announcing(e, endpointOf(2, registry.Healthy)))
	flush(t, r)
	if h, _ := f.health(e); h != registry.Draining {
		t.Errorf("somebody else's drain is %v", h)
	}
}

func TestMemoryIsWrittenOnChangeAlone(t *testing.T) {
	f, m := newFake(), &memoryFake{}
	f.ttl = 60 * time.Millisecond
	r := New(Config{Node: "n1", Registrar: f, Memory: m})
	run(t, r)
	r.Announce(announcing(endpointOf(1, registry.Unhealthy)))
	flush(t, r)
	begin := f.count()
	f.await(t, "more reports", func() bool { return f.count() > begin+5 })
	if saved, saves := m.get(); saves != 1 || saved[endpointOf(1, 0).Key] != registry.Unhealthy {
		t.Errorf("%d saves of %v", saves, saved)
	}
}
