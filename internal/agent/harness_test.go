package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/internal/agent/state"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience bounds a wait for a condition.
	patience = 60 * time.Second
	// presenceTTL is short, so that heartbeats are seen.
	presenceTTL = 3 * time.Second
)

var origin = registry.Origin{Region: "a", Cluster: "c1"}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// testRegistrar is a registrar at an address of its own, that can be stopped and
// started again.
type testRegistrar struct {
	t       *testing.T
	etcd    *etcdtest.Server
	address string
	stop    func()
}

func startRegistrar(t *testing.T, server *etcdtest.Server) *testRegistrar {
	t.Helper()
	r := &testRegistrar{t: t, etcd: server, address: etcdtest.FreeAddress(t)}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *testRegistrar) start() {
	r.t.Helper()
	t := r.t
	client := r.etcd.Client(t)
	census := registrar.NewCensus(registrar.CensusConfig{Origin: origin})
	store, err := etcd.New(etcd.Config{Client: client, Origin: origin, Present: census.Present, Known: census.Known})
	fatal(t, err)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: client})
	fatal(t, err)
	presence, err := etcd.NewPresence(etcd.PresenceConfig{Client: client, Origin: origin, Name: "r1", TTL: presenceTTL})
	fatal(t, err)
	rpc, err := net.Listen("tcp", r.address)
	fatal(t, err)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	s, err := registrar.New(registrar.Config{
		Origin: origin, Store: store, Feed: etcdfeed.New(feed), GRPC: rpc, HTTP: web, Census: census, Presence: presence,
	})
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var parts errgroup.Group
	parts.Go(func() error { return s.Run(ctx) })
	parts.Go(func() error { return presence.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := parts.Wait(); err != nil {
			t.Errorf("registrar ended with %v", err)
		}
	})
	<-s.View().Ready()
}

func (r *testRegistrar) client() *remote.Registry {
	r.t.Helper()
	c, err := remote.New(r.address)
	fatal(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() }) // some tests have closed it
	return c
}

// observer sees what clients of a registrar see.
type observer struct {
	mu    sync.Mutex
	now   map[registry.Key]registry.Endpoint
	flaps []string
}

// observe follows a registrar until the test ends.
func observe(t *testing.T, r *testRegistrar) *observer {
	t.Helper()
	o := &observer{now: map[registry.Key]registry.Endpoint{}}
	ctx, cancel := context.WithCancel(context.Background())
	client := r.client()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = client.Follow(ctx, registry.Query{}, o.take, nil) // ends with ctx
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return o
}

func (o *observer) take(e registry.Event) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e.Kind {
	case registry.Put:
		o.now[e.Endpoint.Key] = e.Endpoint
		o.flaps = append(o.flaps, fmt.Sprint(e.Endpoint.Service, " ", e.Endpoint.Health))
	case registry.Delete:
		delete(o.now, e.Endpoint.Key)
		o.flaps = append(o.flaps, e.Endpoint.Service+" is gone")
	}
	return nil
}

// healths of all services, as in "api healthy, db draining".
func (o *observer) healths() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return healthsOf(o.now)
}

// history is all that changed since the last call.
func (o *observer) history() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.flaps
	o.flaps = nil
	return h
}

func (o *observer) await(t *testing.T, healths string) {
	t.Helper()
	deadline, tick := time.NewTimer(patience), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for o.healths() != healths {
		select {
		case <-deadline.C:
			t.Fatalf("clients see %q, want %q", o.healths(), healths)
		case <-tick.C:
		}
	}
}

// testNode is an agent's node with a directory of files and one of state.
type testNode struct {
	t     *testing.T
	dir   string
	state string
	name  string
	leave Leave
	r     *testRegistrar
	node  *Node
	end   func() error
}

func newNode(t *testing.T, r *testRegistrar) *testNode {
	t.Helper()
	return &testNode{t: t, dir: t.TempDir(), state: t.TempDir(), name: "n1", r: r}
}

// services writes the file of services.
func (n *testNode) services(text string) {
	n.t.Helper()
	path := filepath.Join(n.dir, "s.yaml")
	fatal(n.t, os.WriteFile(path+".new", []byte(text), 0o600))
	fatal(n.t, os.Rename(path+".new", path))
}

// start starts the node; end ends it as SIGTERM does. The test's end leaves nothing
// running.
func (n *testNode) start() *testNode {
	n.t.Helper()
	dir, err := state.Open(n.state)
	fatal(n.t, err)
	client, err := remote.New(n.r.address)
	fatal(n.t, err)
	n.node, err = NewNode(NodeConfig{
		Name: n.name, Registrar: client, Files: []string{n.dir}, State: dir, Leave: n.leave,
		Defaults: source.Defaults{Zone: "a1"},
	})
	fatal(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.node.Run(ctx) }()
	n.end = sync.OnceValue(func() error {
		cancel()
		err := <-ended
		fatal(n.t, errors.Join(client.Close(), dir.Close()))
		return err
	})
	n.t.Cleanup(func() { _ = n.end() }) // the registrar may be gone by now
	return n
}

// backend is an HTTP server that is well or not.
type backend struct {
	t       *testing.T
	address string
	ill     atomic.Bool
	// cut, if it is not nil, makes all that share it ill, but for those that are back.
	cut  *atomic.Bool
	back atomic.Bool
	stop func()
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	return newBackendCutBy(t, nil)
}

func newBackendCutBy(t *testing.T, cut *atomic.Bool) *backend {
	t.Helper()
	b := &backend{t: t, address: etcdtest.FreeAddress(t), cut: cut}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *backend) start() {
	b.t.Helper()
	l, err := net.Listen("tcp", b.address)
	fatal(b.t, err)
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if b.ill.Load() || b.cut != nil && b.cut.Load() && !b.back.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // ends by Close
	}()
	b.stop = sync.OnceFunc(func() {
		_ = s.Close()
		<-ended
	})
}

// probed is a service in a file that is asked often.
func (b *backend) probed(name string) string {
	host, port, err := net.SplitHostPort(b.address)
	fatal(b.t, err)
	return fmt.Sprintf("- {name: %s, protocol: http, ip: %s, ports: {http: %s}, check: {type: http, interval: 200ms, rise: 1, fall: 2}}\n", name, host, port)
}

// key of that service.
func (b *backend) key(service string) registry.Key {
	return registry.Key{Service: service, Protocol: registry.HTTP, IP: netip.MustParseAddrPort(b.address).Addr()}
}
