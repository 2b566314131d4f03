package xds

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/xds"

	"github.com/aether-federation/aether/registry"
)

// backend answers every call with its name, in a header.
type backend struct {
	healthv1.UnimplementedHealthServer
	name string
	port uint16
}

func (b *backend) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return &healthv1.HealthCheckResponse{}, grpc.SetHeader(ctx, metadata.Pairs("from", b.name))
}

// serveBackend runs a backend until the test ends.
func serveBackend(t *testing.T, name string) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	b := &backend{name: name, port: uint16(l.Addr().(*net.TCPAddr).Port)}
	g := grpc.NewServer()
	healthv1.RegisterHealthServer(g, b)
	var group sync.WaitGroup
	group.Go(func() {
		if err := g.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		g.Stop()
		group.Wait()
	})
	return b
}

func (b *backend) endpoint(n int, region, zone string, change ...func(*registry.Endpoint)) registry.Endpoint {
	return at(region, zone, "127.0.0.1", b.port, append([]func(*registry.Endpoint){instance(n)}, change...)...)
}

// caller is a gRPC client that finds its servers by xDS.
type caller struct {
	t      *testing.T
	health healthv1.HealthClient
}

// dial returns a client in a zone of region a, with nothing but a bootstrap.
func dial(t *testing.T, servers []string, target, zone string) *caller {
	t.Helper()
	b := Bootstrap{Node: "test-" + zone, Locality: registry.Locality{Region: "a", Zone: zone}, Servers: servers}
	text, err := b.JSON()
	fatal(t, err)
	resolver, err := xds.NewXDSResolverWithConfigForTesting(text)
	fatal(t, err)
	conn, err := grpc.NewClient("xds:///"+target, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(t, err)
	t.Cleanup(func() { fatal(t, conn.Close()) })
	return &caller{t: t, health: healthv1.NewHealthClient(conn)}
}

// call returns who answered one call.
func (c *caller) call() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var header metadata.MD
	_, err := c.health.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.Header(&header))
	return strings.Join(header.Get("from"), ","), err
}

// reaches waits until calls are answered by those, each of them, and nobody else.
func (c *caller) reaches(names ...string) {
	c.t.Helper()
	want := strings.Join(names, " ")
	var got map[string]int
	var failure error
	defer func() {
		if c.t.Failed() {
			c.t.Logf("answers came from %v, last error %v", got, failure)
		}
	}()
	eventually(c.t, "calls reach "+want, func() bool {
		got = map[string]int{}
		for range 10 * len(names) {
			from, err := c.call()
			if err != nil {
				failure = err
				return false
			}
			got[from]++
		}
		for _, n := range names {
			if got[n] == 0 {
				return false
			}
		}
		return len(got) == len(names)
	})
}

// steadily calls without pause until stop, which returns how many calls failed.
func (c *caller) steadily() (stop func() (calls int, failed []error)) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	var calls int
	var failed []error
	group.Go(func() {
		for ctx.Err() == nil {
			calls++
			if _, err := c.call(); err != nil {
				failed = append(failed, err)
			}
		}
	})
	return func() (int, []error) {
		cancel()
		group.Wait()
		return calls, failed
	}
}

func TestGRPCFailsOverAndBack(t *testing.T) {
	zone, region, other := serveBackend(t, "zone"), serveBackend(t, "region"), serveBackend(t, "other")
	near, middle, far := zone.endpoint(1, "a", "a1"), region.endpoint(2, "a", "a2"), other.endpoint(3, "b", "b1")
	s := newSource(near, middle, far)
	c := dial(t, []string{run(t, s, "").address}, "api", "a1")
	c.reaches("zone")
	stop := c.steadily()
	drained := func(e registry.Endpoint) registry.Endpoint {
		e.Health = registry.Draining
		return e
	}
	s.put(drained(near))
	c.reaches("region")
	s.put(drained(middle))
	c.reaches("other")
	s.put(near, middle)
	c.reaches("zone")
	s.remove(near)
	c.reaches("region")
	s.put(near)
	c.reaches("zone")
	if calls, failed := stop(); len(failed) > 0 || calls == 0 {
		t.Errorf("%d of %d calls failed, the first with %v", len(failed), calls, failed[0])
	}
}

func TestGRPCServiceThatAppearsAndGoes(t *testing.T) {
	b := serveBackend(t, "b")
	e := b.endpoint(1, "a", "a1")
	s := newSource()
	c := dial(t, []string{run(t, s, "").address}, "api", "a1")
	if _, err := c.call(); err == nil {
		t.Error("a call to nobody was answered")
	} else {
		t.Log(err)
	}
	s.put(e)
	c.reaches("b")
	s.remove(e)
	eventually(t, "calls fail", func() bool {
		_, err := c.call()
		return err != nil
	})
	s.put(e)
	c.reaches("b")
}

