package local

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// known is a catalog that a test fills.
type known struct {
	*view.View
	ix    view.Index
	ready chan struct{}
}

func (k *known) Ready() <-chan struct{} { return k.ready }

func (k *known) Ages() map[string]time.Duration {
	return map[string]time.Duration{"a": 3 * time.Second}
}

func (k *known) Regions() *registryv1.ListRegionsResponse {
	return &registryv1.ListRegionsResponse{Regions: []*registryv1.Region{{Region: "a", State: "stale"}}}
}

func (k *known) Mark(h http.Header) { h.Set("Age", "3") }

func (k *known) put(e registry.Endpoint) {
	k.Publish(k.ix, k.ix.Merge(e.Service, []view.Change{{Kind: registry.Put, Endpoint: &e}}), 1)
}

// noted is a node that notes what it is asked.
type noted struct {
	mu         sync.Mutex
	registered []registry.Endpoint
	ttl        time.Duration
	claims     []registry.Claim
	health     registry.Health
}

func (n *noted) Register(_ context.Context, endpoints []registry.Endpoint, ttl time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.registered, n.ttl = endpoints, ttl
	return nil
}

func (n *noted) Unregister(_ context.Context, claims []registry.Claim) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.claims = claims
	return len(claims), nil
}

func (n *noted) SetHealth(_ context.Context, claims []registry.Claim, health registry.Health) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.health = health
	if claims[0].IP == netip.MustParseAddr("10.9.9.9") {
		return registry.Errorf(registry.NotFound, "no such endpoint")
	}
	return nil
}

func at(service, ip string) registry.Endpoint {
	return registry.Endpoint{Key: registry.Key{
		Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: service, Protocol: registry.HTTP, IP: netip.MustParseAddr(ip),
	}}
}

// agent is a running local API.
type agent struct {
	*known
	node   *noted
	socket string
	tcp    string
	client *http.Client
	rpc    *remote.Registry
}

func start(t *testing.T) *agent {
	t.Helper()
	a := &agent{known: &known{View: view.New(view.Config{}), ix: view.Index{}, ready: make(chan struct{})}, node: &noted{}}
	a.socket = filepath.Join(t.TempDir(), "agent.sock")
	unix, err := net.Listen("unix", a.socket)
	fatal(t, err)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	grpc, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	a.tcp = web.Addr().String()
	s, err := New(Config{Catalog: a, View: a.View, Node: a.node, Both: []net.Listener{unix}, HTTP: []net.Listener{web}, GRPC: []net.Listener{grpc}})
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended, published := make(chan error, 1), make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	go func() { published <- a.View.Run(ctx) }()
	a.rpc, err = remote.New("unix://" + a.socket)
	fatal(t, err)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", a.socket)
	}
	a.client = &http.Client{Transport: &http.Transport{DialContext: dial}}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the API ended with %v", err)
		}
		<-published
		a.rpc.Close()
		a.client.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
	})
	return a
}

// call asks by the socket.
func (a *agent) call(t *testing.T, method, path, body string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://agent"+path, strings.NewReader(body))
	fatal(t, err)
	answer, err := a.client.Do(req)
	fatal(t, err)
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	fatal(t, err)
	return answer.StatusCode, string(bytes.TrimSpace(got)), answer.Header
}

func TestOneSocketSpeaksBoth(t *testing.T) {
	a := start(t)
	if code, got, _ := a.call(t, "GET", "/readyz", ""); code != 503 || !strings.Contains(got, "no registrar") {
		t.Errorf("readyz: %d %s", code, got)
	}
	if code, got, _ := a.call(t, "GET", "/v1/services", ""); code != 503 || !strings.Contains(got, "knows nothing yet") {
		t.Errorf("services: %d %s", code, got)
	}
	if _, _, err := a.rpc.Services(t.Context()); registry.KindOf(err) != registry.Unavailable {
		t.Errorf("services: %v", err)
	}
	a.put(at("api", "10.0.0.1"))
	close(a.ready)
	if code, _, _ := a.call(t, "GET", "/readyz", ""); code != 200 {
		t.Errorf("readyz: %d", code)
	}
	code, got, header := a.call(t, "GET", "/v1/services/api/endpoints", "")
	if code != 200 || !strings.Contains(got, `"ip":"10.0.0.1"`) || !strings.Contains(got, `"age":"3s"`) || header.Get("Age") != "3" {
		t.Errorf("endpoints: %d %s %v", code, got, header)
	}
	services, _, err := a.rpc.Services(t.Context())
	if err != nil || len(services) != 1 {
		t.Errorf("services: %v, %v", services, err)
	}
	regions, err := a.rpc.Regions(t.Context())
	if err != nil || regions[0].GetState() != "stale" {
		t.Errorf("regions: %v, %v", regions, err)
	}
	listing, err := a.rpc.Listing(t.Context(), registry.Query{Services: []string{"api"}})
	if err != nil || listing.Age["a"] != 3*time.Second {
		t.Errorf("listing: %v, %v", listing, err)
	}
	if code, _, _ := a.call(t, "GET", "/nowhere", ""); code != 404 {
		t.Errorf("a path that is not there: %d", code)
	}
}

