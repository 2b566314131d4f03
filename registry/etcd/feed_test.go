package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

const patience = 30 * time.Second

// follower runs a feed or a watch and keeps what it was told.
type follower struct {
	t         *testing.T
	updates   chan etcd.Update
	endpoints map[registry.Key]registry.Endpoint
	mirrors   map[string]etcd.MirrorChange
	resets    int
	synced    bool
	proven    time.Time
}

func newFollower(t *testing.T, run func(ctx context.Context, fn func(etcd.Update) error) error) *follower {
	f := &follower{
		t: t, updates: make(chan etcd.Update),
		endpoints: map[registry.Key]registry.Endpoint{}, mirrors: map[string]etcd.MirrorChange{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, func(u etcd.Update) error {
			select {
			case f.updates <- u:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
	return f
}

func followFeed(t *testing.T, c etcd.FeedConfig) *follower {
	t.Helper()
	c.Log = slog.New(slog.DiscardHandler)
	feed, err := etcd.NewFeed(c)
	if err != nil {
		t.Fatal(err)
	}
	return newFollower(t, feed.Run)
}

// followStore makes a store's watch look like a feed.
func followStore(t *testing.T, s *etcd.Store) *follower {
	return newFollower(t, func(ctx context.Context, fn func(etcd.Update) error) error {
		return s.Watch(ctx, registry.Query{}, func(e registry.Event) error {
			u := etcd.Update{Reset: e.Kind == registry.Reset, Synced: e.Kind == registry.Synced}
			if e.Kind == registry.Put || e.Kind == registry.Delete {
				u.Endpoints = []etcd.EndpointChange{{Delete: e.Kind == registry.Delete, Endpoint: e.Endpoint}}
			}
			return fn(u)
		})
	})
}

func (f *follower) next() etcd.Update {
	f.t.Helper()
	select {
	case u := <-f.updates:
		f.apply(u)
		return u
	case <-time.After(patience):
		f.t.Fatal("told nothing more")
		return etcd.Update{}
	}
}

func (f *follower) apply(u etcd.Update) {
	if u.Reset {
		clear(f.endpoints)
		clear(f.mirrors)
		f.synced = false
		f.resets++
	}
	for _, c := range u.Endpoints {
		if c.Delete {
			delete(f.endpoints, c.Endpoint.Key)
		} else {
			f.endpoints[c.Endpoint.Key] = c.Endpoint
		}
	}
	for _, c := range u.Mirrors {
		if c.Deleted {
			delete(f.mirrors, c.Origin+"/"+string(c.Leaf))
		} else {
			f.mirrors[c.Origin+"/"+string(c.Leaf)] = c
		}
	}
	f.synced = f.synced || u.Synced
	if u.Progress {
		f.proven = u.At
	}
}

// until reads on until ok.
func (f *follower) until(ok func() bool) {
	f.t.Helper()
	for !ok() {
		f.next()
	}
}

func (f *follower) wantEndpoints(want ...registry.Endpoint) {
	f.t.Helper()
	f.until(func() bool {
		got := slices.SortedFunc(maps.Values(f.endpoints), func(a, b registry.Endpoint) int { return a.Key.Compare(b.Key) })
		return f.synced && slices.EqualFunc(got, want, registry.Endpoint.Equal)
	})
}

func (f *follower) wantProven(after time.Time) {
	f.t.Helper()
	f.until(func() bool { return f.proven.After(after) })
}

// foreign returns an endpoint of another region and stores it as its mirror does.
func foreign(t *testing.T, client *clientv3.Client, ip string, opts ...clientv3.OpOption) registry.Endpoint {
	t.Helper()
	e := endpoint("api", ip)
	e.Region = "b"
	put(t, client, keyspace.Format(e.Key), value(t, e), opts...)
	return e
}

func value(t *testing.T, e registry.Endpoint) string {
	t.Helper()
	b, err := wire.Value(e)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func marshal(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFeed(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	s := newStore(t, etcd.Config{Client: client})
	mine := endpoint("api", "10.0.0.1")
	register(t, s, mine)
	lease, err := client.Grant(t.Context(), 600)
	if err != nil {
		t.Fatal(err)
	}
	theirs := foreign(t, client, "10.0.0.1", clientv3.WithLease(lease.ID))
	put(t, client, keyspace.OwnerKey("b"), marshal(t, &mirrorv1.Owner{Token: []byte("t")}))
	put(t, client, keyspace.StateKey("b"), marshal(t, &mirrorv1.State{Phase: mirrorv1.Phase_PHASE_COMPLETE, Checkpoint: 7}))
	put(t, client, keyspace.LiveKey("b"), marshal(t, &mirrorv1.Live{LeaseTtl: 30}), clientv3.WithLease(lease.ID))
	put(t, client, keyspace.PresenceKey(own, "n1"), "x")

	var r reports
	f := followFeed(t, etcd.FeedConfig{Client: client, OnUnparsable: r.onUnparsable})
	if u := f.next(); !u.Reset {
		t.Fatalf("begins with %+v", u)
	}
	f.wantEndpoints(mine, theirs)
	if owner := f.mirrors["b/owner"]; string(owner.Owner.GetToken()) != "t" || owner.LeaseID != 0 {
		t.Errorf("owner: %+v", owner)
	}
	if state := f.mirrors["b/state"]; state.State.GetCheckpoint() != 7 {
		t.Errorf("state: %+v", state)
	}
	if live := f.mirrors["b/live"]; live.Live.GetLeaseTtl() != 30 || live.LeaseID != int64(lease.ID) {
		t.Errorf("live: %+v", live)
	}
	f.wantProven(time.Now())

	// One revision arrives as one update, whatever its size.
	many := make([]registry.Endpoint, 100)
	for i := range many {
		many[i] = endpoint("many", fmt.Sprintf("10.0.1.%d", i))
	}
	register(t, s, many...)
	u := f.next()
	for u.Progress {
		u = f.next()
	}
	if len(u.Endpoints) != len(many) || u.Revision == 0 {
		t.Errorf("update of revision %d holds %d changes, want %d", u.Revision, len(u.Endpoints), len(many))
	}

	// The lease ends: endpoint and live go.
	if _, err := client.Revoke(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	f.wantEndpoints(append([]registry.Endpoint{mine}, many...)...)
	f.until(func() bool { _, ok := f.mirrors["b/live"]; return !ok })
	if f.resets != 1 || len(r.unparsable) != 0 {
		t.Errorf("%d resets, unparsable %q", f.resets, r.unparsable)
	}
}

// What no longer parses is reported and gone; an unreadable state is told
// without one, so that nothing is concluded from it.
func TestFeedReportsUnparsable(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	e := foreign(t, client, "10.0.0.1")
	var r reports
	f := followFeed(t, etcd.FeedConfig{Client: client, OnUnparsable: r.onUnparsable, OnDisagreement: r.onDisagreement})
	f.wantEndpoints(e)

	bad := []string{keyspace.Format(e.Key), keyspace.RegionPrefix("b") + "x", keyspace.MirrorsPrefix + "b/other", keyspace.StateKey("b")}
	for _, key := range bad {
		put(t, client, key, "garbage")
	}
	f.until(func() bool { return len(f.endpoints) == 0 && f.mirrors["b/state"].Origin == "b" })
	if c := f.mirrors["b/state"]; c.State != nil || c.Deleted {
		t.Errorf("state: %+v", c)
	}
	if !slices.Equal(r.unparsable, bad) {
		t.Errorf("reported %q, want %q", r.unparsable, bad)
	}

	moved := e
	moved.IP = netip.MustParseAddr("10.0.0.9")
	put(t, client, keyspace.Format(moved.Key), value(t, e))
	f.wantEndpoints(moved)
	if !slices.Equal(r.disagreements, []string{keyspace.Format(moved.Key)}) {
		t.Errorf("disagreements %q", r.disagreements)
	}
}

func TestFeedReturnsError(t *testing.T) {
	client := etcdtest.Start(t).Client(t)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: client, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for _, when := range []func(etcd.Update) bool{
		func(u etcd.Update) bool { return u.Reset },
		func(u etcd.Update) bool { return u.Synced },
		func(u etcd.Update) bool { return u.Progress },
	} {
		err := feed.Run(t.Context(), func(u etcd.Update) error {
			if when(u) {
				return broken
			}
			return nil
		})
		if err != broken {
			t.Errorf("got %v, want %v", err, broken)
		}
	}
	if _, err := etcd.NewFeed(etcd.FeedConfig{}); err == nil {
		t.Error("a feed without a client is fine")
	}
}

// A short cut of the link costs nothing: the watch goes on, without a reset.
func TestResumesAfterCut(t *testing.T) {
	server := etcdtest.Start(t)
	direct := newStore(t, etcd.Config{Client: server.Client(t)})
	link := newRelay(t, server.Endpoint())
	f := followStore(t, newStore(t, etcd.Config{Client: etcdtest.NewClient(t, link.address())}))
	f.wantEndpoints()
	link.turn("")
	e := endpoint("api", "10.0.0.1")
	register(t, direct, e)
	link.turn(server.Endpoint())
	f.wantEndpoints(e)
	if f.resets != 1 {
		t.Errorf("%d resets, want 1", f.resets)
	}
}

// What was missed is compacted: a reset and the whole, deletes included.
func TestStartsOverAfterCompaction(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	direct := newStore(t, etcd.Config{Client: client})
	gone, kept := endpoint("api", "10.0.0.1"), endpoint("api", "10.0.0.2")
	register(t, direct, gone, kept)
	link := newRelay(t, server.Endpoint())
	followers := []*follower{
		followStore(t, newStore(t, etcd.Config{Client: etcdtest.NewClient(t, link.address())})),
		followFeed(t, etcd.FeedConfig{Client: etcdtest.NewClient(t, link.address())}),
	}
	for _, f := range followers {
		f.wantEndpoints(gone, kept)
	}
	link.turn("")
	if _, _, err := direct.Unregister(t.Context(), []registry.Claim{{Key: gone.Key}}); err != nil {
		t.Fatal(err)
	}
	kept.Weight = 2
	register(t, direct, kept)
	resp, err := client.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
	link.turn(server.Endpoint())
	for _, f := range followers {
		f.until(func() bool { return f.resets == 2 })
		f.wantEndpoints(kept)
	}
}

// An etcd that was replaced shows it by a revision that went back, or by its
// store ID where the revision did not; either way the watch must not wait for a
// future that never comes.
func TestStartsOverWhenEtcdIsReplaced(t *testing.T) {
	for name, ahead := range map[string]int{"Younger": 0, "Older": 100} {
		t.Run(name, func(t *testing.T) {
			first, second := etcdtest.Start(t), etcdtest.Start(t)
			before, after := first.Client(t), second.Client(t)
			for _, c := range []*clientv3.Client{before, after} {
				if _, err := etcd.EnsureStoreID(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			lost := endpoint("api", "10.0.0.1")
			for range 10 {
				lost.Weight++
				register(t, newStore(t, etcd.Config{Client: before}), lost)
			}
			for i := range ahead {
				put(t, after, fmt.Sprint("/elsewhere/", i), "")
			}
			link := newRelay(t, first.Endpoint())
			f := followFeed(t, etcd.FeedConfig{Client: etcdtest.NewClient(t, link.address())})
			f.wantEndpoints(lost)
			f.wantProven(time.Now())
			link.turn(second.Endpoint())
			f.until(func() bool { return f.resets == 2 })
			f.wantEndpoints()
			e := endpoint("api", "10.0.0.2")
			register(t, newStore(t, etcd.Config{Client: after}), e)
			f.wantEndpoints(e)
			f.wantProven(time.Now())
		})
	}
}

// An etcd that crashes or hangs, and comes back, is followed on without a reset.
func TestResumesAfterFault(t *testing.T) {
	for name, fault := range map[string]func(*etcdtest.Process, *clientv3.Client){
		"Crash": func(p *etcdtest.Process, _ *clientv3.Client) {
			p.Kill()
			p.Restart()
		},
		"Hang": func(p *etcdtest.Process, client *clientv3.Client) {
			p.Signal(syscall.SIGSTOP)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := client.Get(ctx, "x"); err == nil {
				t.Error("a stopped etcd answers")
			}
			p.Signal(syscall.SIGCONT)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := etcdtest.StartProcess(t)
			client := p.Client(t)
			s := newStore(t, etcd.Config{Client: client})
			f := followFeed(t, etcd.FeedConfig{Client: client, RequestTimeout: time.Second})
			f.wantProven(time.Now())
			fault(p, client)
			f.wantProven(time.Now())
			e := endpoint("api", "10.0.0.1")
			register(t, s, e)
			f.wantEndpoints(e)
			if f.resets != 1 {
				t.Errorf("%d resets, want 1", f.resets)
			}
		})
	}
}

// A member that hangs with its connections open does not hold the watch: it is
// opened again at another, whichever of the two it was on.
func TestStalledWatchMoves(t *testing.T) {
	server := etcdtest.Start(t)
	client := server.Client(t)
	direct := newStore(t, etcd.Config{Client: client})
	links := []*relay{newRelay(t, server.Endpoint()), newRelay(t, server.Endpoint())}
	f := followFeed(t, etcd.FeedConfig{
		Client:         etcdtest.NewClient(t, links[0].address(), links[1].address()),
		RequestTimeout: 200 * time.Millisecond,
	})
	f.wantEndpoints()
	e := endpoint("api", "10.0.0.1")
	for _, link := range links {
		heal := link.hang()
		t.Cleanup(heal)
		e.Weight++
		register(t, direct, e)
		f.wantEndpoints(e)
		f.wantProven(time.Now())
		heal()
	}
	if f.resets != 1 {
		t.Errorf("%d resets, want 1", f.resets)
	}
}
