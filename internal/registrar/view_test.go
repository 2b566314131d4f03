package registrar

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
)

// newTestView returns a loaded view that is not run: the test tells it updates.
func newTestView(buffer int, endpoints []EndpointChange) *View {
	cfg := Config{Origin: registry.Origin{Region: "own", Cluster: "c1"}, WatchBuffer: buffer, Log: slog.New(slog.DiscardHandler)}.withDefaults()
	cfg.Metrics = NewMetrics(prometheus.NewRegistry())
	v := newView(cfg)
	tellView(v, Update{Reset: true, Synced: true, Endpoints: endpoints})
	return v
}

// tellView tells v one update, which cannot fail, and v its subscribers.
func tellView(v *View, u Update) {
	tellQuietly(v, u)
	flush(v)
}

// tellQuietly tells v one update; its subscribers may be told later.
func tellQuietly(v *View, u Update) {
	if err := v.update(u); err != nil {
		panic(err)
	}
}

func flush(v *View) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.flush(time.Now())
}

func keysOf(s Snapshot) []registry.Key {
	var keys []registry.Key
	for _, endpoints := range s.Services {
		for _, e := range endpoints {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// follow applies what sub tells until it has caught up.
func follow(t *rapid.T, sub *subscription, have map[registry.Key]registry.Endpoint) {
	for {
		d, ok := sub.take()
		if !ok {
			return
		}
		d.applyTo(have)
		if d.revision == "" {
			t.Fatal("a delivery without a revision")
		}
	}
}

// TestSubscribersEndWithTheView writes at random and lets readers follow at
// random: in the end each has what a snapshot shows.
func TestSubscribersEndWithTheView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := newTestView(1<<20, puts("own", 0, 4))
		queries := []registry.Query{{}, {Services: []string{"s0"}}, {Services: []string{"s2", "s1", "s1", "none"}}}
		subs := make([]*subscription, len(queries))
		have := make([]map[registry.Key]registry.Endpoint, len(queries))
		for i, q := range queries {
			subs[i], have[i] = v.subscribe(q, nil), map[registry.Key]registry.Endpoint{}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if i := rapid.IntRange(0, 2*len(subs)).Draw(t, "reader"); i < len(subs) {
				follow(t, subs[i], have[i])
				continue
			}
			tellView(v, Update{Reset: rapid.Float64().Draw(t, "reset") < 0.1, Synced: true, Endpoints: someChanges(t)})
		}
		for i, q := range queries {
			follow(t, subs[i], have[i])
			got := slices.SortedFunc(maps.Keys(have[i]), registry.Key.Compare)
			if diff := cmp.Diff(keysOf(v.Snapshot(q)), got, cmp.Comparer(func(a, b registry.Key) bool { return a == b })); diff != "" {
				t.Fatalf("reader of %v: %s", q, diff)
			}
			for _, endpoints := range v.Snapshot(q).Services {
				for _, e := range endpoints {
					if !e.Equal(have[i][e.Key]) {
						t.Fatalf("reader of %v has %+v, want %+v", q, have[i][e.Key], *e)
					}
				}
			}
			subs[i].close()
		}
		if n := v.fan.len(); n != 0 || len(v.fan.byService) != 0 {
			t.Fatalf("%d subscriptions are left, %d services", n, len(v.fan.byService))
		}
	})
}

func someChanges(t *rapid.T) []EndpointChange {
	changes := make([]EndpointChange, rapid.IntRange(0, 6).Draw(t, "changes"))
	for i := range changes {
		changes[i].Endpoint = endpoint("own", rapid.IntRange(0, 9).Draw(t, "endpoint"))
		changes[i].Delete = rapid.Bool().Draw(t, "delete")
		changes[i].Endpoint.Weight = rapid.Uint32Range(1, 3).Draw(t, "weight")
	}
	return changes
}

