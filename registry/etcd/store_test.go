package etcd_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/registrytest"
	"github.com/aether-federation/aether/registry/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var own = registry.Origin{Region: "a", Cluster: "c1"}

func newStore(t *testing.T, c etcd.Config) *etcd.Store {
	t.Helper()
	if c.Origin == (registry.Origin{}) {
		c.Origin = own
	}
	c.Log = slog.New(slog.DiscardHandler)
	s, err := etcd.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	region := 0
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		region++
		one := registry.Origin{Region: fmt.Sprint("r", region), Cluster: "c1"}
		ten := registry.Origin{Region: one.Region, Cluster: "c10"}
		return registrytest.Fixture{
			Registry: newStore(t, etcd.Config{Client: client, Origin: one}), Origin: one,
			Neighbor: newStore(t, etcd.Config{Client: client, Origin: ten}), NeighborOrigin: ten,
		}
	})
}

func TestConfigValidate(t *testing.T) {
	client := &clientv3.Client{}
	for _, c := range []etcd.Config{
		{Origin: own},
		{Client: client},
		{Client: client, Origin: registry.Origin{Region: "a/b", Cluster: "c1"}},
		{Client: client, Origin: own, RequestTimeout: -1},
	} {
		if _, err := etcd.New(c); err == nil {
			t.Errorf("New(%+v) is fine", c)
		}
	}
}

func endpoint(service, ip string) registry.Endpoint {
	return registry.Endpoint{
		Key:   registry.Key{Origin: own, Service: service, Protocol: registry.HTTP, IP: netip.MustParseAddr(ip)},
		Ports: []registry.Port{{Name: "http", Number: 80}},
	}
}

func put(t *testing.T, client *clientv3.Client, key, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := client.Put(t.Context(), key, value, opts...); err != nil {
		t.Fatal(err)
	}
}

func register(t *testing.T, s *etcd.Store, endpoints ...registry.Endpoint) registry.Revision {
	t.Helper()
	rev, err := s.Register(t.Context(), endpoints)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// Writes stay inside the own partition, and what is there carries no lease.
func TestLayout(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client})
	e := endpoint("api", "10.0.0.1")
	register(t, s, e)
	resp, err := client.Get(t.Context(), "/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatal(resp, err)
	}
	kv := resp.Kvs[0]
	want := "/aether/v1/regions/a/clusters/c1/services/api/protocols/http/endpoints/10.0.0.1"
	if string(kv.Key) != want || kv.Lease != 0 {
		t.Errorf("got %s on lease %x, want %s on none", kv.Key, kv.Lease, want)
	}
	if got := s.OwnPrefix(); got != "/aether/v1/regions/a/" || s.Client() != client {
		t.Errorf("source: %q", got)
	}
}

func TestAbsentHolderGivesWay(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client, Present: func(node string) bool { return node != "gone" }})
	e := endpoint("api", "10.0.0.1")
	e.Node = "gone"
	register(t, s, e)
	e.Node = "n1"
	register(t, s, e)
	e.Node = "n2"
	if _, err := s.Register(t.Context(), []registry.Endpoint{e}); registry.KindOf(err) != registry.Conflict || !strings.Contains(err.Error(), `"n1"`) {
		t.Errorf("got %v, want a conflict with n1", err)
	}
}

