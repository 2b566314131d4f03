package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/registrytest"
	"github.com/aether-federation/aether/registry/remote"
)

// following is a registry whose Watch is Follow.
type following struct{ *remote.Registry }

func (f following) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	return f.Follow(ctx, q, fn, nil)
}

func TestFollowConforms(t *testing.T) {
	server := etcdtest.Start(t)
	var regions atomic.Int64
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		region := fmt.Sprintf("r%d", regions.Add(1))
		own, neighbor := registry.Origin{Region: region, Cluster: "c1"}, registry.Origin{Region: region, Cluster: "c10"}
		return registrytest.Fixture{
			Registry: following{connect(t, serve(t, server, own))}, Origin: own,
			Neighbor: connect(t, serve(t, server, neighbor)), NeighborOrigin: neighbor,
		}
	})
}

// replica is a registrar that a test stops and starts at one address.
type replica struct {
	t       *testing.T
	server  *etcdtest.Server
	store   *etcd.Store
	address string
	stop    func()
}

func newReplica(t *testing.T, server *etcdtest.Server) *replica {
	t.Helper()
	store, err := etcd.New(etcd.Config{Client: server.Client(t), Origin: registry.Origin{Region: "a", Cluster: "c1"}})
	fatal(t, err)
	r := &replica{t: t, server: server, store: store, address: etcdtest.FreeAddress(t)}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *replica) start() {
	r.t.Helper()
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: r.store.Client()})
	fatal(r.t, err)
	l, err := net.Listen("tcp", r.address)
	fatal(r.t, err)
	s, err := registrar.New(registrar.Config{
		Origin: registry.Origin{Region: "a", Cluster: "c1"}, Store: r.store, Feed: etcdfeed.New(feed), GRPC: l, HTTP: listen(r.t),
	})
	fatal(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("the registrar ended with %v", err)
		}
		r.stop = func() {}
	}
	<-s.View().Ready()
}

func (r *replica) register(endpoints ...registry.Endpoint) {
	r.t.Helper()
	_, err := r.store.Register(r.t.Context(), endpoints)
	fatal(r.t, err)
}

func (r *replica) unregister(e registry.Endpoint) {
	r.t.Helper()
	_, _, err := r.store.Unregister(r.t.Context(), []registry.Claim{{Key: e.Key}})
	fatal(r.t, err)
}

func endpointAt(service string, n byte) registry.Endpoint {
	return registry.Endpoint{Key: registry.Key{
		Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: service, Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, 0, n}),
	}}
}

// TestFollowSeesWhatChangedWhileNobodyServed: over a restart of its registrar a
// watcher sees no endpoint vanish that did not, and each that did.
func TestFollowSeesWhatChangedWhileNobodyServed(t *testing.T) {
	r := newReplica(t, etcdtest.Start(t))
	stays, goes, moves, other := endpointAt("api", 1), endpointAt("api", 2), endpointAt("web", 3), endpointAt("idle", 4)
	r.register(stays, goes, moves, other)
	events, ended := make(chan registry.Event, 100), make(chan error, 1)
	interrupted := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	client := connect(t, r.address)
	go func() {
		ended <- client.Follow(ctx, registry.Query{}, func(e registry.Event) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func(error) { interrupted <- struct{}{} })
	}()
	known := map[registry.Key]registry.Endpoint{}
	for told := 0; len(known) < 4; told++ {
		if e := <-events; e.Kind == registry.Put {
			known[e.Endpoint.Key] = e.Endpoint
		} else if e.Kind != registry.Reset && e.Kind != registry.Synced {
			t.Fatalf("%v before the first snapshot is complete", e)
		}
	}
	r.stop()
	<-interrupted
	r.unregister(goes)
	moves.Weight = 7
	r.register(moves)
	r.start()
	var told []string
	for len(told) < 2 {
		if e := <-events; e.Kind != registry.Synced {
			told = append(told, fmt.Sprintf("%s %s %d", e.Kind, e.Endpoint.IP, e.Endpoint.Weight))
		}
	}
	want := map[string]bool{"delete 10.0.0.2 0": true, "put 10.0.0.3 7": true}
	for _, event := range told {
		if !want[event] {
			t.Errorf("told %q", event)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("follow ended with %v", err)
	}
}

// TestFollowEndsWithWhatCannotBeMended: its own error, and the registrar's no.
func TestFollowEndsWithWhatCannotBeMended(t *testing.T) {
	r := newReplica(t, etcdtest.Start(t))
	client := connect(t, r.address)
	mine := registry.Errorf(registry.Unavailable, "mine")
	if err := client.Follow(t.Context(), registry.Query{}, func(registry.Event) error { return mine }, nil); !errors.Is(err, mine) {
		t.Errorf("follow ended with %v", err)
	}
	err := client.Follow(t.Context(), registry.Query{Services: []string{"NO"}}, func(registry.Event) error { return nil }, nil)
	if registry.KindOf(err) != registry.Invalid {
		t.Errorf("follow ended with %v", err)
	}
}
