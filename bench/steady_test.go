package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/replicator"
)

// percentile returns the p-th percentile of durations in milliseconds.
func percentile(d []time.Duration, p float64) float64 {
	slices.Sort(d)
	return float64(d[min(len(d)-1, int(p/100*float64(len(d))))].Microseconds()) / 1000
}

// arrivals notes when each value is seen on the peer.
type arrivals struct {
	mu   sync.Mutex
	seen map[string]time.Time
	n    int
}

func (p *pair) watchArrivals(ctx context.Context) *arrivals {
	a := &arrivals{seen: map[string]time.Time{}}
	w := p.to.Watch(ctx, keyspace.RegionPrefix("a"), clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-w
	go func() {
		for resp := range w {
			now := time.Now()
			a.mu.Lock()
			for _, e := range resp.Events {
				a.seen[string(e.Kv.Value)] = now
				a.n++
			}
			a.mu.Unlock()
		}
	}()
	return a
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.seen)
}

// update puts n single keys, distinct ones, at a rate, and returns when each was
// committed.
func (p *pair) update(n int, perSecond float64) map[string]time.Time {
	p.b.Helper()
	committed := make(map[string]time.Time, n)
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(256)
	begun := time.Now()
	for i := range n {
		due := begun.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			<-time.After(wait)
		}
		g.Go(func() error {
			v := fmt.Sprint("update-", i)
			_, err := p.from.Put(context.Background(), key("a", i), v)
			mu.Lock()
			committed[v] = time.Now()
			mu.Unlock()
			return err
		})
	}
	must(p.b, g.Wait())
	return committed
}

// BenchmarkUpdates reports, at 80 ms round trip, for single-key updates of
// distinct keys at a rate: how many a second were offered and mirrored, and the
// latency from the origin's commit until they are seen on the peer, less the one
// way's 40 ms.
func BenchmarkUpdates(b *testing.B) {
	for _, rate := range []float64{500, 3000} {
		b.Run(fmt.Sprintf("rate=%.0f", rate), func(b *testing.B) {
			const rtt = 80 * time.Millisecond
			n := int(rate * 8)
			for b.Loop() {
				p := newPair(b, rtt, n)
				m := p.start()
				m.waitLive()
				ctx, cancel := context.WithCancel(context.Background())
				a := p.watchArrivals(ctx)
				begun := time.Now()
				committed := p.update(n, rate)
				offered := time.Since(begun)
				await(b, func() bool { return a.count() == n })
				mirrored := time.Since(begun) - rtt/2
				var latency []time.Duration
				for v, at := range committed {
					latency = append(latency, a.seen[v].Sub(at)-rtt/2)
				}
				b.ReportMetric(float64(n)/offered.Seconds(), "offered/s")
				b.ReportMetric(float64(n)/mirrored.Seconds(), "mirrored/s")
				b.ReportMetric(percentile(latency, 50), "p50-ms-over-one-way")
				b.ReportMetric(percentile(latency, 99), "p99-ms-over-one-way")
				b.ReportMetric(0, "ns/op")
				cancel()
				m.stop()
				p.end()
			}
		})
	}
}

// BenchmarkTakeover reports how long the next replicator takes until it mirrors
// again, of 100,000 keys at 80 ms round trip, and what that wrote below the
// region's prefix on the peer: when nothing had changed, and when its checkpoint
// was lost and 100 keys had changed.
func BenchmarkTakeover(b *testing.B) {
	b.Run("unchanged", func(b *testing.B) { takeover(b, func(*pair) {}) })
	b.Run("checkpoint-lost-and-100-changed", func(b *testing.B) {
		takeover(b, func(p *pair) {
			_, err := p.to.Delete(context.Background(), keyspace.StateKey("a"))
			must(b, err)
			p.update(100, 1000)
		})
	})
}