// Whoever writes the same keys at once, each call is whole: after all have
// ended, the keys of one batch agree.
func TestConcurrentWritersDoNotMix(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	var wg sync.WaitGroup
	for w := range 8 {
		s := newStore(t, etcd.Config{Client: client})
		wg.Go(func() {
			for range 5 {
				a, b := endpoint("api", "10.0.0.1"), endpoint("api", "10.0.0.2")
				a.Weight, b.Weight = uint32(w+1), uint32(w+1)
				if _, err := s.Register(t.Context(), []registry.Endpoint{a, b}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := newStore(t, etcd.Config{Client: client}).List(t.Context(), registry.Query{})
	if err != nil || len(got.Endpoints) != 2 || got.Endpoints[0].Weight != got.Endpoints[1].Weight {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestBigBatchesAreCut(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client})
	var endpoints []registry.Endpoint
	for i := range registry.MaxBatch {
		e := endpoint("api", fmt.Sprintf("10.0.0.%d", i+1))
		e.Metadata = map[string]string{"x": strings.Repeat("x", registry.MaxMetaBytes-1)}
		endpoints = append(endpoints, e)
	}
	register(t, s, endpoints...)
	got, err := s.List(t.Context(), registry.Query{})
	if err != nil || len(got.Endpoints) != len(endpoints) {
		t.Errorf("%d endpoints, %v", len(got.Endpoints), err)
	}
}

func TestListPagesAtOneRevision(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client})
	var endpoints []registry.Endpoint
	for i := range 4500 {
		endpoints = append(endpoints, endpoint("api", fmt.Sprintf("10.0.%d.%d", i/256, i%256)))
	}
	register(t, s, endpoints...)
	got, err := s.List(t.Context(), registry.Query{})
	if err != nil || !slices.EqualFunc(got.Endpoints, endpoints, registry.Endpoint.Equal) {
		t.Errorf("%d endpoints, %v, want %d", len(got.Endpoints), err, len(endpoints))
	}
}

// reports collects what a store or feed does not understand.
type reports struct {
	mu            sync.Mutex
	unparsable    []string
	disagreements []string
}

func (r *reports) onUnparsable(key string, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unparsable = append(r.unparsable, key)
}

func (r *reports) onDisagreement(key string, _ []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disagreements = append(r.disagreements, key)
}

func TestUnparsableIsReportedAndSkipped(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	var r reports
	s := newStore(t, etcd.Config{Client: client, OnUnparsable: r.onUnparsable, OnDisagreement: r.onDisagreement})
	good, poor, other := endpoint("api", "10.0.0.1"), endpoint("api", "10.0.0.2"), endpoint("api", "10.0.0.3")
	register(t, s, good)
	alien := keyspace.ClusterPrefix(own) + "alien"
	put(t, client, alien, "x")
	put(t, client, keyspace.Format(poor.Key), "garbage")
	value, err := wire.Value(good)
	if err != nil {
		t.Fatal(err)
	}
	put(t, client, keyspace.Format(other.Key), string(value))

	got, err := s.List(t.Context(), registry.Query{})
	if err != nil || len(got.Endpoints) != 2 || got.Endpoints[1].Key != other.Key {
		t.Fatalf("got %+v, %v", got, err)
	}
	if want := []string{alien, keyspace.Format(poor.Key)}; !slices.Equal(r.unparsable, want) {
		t.Errorf("reported %q, want %q", r.unparsable, want)
	}
	if want := []string{keyspace.Format(other.Key)}; !slices.Equal(r.disagreements, want) {
		t.Errorf("disagreements %q, want %q", r.disagreements, want)
	}

	// Registering both again repairs them.
	register(t, s, poor, other)
	r = reports{}
	if got, err := s.List(t.Context(), registry.Query{}); err != nil || len(got.Endpoints) != 3 || len(r.disagreements) != 0 {
		t.Errorf("got %+v, %v, %q", got, err, r.disagreements)
	}
}

func TestErrorsHaveKinds(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	s := newStore(t, etcd.Config{Client: client, RequestTimeout: 100 * time.Millisecond})
	server.Stop()
	_, err := s.Register(t.Context(), []registry.Endpoint{endpoint("api", "10.0.0.1")})
	if registry.KindOf(err) != registry.Unavailable || !strings.Contains(err.Error(), server.Endpoint()) {
		t.Errorf("register: %v", err)
	}
	if _, err := s.List(t.Context(), registry.Query{}); registry.KindOf(err) != registry.Unavailable {
		t.Errorf("list: %v", err)
	}
}

func TestDenied(t *testing.T) {
	server := etcdtest.Start(t)
	root := server.Client(t)
	for _, err := range []error{
		second(root.UserAdd(t.Context(), "root", "x")), second(root.UserGrantRole(t.Context(), "root", "root")),
		second(root.UserAdd(t.Context(), "guest", "x")), second(root.AuthEnable(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	guest, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Endpoint()}, Username: "guest", Password: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	s := newStore(t, etcd.Config{Client: guest})
	if _, err := s.Register(t.Context(), []registry.Endpoint{endpoint("api", "10.0.0.1")}); registry.KindOf(err) != registry.Denied {
		t.Errorf("register: %v", err)
	}
	err = s.Watch(t.Context(), registry.Query{}, func(registry.Event) error { return nil })
	if registry.KindOf(err) != registry.Denied {
		t.Errorf("watch: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestEnsureStoreID(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			id, err := etcd.EnsureStoreID(t.Context(), client)
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	if ids = slices.Compact(ids); len(ids) != 1 || len(ids[0]) != 32 {
		t.Errorf("IDs %q", ids)
	}
	put(t, client, keyspace.StoreKey, "")
	if id, err := etcd.EnsureStoreID(t.Context(), client); err == nil {
		t.Errorf("empty ID: %q", id)
	}
}

func TestTimeToLive(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	left, granted, err := etcd.TimeToLive(t.Context(), client, int64(lease.ID))
	if err != nil || granted != time.Minute || left > granted || left < 30*time.Second {
		t.Errorf("got %v of %v, %v", left, granted, err)
	}
	if _, err := client.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := etcd.TimeToLive(t.Context(), client, int64(lease.ID)); registry.KindOf(err) != registry.NotFound {
		t.Errorf("revoked: %v", err)
	}
}

func TestTransactionsAreTold(t *testing.T) {
	var told atomic.Int64
	s := newStore(t, etcd.Config{Client: etcdtest.Start(t).Client(t), OnCommit: func(writes int, waited time.Duration) {
		if waited < 0 {
			t.Errorf("waited %v", waited)
		}
		told.Add(int64(writes))
	}})
	register(t, s, endpoint("api", "10.0.0.1"), endpoint("api", "10.0.0.2"))
	if n := told.Load(); n != 2 || s.Waiting() != 0 {
		t.Errorf("told of %d writes, and %d wait", n, s.Waiting())
	}
}
