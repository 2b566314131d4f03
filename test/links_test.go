package test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// TestManyKeysOverASlowLink: a region that holds 20,000 endpoints before anything
// of Aether runs is mirrored over a link with 80 ms round trip.
func TestManyKeysOverASlowLink(t *testing.T) {
	const endpoints = 20_000
	regions := fleet(t, "a", "b")
	fill(t, regions[0].etcd.Client(t), "a", endpoints)
	link := wantest.New(t, regions[1].etcd.Endpoint(), 80*time.Millisecond)
	regions[0].peers = []string{"b=" + link.Address()}
	b := regions[1].registrar(t, "b1")
	started := time.Now()
	regions[0].registrar(t, "a1")
	eventually(t, "b serves all of region a", func() bool {
		n := b.standing("/v1/regions", "a").Endpoints
		if n != 0 && n != endpoints {
			t.Fatalf("b serves %d endpoints of region a: neither none nor all", n)
		}
		return n == endpoints
	})
	t.Logf("%d endpoints mirrored and served %v after the start of their registrar", endpoints, time.Since(started))
	for _, k := range keys(t, regions[1].etcd.Client(t), keyspace.RegionPrefix("a")) {
		if k.lease == 0 {
			t.Fatalf("%s is on no lease", k.key)
		}
	}
}

// fill writes endpoints into an etcd as a registrar would have.
func fill(t *testing.T, c *clientv3.Client, region string, n int) {
	t.Helper()
	var ops []clientv3.Op
	flush := func() {
		if _, err := c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
		ops = ops[:0]
	}
	for i := range n {
		e := registry.Endpoint{Key: registry.Key{
			Origin:  registry.Origin{Region: region, Cluster: region + "1"},
			Service: fmt.Sprintf("service-%d", i/50), Protocol: registry.HTTP,
			IP: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
		}}
		value, err := wire.Value(e)
		if err != nil {
			t.Fatal(err)
		}
		if ops = append(ops, clientv3.OpPut(keyspace.Format(e.Key), string(value))); len(ops) == 100 {
			flush()
		}
	}
	flush()
}

// TestRegionCutOff: a region that nothing is heard of is withdrawn as a dead one
// is, goes on by itself meanwhile, and is whole again when the link heals, with
// what was written and deleted in between.
func TestRegionCutOff(t *testing.T) {
	regions := fleet(t, "a", "b")
	link := wantest.New(t, regions[1].etcd.Endpoint(), 0)
	regions[0].peers = []string{"b=" + link.Address()}
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	a.register("hello", "10.0.0.1", 1001)
	a.register("hello", "10.0.0.2", 1001)
	b.awaitEndpoints("hello", "a/a1 10.0.0.1:1001", "a/a1 10.0.0.2:1001")

	link.Cut()
	b.awaitState("/v1/regions", "a", "lapsed")
	b.awaitEndpoints("hello")
	a.aether("unregister", "hello", "10.0.0.1")
	a.register("hello", "10.0.0.3", 1001)
	a.awaitEndpoints("hello", "a/a1 10.0.0.2:1001", "a/a1 10.0.0.3:1001")

	link.Heal()
	b.awaitEndpoints("hello", "a/a1 10.0.0.2:1001", "a/a1 10.0.0.3:1001")
	a.awaitState("/v1/peers", "b", "live")
}
