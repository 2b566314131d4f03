package registrar

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aether-federation/aether/registry"
)

// newTestView returns a loaded view that is not run: the test tells it updates.
func newTestView(buffer int, endpoints []EndpointChange) *View {
	cfg := Config{Origin: registry.Origin{Region: "own", Cluster: "c1"}, WatchBuffer: buffer, Log: slog.New(slog.DiscardHandler)}.withDefaults()
	cfg.Metrics = NewMetrics(prometheus.NewRegistry())
	v := newView(cfg)
	if err := v.update(Update{Reset: true, Synced: true, Endpoints: endpoints}); err != nil {
		panic(err)
	}
	return v
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
