package bench

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/replicator"
)

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkIdleMemory reports the heap that a replicator holds for an idle mirror
// of 1,000,000 keys to two peers, in bytes a key.
func BenchmarkIdleMemory(b *testing.B) {
	const keys = 1_000_000
	for b.Loop() {
		p := newPair(b, 0, keys)
		third := etcdtest.StartProcess(b)
		before := heap()
		m := p.start(replicator.Peer{Region: "c", Endpoints: []string{third.Endpoint()}})
		m.waitLive()
		b.ReportMetric((float64(heap())-float64(before))/keys, "B/key")
		b.ReportMetric(0, "ns/op")
		m.stop()
		third.Kill()
		p.end()
	}
}

// blackHole is for how long BenchmarkBlackHole cuts the link.
const blackHole = 5 * time.Minute

// BenchmarkBlackHole cuts the link to one of two peers, without a word, for five
// minutes, while 5,000 keys are updated 2,000 times a second. It reports how much
// the heap grew, the other peer's latency from commit to arrival before and
// meanwhile, and how long after the link healed the mirror was live and equal.
func BenchmarkBlackHole(b *testing.B) {
	const keys, rate = 5_000, 2_000
	for b.Loop() {
		p := newPair(b, 0, keys)
		third := etcdtest.StartProcess(b)
		healthy := replicator.Peer{Region: "c", Endpoints: []string{wantest.New(b, third.Endpoint(), 0).Address()}}
		m := p.start(healthy)
		m.waitLive()
		stop, latencies := p.churn(third.Client(b), keys, rate)
		b.ReportMetric(percentile(latencies(20*time.Second), 99), "other-peer-p99-ms-before")
		before := heap()
		p.link.Cut()
		b.ReportMetric(percentile(latencies(blackHole), 99), "other-peer-p99-ms-meanwhile")
		b.ReportMetric((float64(heap())-float64(before))/1e6, "MB-growth")
		p.link.Heal()
		healed := time.Now()
		m.waitLive()
		b.ReportMetric(time.Since(healed).Seconds(), "s-to-live")
		last := stop()
		await(b, func() bool { return p.value(last.key) == last.value })
		b.ReportMetric(time.Since(healed).Seconds(), "s-to-equal")
		b.ReportMetric(0, "ns/op")
		m.stop()
		third.Kill()
		p.end()
	}
}

type written struct{ key, value string }

func (p *pair) value(key string) string {
	got, err := p.to.Get(context.Background(), key)
	must(p.b, err)
	if len(got.Kvs) == 0 {
		return ""
	}
	return string(got.Kvs[0].Value)
}

// churn updates keys, 20 in a transaction, until stop, which returns the last
// write. latencies measures for a while how long updates take to arrive at a peer.
func (p *pair) churn(peer *clientv3.Client, keys, rate int) (stop func() written, latencies func(time.Duration) []time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan written)
	samples := make(chan time.Duration, 1<<20)
	go func() {
		var last written
		tick := time.NewTicker(time.Second * 20 / time.Duration(rate))
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n += 20 {
			var ops []clientv3.Op
			for i := range 20 {
				last = written{key("a", (n+i)%keys), fmt.Sprint(time.Now().UnixNano())}
				ops = append(ops, clientv3.OpPut(last.key, last.value))
			}
			if _, err := p.from.Txn(context.Background()).Then(ops...).Commit(); err != nil {
				p.b.Error(err)
			}
			<-tick.C
		}
		done <- last
	}()
	w := peer.Watch(ctx, keyspace.RegionPrefix("a"), clientv3.WithPrefix())
	go func() {
		for resp := range w {
			now := time.Now().UnixNano()
			for _, e := range resp.Events {
				var at int64
				if _, err := fmt.Sscan(string(e.Kv.Value), &at); err == nil {
					select {
					case samples <- time.Duration(now - at):
					default:
					}
				}
			}
		}
	}()
	latencies = func(d time.Duration) []time.Duration {
		for len(samples) > 0 {
			<-samples
		}
		var all []time.Duration
		for until := time.After(d); ; {
			select {
			case s := <-samples:
				all = append(all, s)
			case <-until:
				return all
			}
		}
	}
	stop = func() written {
		cancel()
		return <-done
	}
	return stop, latencies
}
