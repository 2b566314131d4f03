package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/internal/registrar/sweep"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	ttl      = 2 * time.Second
	grace    = 2 * time.Second
)

var one = registry.Origin{Region: "a", Cluster: "c1"}

// member is one registrar of a cluster, with all that it runs.
type member struct {
	t       *testing.T
	client  *remote.Registry
	sweeper *sweep.Sweeper
	crash   func()
}

func start(t *testing.T, server *etcdtest.Server, origin registry.Origin, name string) *member {
	t.Helper()
	client := server.Client(t)
	log := slog.New(slog.DiscardHandler)
	census := registrar.NewCensus(registrar.CensusConfig{Origin: origin, Grace: grace})
	store := need(etcd.New(etcd.Config{Client: client, Origin: origin, Log: log, Present: census.Present, Known: census.Known}))(t)
	feed := need(etcd.NewFeed(etcd.FeedConfig{Client: client, Log: log}))(t)
	presence := need(etcd.NewPresence(etcd.PresenceConfig{Client: client, Origin: origin, Name: name, TTL: ttl, Log: log}))(t)
	sweeper := need(sweep.New(sweep.Config{Origin: origin, Name: name, Client: client, Store: store, Census: census, Grace: grace}))(t)
	rpc := need(net.Listen("tcp", "127.0.0.1:0"))(t)
	r := need(registrar.New(registrar.Config{
		Origin: origin, Store: store, Feed: etcdfeed.New(feed), GRPC: rpc, HTTP: need(net.Listen("tcp", "127.0.0.1:0"))(t),
		Census: census, Presence: presence, Sweeper: sweeper,
	}))(t)
	m := &member{t: t, sweeper: sweeper, client: need(remote.New(rpc.Addr().String()))(t)}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{r.Run, presence.Run, sweeper.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	m.crash = sync.OnceFunc(func() { m.client.Close(); cancel(); parts.Wait() })
	t.Cleanup(m.crash)
	<-r.View().Ready()
	return m
}

// need fails the test that asks for a value which could not be had.
func need[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func endpoints(node int, n int) []registry.Endpoint {
	out := make([]registry.Endpoint, n)
	for i := range out {
		out[i].Key = registry.Key{Service: "api", Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, byte(node), byte(i)})}
	}
	return out
}

func name(node int) string { return fmt.Sprint("n", node) }

// report reports until it gets through.
func (m *member) report(r remote.Report) remote.Reported {
	m.t.Helper()
	for {
		out, err := m.client.Report(m.t.Context(), r)
		if registry.KindOf(err) == registry.Unavailable {
			continue
		}
		if err != nil {
			m.t.Fatal(err)
		}
		return out
	}
}

// alive reports a node's endpoints again and again until the test ends.
func (m *member) alive(node, n int) (crash func()) {
	r := remote.Report{Node: name(node), Endpoints: endpoints(node, n)}
	m.report(r)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := m.client.Report(ctx, r)
			cancel()
			if err != nil && registry.KindOf(err) != registry.Unavailable && !errors.Is(err, context.DeadlineExceeded) {
				m.t.Error(err)
			}
		}
	}()
	crash = sync.OnceFunc(func() { close(stop); <-ended })
	m.t.Cleanup(crash)
	return crash
}

// stored counts the endpoints of a cluster in etcd, by node.
func stored(t *testing.T, client *clientv3.Client, origin registry.Origin) map[string]int {
	t.Helper()
	s := need(etcd.New(etcd.Config{Client: client, Origin: origin}))(t)
	list := need(s.List(t.Context(), registry.Query{}))(t)
	out := map[string]int{}
	for _, e := range list.Endpoints {
		if e.Origin == origin {
			out[e.Node]++
		}
	}
	return out
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("it did not happen that %s", what)
		}
	}
}

// A node that crashes is swept, one that reports is not, and cluster c10 with its
// dead node is none of c1's business (case 13).
func TestCrashOfNode(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	m := start(t, server, one, "r1")
	crash := m.alive(1, 5)
	m.alive(2, 5)
	ten := need(etcd.New(etcd.Config{Client: client, Origin: registry.Origin{Region: "a", Cluster: "c10"}}))(t)
	other := endpoints(1, 3)
	for i := range other {
		other[i].Node = name(1)
	}
	need(ten.Register(t.Context(), other))(t)
	crash()
	eventually(t, "n1 is swept", func() bool { return stored(t, client, one)["n1"] == 0 })
	if n := stored(t, client, one)["n2"]; n != 5 {
		t.Errorf("n2 has %d endpoints, want 5", n)
	}
	if n := stored(t, client, registry.Origin{Region: "a", Cluster: "c10"})["n1"]; n != 3 {
		t.Errorf("c10 has %d endpoints, want 3", n)
	}
}

// A registrar that crashes takes nobody with it: its nodes report elsewhere within
// the grace.
func TestCrashOfRegistrar(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	first, second := start(t, server, one, "r1"), start(t, server, one, "r2")
	deletes := client.Watch(t.Context(), keyspace.ClusterPrefix(one), clientv3.WithPrefix(), clientv3.WithFilterPut())
	crash := first.alive(1, 5)
	crash()
	first.crash()
	second.alive(1, 5)
	eventually(t, "the registrar is gone", func() bool {
		got := need(client.Get(t.Context(), keyspace.RegistrarPresenceKey(one, "r1")))(t)
		return len(got.Kvs) == 0
	})
	eventually(t, "the other sweeps", func() bool { return second.sweeper.Sweep().GetState() == sweep.StateSweeping })
	select {
	case d := <-deletes:
		t.Errorf("swept: %+v", d.Events)
	default:
	}
}

