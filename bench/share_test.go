package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/grpcerr"
)

const (
	// share is what one client may ask for, in calls a second.
	share = 100
	// modest clients ask for half of theirs, one write in five calls.
	modest        = 10
	shareRounds   = 30
	shareRound    = time.Second
	writesAmong   = 5
	greedyConns   = 4
	greedyTimes   = 10
	shareEndpoint = 20000
)

// BenchmarkFairShare reports the 99th percentile of ten clients' calls, lists of a
// service and registrations, while an eleventh is idle, while it asks for what a
// client may, and while it asks for ten times that, in turn: the excess is what the
// others must not feel. A call's time counts from when it was due.
func BenchmarkFairShare(b *testing.B) {
	for b.Loop() {
		f := &fleet{b: b, etcd: etcdtest.StartProcess(b).Client(b), limits: access.Limits{Rate: share, Burst: share / 4, Streams: 100, Connections: 100}}
		fillEndpoints(b, f.etcd, shareEndpoint)
		f.start()
		clients := make([]*caller, modest)
		for i := range clients {
			clients[i] = f.caller(i+2, 1)
		}
		var served, refused int64
		greedy := f.caller(modest+2, greedyConns)
		var alone, fair, beside []time.Duration
		for range shareRounds {
			alone = append(alone, modestP99(b, clients))
			fair = append(fair, besideP99(b, clients, greedy, share))
			greedy.served.Store(0)
			greedy.refused.Store(0)
			beside = append(beside, besideP99(b, clients, greedy, greedyTimes*share))
			served, refused = served+greedy.served.Load(), refused+greedy.refused.Load()
		}
		seconds := (shareRounds * shareRound).Seconds()
		b.ReportMetric(float64(median(alone).Microseconds())/1e3, "ms-p99-alone")
		b.ReportMetric(float64(median(fair).Microseconds())/1e3, "ms-p99-at-share")
		b.ReportMetric(float64(median(beside).Microseconds())/1e3, "ms-p99-at-ten")
		b.ReportMetric(median(beside).Seconds()/median(fair).Seconds(), "of-at-share")
		b.ReportMetric(float64(served)/seconds, "greedy-served/s")
		b.ReportMetric(float64(refused)/seconds, "greedy-refused/s")
		failed := int64(0)
		for _, c := range clients {
			failed += c.failed.Load()
		}
		b.ReportMetric(float64(failed), "failed")
		b.ReportMetric(0, "ns/op")
	}
}

// caller is a client with an address of its own, by which limits are kept.
type caller struct {
	number          int
	conns           []registryv1.RegistryServiceClient
	served, refused atomic.Int64
	failed          atomic.Int64

	mu     sync.Mutex
	delays []time.Duration
}

func (f *fleet) caller(number, conns int) *caller {
	f.b.Helper()
	c := &caller{number: number}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(number))}}
	for range conns {
		conn, err := grpc.NewClient(f.target, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			}))
		must(f.b, err)
		f.b.Cleanup(func() { conn.Close() })
		c.conns = append(c.conns, registryv1.NewRegistryServiceClient(conn))
	}
	return c
}

// besideP99 is modestP99 while another asks at a rate.
func besideP99(b *testing.B, clients []*caller, other *caller, rate int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var run sync.WaitGroup
	run.Go(func() { other.paced(ctx, rate) })
	p99 := modestP99(b, clients)
	cancel()
	run.Wait()
	return p99
}

// modestP99 has each client ask for half its share for one round.
func modestP99(b *testing.B, clients []*caller) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), shareRound)
	defer cancel()
	var run sync.WaitGroup
	var all []time.Duration
	for _, c := range clients {
		c.delays = nil
		run.Go(func() { c.paced(ctx, share/2) })
	}
	run.Wait()
	for _, c := range clients {
		all = append(all, c.delays...)
		if n := c.refused.Swap(0); n > 0 {
			b.Errorf("%d calls of a modest client were refused", n)
		}
	}
	slices.Sort(all)
	return quantile(all, 0.99)
}

// paced makes so many calls a second until ctx ends, and waits for their end.
func (c *caller) paced(ctx context.Context, rate int) {
	var calls sync.WaitGroup
	defer calls.Wait()
	begin := time.Now()
	for n := 0; ; n++ {
		due := begin.Add(time.Duration(n) * time.Second / time.Duration(rate))
		if wait := time.Until(due); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		} else if ctx.Err() != nil {
			return
		}
		calls.Go(func() { c.call(context.WithoutCancel(ctx), n, due) })
	}
}

func (c *caller) call(ctx context.Context, n int, due time.Time) {
	client := c.conns[n%len(c.conns)]
	var err error
	if n%writesAmong == 0 {
		_, err = client.Register(ctx, &registryv1.RegisterRequest{Endpoints: []*registryv1.Endpoint{{
			Service: fmt.Sprint("share-", c.number), Protocol: "http", Ip: netip.AddrFrom4([4]byte{10, 200, byte(c.number), byte(n)}).String(),
			Weight: uint32(n)%100 + 1, Ports: []*registryv1.Port{{Name: "http", Number: 8080}},
		}}})
	} else {
		_, err = client.List(ctx, &registryv1.ListRequest{Services: []string{serviceName(n * 7 % (shareEndpoint / 50))}})
	}
	took := time.Since(due)
	if err != nil {
		if registry.KindOf(grpcerr.FromStatus(err)) == registry.Limited {
			c.refused.Add(1)
		} else {
			c.failed.Add(1) // the machine is too busy for etcd to answer in time
		}
		return
	}
	c.served.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delays = append(c.delays, took)
}
