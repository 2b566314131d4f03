package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	mirrorKeys = 100_000
	valueBytes = 220
	batchOps   = 128
	rawFlight  = 32
)

// BenchmarkInitialMirror reports the keys per second at which a region that holds
// 100,000 keys of 220 bytes is mirrored into an empty peer, until the mirror is
// complete, beside a bare client that puts the same keys with leases in
// transactions of 128, 32 in flight, over the same link; and the ratio of the two.
func BenchmarkInitialMirror(b *testing.B) {
	for _, rtt := range []time.Duration{0, 20 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond} {
		b.Run(fmt.Sprintf("rtt=%v", rtt), func(b *testing.B) { initialMirror(b, rtt, mirrorKeys) })
	}
}

func initialMirror(b *testing.B, rtt time.Duration, keys int) {
	var raw, mirrored float64
	for b.Loop() {
		raw += rawPuts(b, rtt, keys).Seconds()
		mirrored += firstMirror(b, rtt, keys).Seconds()
	}
	total := float64(keys * b.N)
	b.ReportMetric(total/raw, "raw-keys/s")
	b.ReportMetric(total/mirrored, "mirror-keys/s")
	b.ReportMetric(raw/mirrored, "of-raw")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkMakeMirror reports the keys per second of etcdctl make-mirror over a
// link of 80 ms, measured on 100 keys because it writes one key a round trip, and
// how many times faster the same link was for the mirror of 100,000.
func BenchmarkMakeMirror(b *testing.B) {
	const rtt, few = 80 * time.Millisecond, 100
	var theirs, ours float64
	for b.Loop() {
		theirs += makeMirror(b, rtt, few).Seconds()
		ours += firstMirror(b, rtt, mirrorKeys).Seconds()
	}
	n := float64(b.N)
	b.ReportMetric(few*n/theirs, "make-mirror-keys/s")
	b.ReportMetric(mirrorKeys*n/ours, "mirror-keys/s")
	b.ReportMetric(mirrorKeys/ours*theirs/few, "times")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRestrictedUser reports the rate of the first mirror to a peer with
// authentication, as a user for the origin's two prefixes alone, beside the same
// without authentication, on a link of 80 ms and on none.
func BenchmarkRestrictedUser(b *testing.B) {
	for _, rtt := range []time.Duration{0, 80 * time.Millisecond} {
		b.Run(fmt.Sprintf("rtt=%v", rtt), func(b *testing.B) {
			var open, restricted float64
			for b.Loop() {
				open += firstMirror(b, rtt, mirrorKeys).Seconds()
				restricted += firstMirror(b, rtt, mirrorKeys, withUser).Seconds()
			}
			n := float64(b.N)
			b.ReportMetric(mirrorKeys*n/restricted, "restricted-keys/s")
			b.ReportMetric(open/restricted, "of-open")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func key(region string, i int) string {
	return fmt.Sprintf("%sclusters/c1/services/service-%04d/protocols/http/endpoints/10.%d.%d.%d",
		keyspace.RegionPrefix(region), i/50, i>>16, i>>8&255, i&255)
}

var value = strings.Repeat("v", valueBytes)

// rawPuts measures a bare client on a link of its own to an etcd of its own.
func rawPuts(b *testing.B, rtt time.Duration, keys int) time.Duration {
	etcd := etcdtest.StartProcess(b)
	defer etcd.Kill()
	c := etcdtest.NewClient(b, wantest.New(b, etcd.Endpoint(), rtt).Address())
	begun := time.Now()
	leases := make([]clientv3.LeaseID, (keys+99)/100)
	must(b, inFlight(len(leases), func(i int) error {
		granted, err := c.Grant(context.Background(), 30)
		if err == nil {
			leases[i] = granted.ID
		}
		return err
	}))
	must(b, inFlight((keys+batchOps-1)/batchOps, func(batch int) error {
		var ops []clientv3.Op
		for i := batch * batchOps; i < min(keys, (batch+1)*batchOps); i++ {
			ops = append(ops, clientv3.OpPut(key("a", i), value, clientv3.WithLease(leases[i/100])))
		}
		_, err := c.Txn(context.Background()).Then(ops...).Commit()
		return err
	}))
	return time.Since(begun)
}

func inFlight(n int, do func(int) error) error {
	var g errgroup.Group
	g.SetLimit(rawFlight)
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	return g.Wait()
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func fill(b *testing.B, c *clientv3.Client, keys int) {
	b.Helper()
	for at := 0; at < keys; at += batchOps {
		var ops []clientv3.Op
		for i := at; i < min(keys, at+batchOps); i++ {
			ops = append(ops, clientv3.OpPut(key("a", i), value))
		}
		_, err := c.Txn(context.Background()).Then(ops...).Commit()
		must(b, err)
	}
}