// Nothing is swept while etcd is away, nor when it is back and nodes have yet to
// report; who stays away is swept in the end.
func TestEtcdAwayAndBack(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	m := start(t, server, one, "r1")
	m.alive(1, 5)
	crash := m.alive(2, 5)
	eventually(t, "it sweeps", func() bool { return m.sweeper.Sweep().GetState() == sweep.StateSweeping })
	server.Stop()
	crash()
	eventually(t, "absence is unproven", func() bool { return m.sweeper.Sweep().GetState() == sweep.StateUnproven })
	away := time.NewTimer(ttl + grace)
	defer away.Stop()
	<-away.C
	server.Restart()
	eventually(t, "n2 is swept", func() bool {
		got := stored(t, client, one)
		if got["n1"] != 5 {
			t.Fatalf("n1 has %d endpoints, want 5", got["n1"])
		}
		return got["n2"] == 0
	})
}

// When most nodes are gone at once nothing is removed, and that is said.
func TestBrakeHolds(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	m := start(t, server, one, "r1")
	m.alive(0, 5)
	for i := range 5 {
		m.report(remote.Report{Node: name(i + 1), Endpoints: endpoints(i+1, 5)})
	}
	eventually(t, "the sweep is held", func() bool { return m.sweeper.Sweep().GetState() == sweep.StateHeld })
	total := 0
	for _, n := range stored(t, client, one) {
		total += n
	}
	answer := need(m.client.Sweep(t.Context()))(t)
	if total != 30 || len(answer.GetGhosts()) != 25 || answer.GetReason() == "" {
		t.Errorf("%d endpoints are left, and %d ghosts told: %q", total, len(answer.GetGhosts()), answer.GetReason())
	}

	eventually(t, "all of them are due", func() bool { return m.sweeper.Sweep().GetDue() == 25 })
	if _, err := m.client.AcceptSweep(t.Context(), 24); registry.KindOf(err) != registry.Conflict {
		t.Errorf("fewer were accepted than are due: %v", err)
	}
	if n := len(stored(t, client, one)); n != 6 {
		t.Errorf("%d nodes have endpoints, want 6", n)
	}
	if answer := need(m.client.AcceptSweep(t.Context(), 25))(t); answer.GetRemoved() != 25 {
		t.Errorf("%d removed, want 25", answer.GetRemoved())
	}
	if left := stored(t, client, one); len(left) != 1 || left[name(0)] != 5 {
		t.Errorf("left: %v", left)
	}
	eventually(t, "the sweep goes on", func() bool { return m.sweeper.Sweep().GetState() == sweep.StateSweeping })
}

// A node that cannot tell what it has keeps what it had (case 16).
func TestEmptyReport(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	m := start(t, server, one, "r1")
	full := remote.Report{Node: "n1", Endpoints: endpoints(1, 5)}
	if out := m.report(full); out.Written != 5 || out.PresenceTTL != ttl {
		t.Errorf("the first report: %+v", out)
	}
	eventually(t, "a report with no change writes nothing", func() bool {
		out := m.report(full)
		return out.Written+out.Removed == 0 && out.Revision == ""
	})
	for range 20 {
		if _, err := m.client.Report(t.Context(), remote.Report{Node: "n1"}); registry.KindOf(err) != registry.Invalid {
			t.Fatalf("an empty report: %v", err)
		}
	}
	for start := time.Now(); time.Since(start) < 2*(ttl+grace); {
		m.report(remote.Report{Node: "n1", PresenceOnly: true})
	}
	if n := stored(t, client, one)["n1"]; n != 5 {
		t.Fatalf("n1 has %d endpoints, want 5", n)
	}
	if out := m.report(remote.Report{Node: "n1", Endpoints: full.Endpoints[:2]}); out.Removed != 3 {
		t.Errorf("a report of two: %+v", out)
	}
	eventually(t, "all is gone", func() bool {
		m.report(remote.Report{Node: "n1", Empty: true})
		return stored(t, client, one)["n1"] == 0
	})
}

// One endpoint that another node holds does not keep back the others.
func TestConflictInReport(t *testing.T) {
	m := start(t, etcdtest.Start(t), one, "r1")
	m.report(remote.Report{Node: "n1", Endpoints: endpoints(1, 1)})
	mine := append(endpoints(1, 2), endpoints(2, 1)...)
	out := m.report(remote.Report{Node: "n2", Endpoints: mine})
	if out.Written != 2 || len(out.Conflicts) != 1 || registry.KindOf(out.Conflicts[0]) != registry.Conflict {
		t.Errorf("got %+v", out)
	}
	for field, r := range map[string]remote.Report{
		"no node":         {},
		"poor node":       {Node: "@r1"},
		"another's":       {Node: "n1", Endpoints: []registry.Endpoint{{Key: mine[0].Key, Node: "n3"}}},
		"empty and full":  {Node: "n1", Empty: true, Endpoints: mine},
		"empty and blind": {Node: "n1", Empty: true, PresenceOnly: true},
		"twice":           {Node: "n1", Endpoints: append(mine, mine...)},
	} {
		if _, err := m.client.Report(t.Context(), r); registry.KindOf(err) != registry.Invalid {
			t.Errorf("%s: %v", field, err)
		}
	}
}