func TestWatchersOfTheAgent(t *testing.T) {
	a := start(t)
	close(a.ready)
	ctx, cancel := context.WithCancel(t.Context())
	events, ended := make(chan registry.Event, 10), make(chan error, 1)
	go func() {
		ended <- a.rpc.Follow(ctx, registry.Query{Services: []string{"api"}}, func(e registry.Event) error { events <- e; return nil }, nil)
	}()
	for e := range events {
		if e.Kind == registry.Synced {
			break
		}
	}
	a.put(at("web", "10.0.0.9"))
	a.put(at("api", "10.0.0.1"))
	if e := <-events; e.Kind != registry.Put || e.Endpoint.Service != "api" {
		t.Errorf("told of %v", e)
	}
	cancel()
	<-ended
}

func TestWritesGoToTheNode(t *testing.T) {
	a := start(t)
	const path = "/v1/services/api/protocols/http/endpoints/10.0.0.1"
	if code, got, _ := a.call(t, "PUT", path+"?ttl=30s", `{"ports":[{"name":"http","number":80}]}`); code != 200 {
		t.Errorf("put: %d %s", code, got)
	}
	if n := a.node; len(n.registered) != 1 || n.ttl != 30*time.Second || n.registered[0].Service != "api" {
		t.Errorf("registered %v for %v", n.registered, n.ttl)
	}
	for _, ttl := range []string{"x", "-1s", "1ms"} {
		if code, got, _ := a.call(t, "PUT", path+"?ttl="+ttl, ""); code != 400 || !strings.Contains(got, `"field":"ttl"`) {
			t.Errorf("put with ttl %s: %d %s", ttl, code, got)
		}
	}
	if code, got, _ := a.call(t, "DELETE", path, ""); code != 200 || got != `{"revision":"","removed":1}` {
		t.Errorf("delete: %d %s", code, got)
	}
	if _, err := a.rpc.Register(t.Context(), []registry.Endpoint{at("web", "10.0.0.2")}); err != nil || a.node.ttl != 0 {
		t.Errorf("register: %v", err)
	}
	claim := func(ip string) []registry.Claim { return []registry.Claim{{Key: at("web", ip).Key}} }
	if removed, _, err := a.rpc.Unregister(t.Context(), claim("10.0.0.2")); err != nil || removed != 1 {
		t.Errorf("unregister: %d, %v", removed, err)
	}
	if _, err := a.rpc.SetHealth(t.Context(), claim("10.0.0.2"), registry.Draining); err != nil || a.node.health != registry.Draining {
		t.Errorf("set health: %v", err)
	}
	if _, err := a.rpc.SetHealth(t.Context(), claim("10.9.9.9"), registry.Healthy); registry.KindOf(err) != registry.NotFound {
		t.Errorf("set health of none: %v", err)
	}
	if _, err := a.rpc.Report(t.Context(), remote.Report{Node: "n1", Empty: true}); err == nil {
		t.Error("an agent takes a report")
	}
}

// TestConnectionThatSaysNothing: it keeps neither the others nor the stop.
func TestConnectionThatSaysNothing(t *testing.T) {
	a := start(t)
	silent, err := net.Dial("unix", a.socket)
	fatal(t, err)
	defer silent.Close()
	if code, _, _ := a.call(t, "GET", "/livez", ""); code != 200 {
		t.Errorf("livez: %d", code)
	}
	answer, err := http.Get("http://" + a.tcp + "/livez")
	fatal(t, err)
	answer.Body.Close()
}