func TestReaderThatIsBehindIsCutOff(t *testing.T) {
	v := newTestView(5, nil)
	slow, other := v.subscribe(registry.Query{}, nil), v.subscribe(registry.Query{Services: []string{"s0"}}, nil)
	slow.take()
	tellView(v, Update{Endpoints: puts("own", 0, 100)})
	select {
	case <-slow.cutoff:
		t.Fatal("one version, however large, is too much")
	default:
	}
	tellView(v, Update{Endpoints: deletes("own", 1, 2)})
	if _, err := slow.next(t.Context()); registry.KindOf(err) != registry.SlowReader {
		t.Errorf("next: %v", err)
	}
	if _, err := other.next(t.Context()); err != nil {
		t.Errorf("the other reader: %v", err)
	}
	slow.requery(registry.Query{}, false) // harmless by now
	slow.close()
	other.close()
	if n := v.fan.len(); n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
}

func TestDeletionOfWhatWasNeverToldIsTold(t *testing.T) {
	v := newTestView(100, nil)
	sub := v.subscribe(registry.Query{}, nil)
	defer sub.close()
	sub.take()
	tellView(v, Update{Endpoints: puts("own", 0, 1)})
	tellView(v, Update{Endpoints: deletes("own", 0, 1)})
	d, _ := sub.take()
	if len(d.changes) != 1 || d.changes[0].kind != registry.Delete {
		t.Errorf("told %v", d.changes)
	}
}

// stuckFeed tells a region and does not answer for its lease.
type stuckFeed struct{}

func (stuckFeed) Run(ctx context.Context, fn func(Update) error) error {
	u := Update{Reset: true, Synced: true, Endpoints: puts("b", 0, 3), Mirrors: []MirrorChange{mirrorState(true), liveOn(1)}}
	if err := fn(u); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (stuckFeed) TimeToLive(context.Context, int64) (time.Duration, time.Duration, error) {
	return 0, 0, errors.New("no answer")
}

func TestLeaseThatCannotBeReadIsNoProofOfLife(t *testing.T) {
	cfg := Config{Origin: registry.Origin{Region: "own", Cluster: "c1"}, Feed: stuckFeed{}}.withDefaults()
	v := newView(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.run(ctx) }()
	<-v.Ready()
	if n := v.Snapshot(registry.Query{}).Len(); n != 0 {
		t.Errorf("%d endpoints are shown", n)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v", err)
	}
}

func BenchmarkLoad(b *testing.B) {
	changes := puts("own", 0, 65536)
	b.ReportAllocs()
	for b.Loop() {
		newTestView(0, slices.Clone(changes))
	}
}

func BenchmarkWithdraw(b *testing.B) {
	load := Update{Reset: true, Synced: true, Endpoints: puts("b", 0, 65536), Mirrors: []MirrorChange{mirrorState(true), liveOn(1)}}
	now := time.Unix(1000, 0)
	for b.Loop() {
		b.StopTimer()
		c := newCore("own", DefaultBlindAfter)
		c.apply(load, now)
		c.read("b", 1, Reading{Asked: now, Answered: now, TTL: 0, Granted: testTTL}, now)
		c.settle(now)
		if c.read("b", 1, Reading{Asked: now, Answered: now, TTL: testTTL, Granted: testTTL}, now); len(c.index) == 0 {
			b.Fatal("nothing is shown")
		}
		later := now.Add(testTTL)
		c.proven = later
		b.StartTimer()
		if n := len(c.apply(mirrors(liveGone), later).changes); n != 65536 {
			b.Fatalf("%d changes", n)
		}
	}
}

func BenchmarkListOfFifty(b *testing.B) {
	v := newTestView(0, puts("own", 0, 150))
	q := registry.Query{Services: []string{"s1"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := proto.Marshal(listAnswer(v.Snapshot(q), v.ages())); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChangeWithManySubscribers(b *testing.B) {
	v := newTestView(1<<30, puts("own", 0, 300))
	for range 1000 {
		defer v.subscribe(registry.Query{Services: []string{"s1"}}, nil).close()
	}
	b.ReportAllocs()
	n := uint32(0)
	for b.Loop() {
		n++
		e := endpoint("own", 1)
		e.Weight = n
		tellView(v, Update{Endpoints: []EndpointChange{{Endpoint: e}}})
	}
}