func takeover(b *testing.B, meanwhile func(*pair)) {
	for b.Loop() {
		p := newPair(b, 80*time.Millisecond, mirrorKeys)
		m := p.start()
		m.waitLive()
		m.stop()
		meanwhile(p)
		before, err := p.to.Get(context.Background(), keyspace.RegionPrefix("a"), clientv3.WithPrefix(), clientv3.WithCountOnly())
		must(b, err)
		ctx, cancel := context.WithCancel(context.Background())
		w := p.to.Watch(ctx, keyspace.RegionPrefix("a"), clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision+1), clientv3.WithCreatedNotify())
		<-w
		begun := time.Now()
		m = p.start()
		m.waitLive()
		b.ReportMetric(float64(time.Since(begun).Milliseconds()), "ms")
		must(b, p.to.RequestProgress(ctx))
		puts, deletes := 0, 0
		for resp := range w {
			for _, e := range resp.Events {
				if e.Type == clientv3.EventTypeDelete {
					deletes++
				} else {
					puts++
				}
			}
			if resp.IsProgressNotify() {
				break
			}
		}
		b.ReportMetric(float64(puts), "puts")
		b.ReportMetric(float64(deletes), "deletes")
		b.ReportMetric(0, "ns/op")
		cancel()
		m.stop()
		p.end()
	}
}

// BenchmarkUnrelatedPuts reports the 99th percentile, in milliseconds, of single
// puts on the peer that have nothing to do with the mirror: on an idle peer, while
// 100,000 keys arrive over a link of 80 ms, while all of them are updated, and
// while they expire; the same with a restricted user. For the expiry it reports
// when, in seconds after the last keepalive, the first and the last key left: the
// TTL is 30 s.
func BenchmarkUnrelatedPuts(b *testing.B) {
	b.Run("open", func(b *testing.B) { unrelatedPuts(b) })
	b.Run("restricted", func(b *testing.B) { unrelatedPuts(b, withUser) })
}

func unrelatedPuts(b *testing.B, options ...func(*pair)) {
	for b.Loop() {
		p := newPair(b, 80*time.Millisecond, mirrorKeys, options...)
		b.ReportMetric(p.unrelated(func() { <-time.After(2 * time.Second) }), "idle-p99-ms")
		var m *mirroring
		b.ReportMetric(p.unrelated(func() {
			m = p.start()
			m.waitLive()
		}), "arrival-p99-ms")
		b.ReportMetric(p.unrelated(func() {
			rewrite(b, p.from, mirrorKeys)
			await(b, func() bool { return p.settled(m) })
		}), "update-p99-ms")
		m.stop()
		renewed := m.Status()[0].Renewed
		b.ReportMetric(p.unrelated(func() {
			await(b, func() bool { return p.count() < mirrorKeys })
			b.ReportMetric(time.Since(renewed).Seconds(), "first-gone-s")
			await(b, func() bool { return p.count() == 0 })
			b.ReportMetric(time.Since(renewed).Seconds(), "last-gone-s")
		}), "expiry-p99-ms")
		b.ReportMetric(0, "ns/op")
		p.end()
	}
}

func rewrite(b *testing.B, c *clientv3.Client, keys int) {
	b.Helper()
	for at := 0; at < keys; at += batchOps {
		var ops []clientv3.Op
		for i := at; i < min(keys, at+batchOps); i++ {
			ops = append(ops, clientv3.OpPut(key("a", i), value+"2"))
		}
		_, err := c.Txn(context.Background()).Then(ops...).Commit()
		must(b, err)
	}
}

// settled reports whether the last key's update is on the peer.
func (p *pair) settled(m *mirroring) bool {
	got, err := p.to.Get(context.Background(), key("a", mirrorKeys-1))
	must(p.b, err)
	return len(got.Kvs) == 1 && string(got.Kvs[0].Value) == value+"2" && m.Status()[0].State == replicator.StateLive
}

// unrelated puts a key of its own on the peer every 5 ms while do runs.
func (p *pair) unrelated(do func()) float64 {
	ctx, cancel := context.WithCancel(context.Background())
	var latency []time.Duration
	done := make(chan struct{})
	c := p.to
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			begun := time.Now()
			if _, err := c.Put(context.Background(), "/unrelated", "v"); err != nil {
				p.b.Error(err)
				return
			}
			latency = append(latency, time.Since(begun))
			<-tick.C
		}
	}()
	do()
	cancel()
	<-done
	return percentile(latency, 99)
}
