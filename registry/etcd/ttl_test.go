package etcd_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
)

func registerFor(t *testing.T, s *etcd.Store, ttl time.Duration, endpoints ...registry.Endpoint) registry.Revision {
	t.Helper()
	rev, err := s.RegisterFor(t.Context(), ttl, endpoints)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// leaseOf returns the lease of e's key, which must exist.
func leaseOf(t *testing.T, client *clientv3.Client, e registry.Endpoint) clientv3.LeaseID {
	t.Helper()
	resp, err := client.Get(t.Context(), keyspace.Format(e.Key))
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	return clientv3.LeaseID(resp.Kvs[0].Lease)
}

// awaitGone waits until e's key is deleted.
func awaitGone(t *testing.T, client *clientv3.Client, e registry.Endpoint) {
	t.Helper()
	key := keyspace.Format(e.Key)
	resp, err := client.Get(t.Context(), key)
	if err != nil || len(resp.Kvs) == 0 {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	for w := range client.Watch(t.Context(), key, clientv3.WithRev(resp.Header.Revision+1), clientv3.WithFilterPut()) {
		if len(w.Events) > 0 {
			return
		}
	}
	t.Fatal("the watch ended")
}

func TestRegisteredForATime(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client})
	a, b := endpoint("api", "10.0.0.1"), endpoint("api", "10.0.0.2")

	before := registerFor(t, s, time.Minute, a, b)
	both := leaseOf(t, client, a)
	if both == clientv3.NoLease || leaseOf(t, client, b) != both {
		t.Fatal("what is registered together is not on one lease")
	}
	if again := registerFor(t, s, time.Minute, b, a); again != before {
		t.Errorf("registered again wrote: revision %s, then %s", before, again)
	}

	registerFor(t, s, time.Minute, a)
	alone := leaseOf(t, client, a)
	if alone == both || leaseOf(t, client, b) != both {
		t.Error("registered apart, and yet kept together")
	}
	before = registerFor(t, s, time.Minute, a)
	if again := registerFor(t, s, time.Minute, a, b); again != before {
		t.Error("each on a lease without others, and written all the same")
	}

	if _, err := s.SetHealth(t.Context(), []registry.Claim{{Key: a.Key}}, registry.Draining); err != nil {
		t.Fatal(err)
	}
	if leaseOf(t, client, a) != alone {
		t.Error("a change of health took the endpoint off its lease")
	}
	registerFor(t, s, 5*time.Second, b)
	if id := leaseOf(t, client, b); id == both {
		t.Error("another ttl, on the same lease")
	}
	register(t, s, a)
	if leaseOf(t, client, a) != clientv3.NoLease {
		t.Error("registered for good, and still on a lease")
	}
	awaitGone(t, client, b)
	leaseOf(t, client, a)
}

func TestRegisteredForATimeRefuses(t *testing.T) {
	s := newStore(t, etcd.Config{Client: etcdtest.Start(t).Client(t)})
	held := endpoint("api", "10.0.0.1")
	held.Node = "n1"
	register(t, s, held)
	for name, tt := range map[string]struct {
		ttl      time.Duration
		endpoint registry.Endpoint
		want     registry.Kind
	}{
		"too short":              {time.Second, endpoint("api", "10.0.0.2"), registry.Invalid},
		"none":                   {0, endpoint("api", "10.0.0.2"), registry.Invalid},
		"too long":               {48 * time.Hour, endpoint("api", "10.0.0.2"), registry.Invalid},
		"parts of a second":      {5500 * time.Millisecond, endpoint("api", "10.0.0.2"), registry.Invalid},
		"a node's":               {time.Minute, held, registry.Invalid},
		"held by a present node": {time.Minute, endpoint("api", "10.0.0.1"), registry.Conflict},
	} {
		if _, err := s.RegisterFor(t.Context(), tt.ttl, []registry.Endpoint{tt.endpoint}); registry.KindOf(err) != tt.want || err == nil {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// An etcd that was killed gives what it holds its time again, and takes refreshes.
func TestLeasedEndpointsOutliveEtcd(t *testing.T) {
	server := etcdtest.StartProcess(t)
	client := server.Client(t)
	s := newStore(t, etcd.Config{Client: client})
	a, b := endpoint("api", "10.0.0.1"), endpoint("api", "10.0.0.2")
	registerFor(t, s, 5*time.Second, a)
	registerFor(t, s, time.Minute, b)
	server.Kill()
	server.Restart()
	lease := leaseOf(t, client, b)
	registerFor(t, s, time.Minute, b)
	if leaseOf(t, client, b) != lease {
		t.Error("refreshed after the restart, on another lease")
	}
	awaitGone(t, client, a)
	leaseOf(t, client, b)
}

// Whatever is registered in which portions, refreshed or not, by several
// registrars: a lease holds only what one call registered last.
func TestNoLeaseKeepsWhatWasNotRefreshed(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	region := 0
	rapid.Check(t, func(rt *rapid.T) {
		region++
		origin := registry.Origin{Region: fmt.Sprint("r", region), Cluster: "c1"}
		stores := []*etcd.Store{newStore(t, etcd.Config{Client: client, Origin: origin}), newStore(t, etcd.Config{Client: client, Origin: origin})}
		last := map[string]int{} // by key, the call that registered it
		for call := range rapid.IntRange(1, 6).Draw(rt, "calls") {
			var endpoints []registry.Endpoint
			for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 6), 1, 6, rapid.ID[int]).Draw(rt, "endpoints") {
				e := endpoint("api", fmt.Sprint("10.0.0.", n))
				e.Origin = origin
				e.Weight = rapid.Uint32Range(1, 2).Draw(rt, "weight")
				endpoints = append(endpoints, e)
				last[keyspace.Format(e.Key)] = call
			}
			ttl := rapid.SampledFrom([]time.Duration{time.Minute, time.Hour}).Draw(rt, "ttl")
			if _, err := rapid.SampledFrom(stores).Draw(rt, "store").RegisterFor(t.Context(), ttl, endpoints); err != nil {
				rt.Fatal(err)
			}
			wantLeases(rt, t, client, origin, last)
		}
	})
}

func wantLeases(rt *rapid.T, t *testing.T, client *clientv3.Client, origin registry.Origin, last map[string]int) {
	resp, err := client.Get(t.Context(), keyspace.RegionPrefix(origin.Region), clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != len(last) {
		rt.Fatal(resp, err)
	}
	calls := map[int64]int{}
	for _, kv := range resp.Kvs {
		call, known := calls[kv.Lease]
		if kv.Lease == 0 || known && call != last[string(kv.Key)] {
			rt.Fatalf("%s of call %d is on lease %x of call %d", kv.Key, last[string(kv.Key)], kv.Lease, call)
		}
		calls[kv.Lease] = last[string(kv.Key)]
	}
}
