package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
)

// keep runs a Presence until the test ends, or it crashes.
func keep(t *testing.T, client *clientv3.Client, name string, ttl time.Duration) (p *etcd.Presence, crash func()) {
	t.Helper()
	p, err := etcd.NewPresence(etcd.PresenceConfig{
		Client: client, Origin: own, Name: name, TTL: ttl, Log: slog.New(slog.DiscardHandler), RequestTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	crash = func() { cancel(); run.Wait() }
	t.Cleanup(crash)
	return p, crash
}

func touch(t *testing.T, p *etcd.Presence, nodes ...string) {
	t.Helper()
	if err := p.Touch(t.Context(), nodes...); err != nil {
		t.Fatal(err)
	}
}

// presentNodes are what etcd has of presence, registrars with their mark.
func presentNodes(t *testing.T, client *clientv3.Client) []string {
	t.Helper()
	resp, err := client.Get(t.Context(), keyspace.PresenceRoot, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, kv := range resp.Kvs {
		out = append(out, strings.TrimPrefix(string(kv.Key), keyspace.PresencePrefix(own)))
	}
	return out
}

func awaitPresent(t *testing.T, client *clientv3.Client, want ...string) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		got := presentNodes(t, client)
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("present are %v, want %v", got, want)
		}
	}
}

// A node is present once Touch returns, and for a TTL; a touch of one that is
// present writes nothing.
func TestTouch(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	p, stop := keep(t, client, "r1", 2*time.Second)
	touch(t, p, "n1", "n2")
	if got := presentNodes(t, client); !slices.Equal(got, []string{"@r1", "n1", "n2"}) {
		t.Fatalf("present are %v", got)
	}
	before, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	touch(t, p, "n1")
	if after, err := client.Get(t.Context(), "x"); err != nil || after.Header.Revision != before.Header.Revision {
		t.Errorf("a touch of a present node wrote: %v", err)
	}
	awaitPresent(t, client, "@r1")
	stop()
	if err := p.Touch(t.Context(), "n1"); registry.KindOf(err) != registry.Unavailable {
		t.Errorf("touch after the end: %v", err)
	}
}

// A node that moves to another registrar stays present, whoever forgets it first
// and when the first registrar crashes.
func TestNodeMoves(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	first, crash := keep(t, client, "r1", 2*time.Second)
	second, _ := keep(t, client, "r2", 2*time.Second)
	touch(t, first, "n1")
	stop := make(chan struct{})
	var agent sync.WaitGroup
	agent.Go(func() {
		for {
			if err := second.Touch(t.Context(), "n1"); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	defer agent.Wait()
	defer close(stop)
	crash()
	gone := false
	for !gone {
		got := presentNodes(t, client)
		gone = !slices.Contains(got, "@r1")
		if !slices.Contains(got, "n1") {
			t.Fatalf("n1 is absent though it reports to r2: %v", got)
		}
	}
}

// A lease that ran out is replaced, with the nodes that were heard from lately.
func TestLostLease(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	p, _ := keep(t, client, "r1", time.Minute)
	touch(t, p, "n1")
	leases, err := client.Leases(t.Context())
	if err != nil || len(leases.Leases) != 1 {
		t.Fatal(leases, err)
	}
	if _, err := client.Revoke(t.Context(), leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	touch(t, p, "n2") // finds it out
	awaitPresent(t, client, "@r1", "n1", "n2")
}

// While etcd is away nobody can be made present, and that can be tried again.
func TestTouchWithoutEtcd(t *testing.T) {
	s := etcdtest.Start(t)
	client := s.Client(t)
	p, _ := keep(t, client, "r1", 2*time.Second)
	touch(t, p, "n1")
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Touch(ctx, "n2"); registry.KindOf(err) != registry.Unavailable {
		t.Errorf("touch without etcd: %v", err)
	}
	s.Restart()
	for p.Touch(t.Context(), "n2") != nil {
		continue
	}
	if got := presentNodes(t, client); !slices.Contains(got, "n2") {
		t.Errorf("present are %v", got)
	}
}

// What an absent node holds may be taken over, unless it is present after all:
// the hook may be wrong, etcd is not.
func TestTakeoverComparesPresence(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client, Present: func(string) bool { return false }})
	e := endpoint("api", "10.0.0.1")
	e.Node = "n1"
	register(t, s, e)
	put(t, client, keyspace.PresenceKey(own, "n1"), "")
	e.Node = "n2"
	if _, err := s.Register(t.Context(), []registry.Endpoint{e}); registry.KindOf(err) != registry.Conflict {
		t.Errorf("taken over from a node that is present: %v", err)
	}
	if _, err := client.Delete(t.Context(), keyspace.PresenceKey(own, "n1")); err != nil {
		t.Fatal(err)
	}
	register(t, s, e)
}

// Ghosts go only as they were seen, and only while their node is absent.
func TestRemoveGhosts(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client})
	e := endpoint("api", "10.0.0.1")
	e.Node = "n1"
	register(t, s, e)
	ghost := func() []etcd.Ghost {
		resp, err := client.Get(t.Context(), keyspace.Format(e.Key))
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatal(resp, err)
		}
		return []etcd.Ghost{{Key: e.Key, ModRevision: resp.Kvs[0].ModRevision}}
	}
	seen := ghost()
	e.Weight = 7
	register(t, s, e)
	remove := func(g []etcd.Ghost, want int) {
		t.Helper()
		if n, err := s.RemoveGhosts(t.Context(), "n1", g); err != nil || n != want {
			t.Errorf("%d removed, %v, want %d", n, err, want)
		}
	}
	remove(seen, 0)
	put(t, client, keyspace.PresenceKey(own, "n1"), "")
	remove(ghost(), 0)
	if _, err := client.Delete(t.Context(), keyspace.PresenceKey(own, "n1")); err != nil {
		t.Fatal(err)
	}
	remove(ghost(), 1)
	seen[0].Key.Cluster = "c10"
	if _, err := s.RemoveGhosts(t.Context(), "n1", seen); registry.KindOf(err) != registry.Invalid {
		t.Errorf("another cluster is swept: %v", err)
	}
}