// TestGRPCAmbiguousName: such a name does not exist, and the status says which do.
// The client itself waits for 15 s before it says that.
func TestGRPCAmbiguousName(t *testing.T) {
	b := serveBackend(t, "b")
	e := b.endpoint(1, "a", "a1", func(e *registry.Endpoint) { e.Ports = append(e.Ports, registry.Port{Name: "admin", Number: 9}) })
	server := run(t, newSource(e), "")
	dial(t, []string{server.address}, "api:grpc", "a1").reaches("b")
	c := dial(t, []string{server.address}, "api", "a2")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.health.Check(ctx, &healthv1.HealthCheckRequest{})
		ended <- err
	}()
	want := ResourceStatus{Type: "lds", Name: "api", State: Missing, Error: "name: api has several ports: ask for one of api:admin, api:grpc"}
	eventually(t, "the status says which names there are", func() bool {
		clients, err := Inspector{connect(t, server.address)}.Status(t.Context())
		fatal(t, err)
		for _, one := range clients {
			if one.Node == "test-a2" && slices.Contains(one.Resources, want) {
				return true
			}
		}
		return false
	})
	cancel()
	if err := <-ended; err == nil {
		t.Error("a call to an ambiguous name was answered")
	}
}

// TestGRPCKeepsANameThatBecomesAmbiguous: a second port does not break clients that
// are running.
func TestGRPCKeepsANameThatBecomesAmbiguous(t *testing.T) {
	b, next := serveBackend(t, "b"), serveBackend(t, "next")
	admin := func(e *registry.Endpoint) { e.Ports = append(e.Ports, registry.Port{Name: "admin", Number: 9}) }
	s := newSource(b.endpoint(1, "a", "a1"))
	server := run(t, s, "")
	c := dial(t, []string{server.address}, "api", "a1")
	c.reaches("b")
	s.put(b.endpoint(1, "a", "a1", admin))
	eventually(t, "the client was told", func() bool {
		clients, err := Inspector{connect(t, server.address)}.Status(t.Context())
		fatal(t, err)
		return len(clients) == 1 && clients[0].Count(Missing) == 1
	})
	c.reaches("b")
	s.put(next.endpoint(2, "a", "a1", admin))
	c.reaches("b", "next")
}

// TestGRPCOutlivesItsServer: calls go on without one, and a server that comes back
// with the same content sends nothing.
func TestGRPCOutlivesItsServer(t *testing.T) {
	b, late := serveBackend(t, "b"), serveBackend(t, "late")
	s := newSource(b.endpoint(1, "a", "a1"))
	first := run(t, s, "")
	c := dial(t, []string{first.address}, "api", "a1")
	c.reaches("b")
	stop := c.steadily()
	first.stop()
	c.reaches("b")
	second := run(t, s, first.address)
	eventually(t, "the client is back with all that it had", func() bool {
		clients, err := Inspector{connect(t, second.address)}.Status(t.Context())
		fatal(t, err)
		return len(clients) == 1 && clients[0].Count(Acknowledged) == 3 && len(clients[0].Resources) == 3
	})
	for _, kind := range []string{"lds", "cds", "eds"} {
		if n := second.counted("aether_xds_responses_total", kind); n != 0 {
			t.Errorf("%g %s responses to a client that had everything", n, kind)
		}
	}
	s.put(late.endpoint(2, "a", "a1"))
	c.reaches("b", "late")
	if calls, failed := stop(); len(failed) > 0 || calls == 0 {
		t.Errorf("%d of %d calls failed, the first with %v", len(failed), calls, failed[0])
	}
}

// TestGRPCSpill: part of the traffic leaves a zone of which half is ill, and the
// weights of endpoints count.
func TestGRPCSpill(t *testing.T) {
	near, heavy, next := serveBackend(t, "near"), serveBackend(t, "heavy"), serveBackend(t, "next")
	ill := near.endpoint(1, "a", "a1", health(registry.Unhealthy), func(e *registry.Endpoint) { e.Ports[0].Number-- })
	s := newSource(ill, near.endpoint(2, "a", "a1"), next.endpoint(3, "b", "b1"))
	c := dial(t, []string{run(t, s, "").address}, "api", "a1")
	c.reaches("near", "next")
	s.remove(ill)
	c.reaches("near")
	s.put(heavy.endpoint(4, "a", "a1", weight(9)))
	c.reaches("near", "heavy")
	got := map[string]int{}
	for range 1000 {
		from, err := c.call()
		fatal(t, err)
		got[from]++
	}
	// 9 of 10; a client's picks vary at random.
	if got["heavy"] < 800 || got["near"] == 0 {
		t.Errorf("a weight of 9 beside one of 1 gave %v", got)
	}
}
