package xds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/grpcerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds a wait for a condition.
const patience = 30 * time.Second

// source is a registry in memory, with as much of a Watch as a Source needs.
type source struct {
	mu        sync.Mutex
	endpoints map[registry.Key]registry.Endpoint
	watchers  map[chan registry.Event]registry.Query
}

func newSource(endpoints ...registry.Endpoint) *source {
	s := &source{endpoints: map[registry.Key]registry.Endpoint{}, watchers: map[chan registry.Event]registry.Query{}}
	s.put(endpoints...)
	return s
}

func (s *source) put(endpoints ...registry.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range endpoints {
		s.endpoints[e.Key] = e
		s.tell(registry.Event{Kind: registry.Put, Endpoint: e})
	}
}

func (s *source) remove(endpoints ...registry.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range endpoints {
		delete(s.endpoints, e.Key)
		s.tell(registry.Event{Kind: registry.Delete, Endpoint: registry.Endpoint{Key: e.Key}})
	}
}

// tell hands an event to whom it concerns; s.mu is held.
func (s *source) tell(e registry.Event) {
	for w, q := range s.watchers {
		if q.Wants(e.Endpoint.Service) {
			w <- e
		}
	}
}

// Service implements Source.
func (s *source) Service(name string) []*registry.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*registry.Endpoint
	for _, k := range slices.SortedFunc(maps.Keys(s.endpoints), registry.Key.Compare) {
		if k.Service == name {
			e := s.endpoints[k]
			out = append(out, &e)
		}
	}
	return out
}

// watched returns how many watches there are.
func (s *source) watched() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watchers)
}

// Watch implements Source.
func (s *source) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	w := make(chan registry.Event, 10000)
	s.mu.Lock()
	w <- registry.Event{Kind: registry.Reset}
	for _, k := range slices.SortedFunc(maps.Keys(s.endpoints), registry.Key.Compare) {
		if q.Wants(k.Service) {
			w <- registry.Event{Kind: registry.Put, Endpoint: s.endpoints[k]}
		}
	}
	w <- registry.Event{Kind: registry.Synced}
	s.watchers[w] = q
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w:
			if err := fn(e); err != nil {
				return err
			}
		}
	}
}

// running is a server that runs until the test ends.
type running struct {
	*Server
	metrics *prometheus.Registry
	address string
	stop    func()
}

// run serves s at an address, any if it is empty.
func run(t testing.TB, s Source, address string, change ...func(*Config)) *running {
	t.Helper()
	metrics := prometheus.NewRegistry()
	cfg := Config{Source: s, Metrics: NewMetrics(metrics), Home: func() Client { return Client{Locality: registry.Locality{Region: "a"}} }}
	for _, f := range change {
		f(&cfg)
	}
	server, err := New(cfg)
	fatal(t, err)
	l, err := net.Listen("tcp", cmp.Or(address, "127.0.0.1:0"))
	fatal(t, err)
	g := grpc.NewServer(grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return grpcerr.ToStatus(handler(srv, stream))
	}))
	server.Register(g)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := g.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	group.Go(func() {
		if err := server.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		g.Stop()
		group.Wait()
	})
	t.Cleanup(stop)
	return &running{Server: server, metrics: metrics, address: l.Addr().String(), stop: stop}
}

// counted returns the value of a counter or gauge, by the values of its labels in the
// order of their names; 0 if there is none.
func (r *running) counted(name string, labels ...string) float64 {
	families, err := r.metrics.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(have, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}

// at returns an endpoint of service api in a region and zone.
func at(region, zone, ip string, port uint16, change ...func(*registry.Endpoint)) registry.Endpoint {
	e := registry.Endpoint{
		Key: registry.Key{
			Origin: registry.Origin{Region: region, Cluster: "c1"}, Service: "api", Protocol: registry.GRPC,
			IP: netip.MustParseAddr(ip),
		},
		Zone: zone, Ports: []registry.Port{{Name: "grpc", Number: port}},
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func health(h registry.Health) func(*registry.Endpoint) {
	return func(e *registry.Endpoint) { e.Health = h }
}

func service(name string) func(*registry.Endpoint) {
	return func(e *registry.Endpoint) { e.Service = name }
}

func weight(n uint32) func(*registry.Endpoint) { return func(e *registry.Endpoint) { e.Weight = n } }

func instance(n int) func(*registry.Endpoint) {
	return func(e *registry.Endpoint) { e.Instance = fmt.Sprint("i", n) }
}