// A report stores what differs, keeps a drain, removes what is gone, and leaves
// alone what another node holds; with nothing to do it writes nothing.
func TestReconcile(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client})
	of := func(node, ip string) registry.Endpoint {
		e := endpoint("api", ip)
		e.Node = node
		return e
	}
	theirs, gone, drained := of("n2", "10.0.0.1"), of("n1", "10.0.0.2"), of("n1", "10.0.0.3")
	drained.Health = registry.Draining
	register(t, s, theirs, gone, drained)
	report := []registry.Endpoint{of("n1", "10.0.0.1"), of("n1", "10.0.0.3"), of("n1", "10.0.0.4")}
	remove := []registry.Claim{{Key: gone.Key, Node: "n1"}, {Key: endpoint("other", "10.0.0.9").Key, Node: "n1"}}
	out, err := s.Reconcile(t.Context(), report, remove)
	if err != nil || out.Written != 1 || out.Removed != 1 || len(out.Conflicts) != 1 || registry.KindOf(out.Conflicts[0]) != registry.Conflict {
		t.Fatalf("got %+v, %v", out, err)
	}
	list, err := s.List(t.Context(), registry.Query{})
	if err != nil || len(list.Endpoints) != 3 || !list.Endpoints[1].Equal(drained) {
		t.Errorf("stored are %+v, %v", list.Endpoints, err)
	}
	again, err := s.Reconcile(t.Context(), report, remove)
	if err != nil || again.Revision != out.Revision || again.Written+again.Removed != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// Concurrent calls are each whole or refused, whatever they travel with.
func TestConcurrentWrites(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client, Known: func(k registry.Key) bool { return k.Service == "held" }})
	held := endpoint("held", "10.9.9.9")
	held.Node = "n1"
	register(t, s, held)
	var calls sync.WaitGroup
	for i := range 100 {
		calls.Go(func() {
			mine := endpoint("api", fmt.Sprintf("10.0.1.%d", i))
			theirs := held
			theirs.Node = "n2"
			if i%2 == 0 {
				if _, err := s.Register(t.Context(), []registry.Endpoint{mine}); err != nil {
					t.Error(err)
				}
				return
			}
			if _, err := s.Register(t.Context(), []registry.Endpoint{mine, theirs}); registry.KindOf(err) != registry.Conflict {
				t.Errorf("conflict is %v", err)
			}
		})
	}
	calls.Wait()
	list, err := s.List(t.Context(), registry.Query{Services: []string{"api"}})
	if err != nil || len(list.Endpoints) != 50 {
		t.Errorf("%d endpoints, %v, want 50", len(list.Endpoints), err)
	}
}
