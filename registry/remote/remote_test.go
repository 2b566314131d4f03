package remote_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/registrytest"
	"github.com/aether-federation/aether/registry/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance runs the suite against registrars of two clusters. Each test
// has a region of its own, in one etcd.
func TestConformance(t *testing.T) {
	server := etcdtest.Start(t)
	var regions atomic.Int64
	registrytest.Run(t, func(t *testing.T) registrytest.Fixture {
		region := fmt.Sprintf("r%d", regions.Add(1))
		own, neighbor := registry.Origin{Region: region, Cluster: "c1"}, registry.Origin{Region: region, Cluster: "c10"}
		return registrytest.Fixture{
			Registry: connect(t, serve(t, server, own)), Origin: own,
			Neighbor: connect(t, serve(t, server, neighbor)), NeighborOrigin: neighbor,
		}
	})
}

// serve runs a registrar until the test ends and returns its address.
func serve(t *testing.T, server *etcdtest.Server, origin registry.Origin) string {
	t.Helper()
	client := server.Client(t)
	store, err := etcd.New(etcd.Config{Client: client, Origin: origin})
	fatal(t, err)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: client})
	fatal(t, err)
	cfg := registrar.Config{Origin: origin, Store: store, Feed: etcdfeed.New(feed), GRPC: listen(t), HTTP: listen(t)}
	r, err := registrar.New(cfg)
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		fatal(t, <-ended)
	})
	<-r.View().Ready()
	return cfg.GRPC.Addr().String()
}

func connect(t *testing.T, target string) *remote.Registry {
	t.Helper()
	r, err := remote.New(target)
	fatal(t, err)
	t.Cleanup(func() { fatal(t, r.Close()) })
	return r
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	return l
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRegistrarThatIsNotThere(t *testing.T) {
	l := listen(t)
	fatal(t, l.Close())
	r := connect(t, l.Addr().String())
	_, err := r.List(t.Context(), registry.Query{})
	if registry.KindOf(err) != registry.Unavailable {
		t.Errorf("list: %v is %v", err, registry.KindOf(err))
	}
	err = r.Watch(t.Context(), registry.Query{}, func(registry.Event) error { return nil })
	if registry.KindOf(err) != registry.Unavailable {
		t.Errorf("watch: %v is %v", err, registry.KindOf(err))
	}
}

func TestLimitsAreCheckedBeforeSending(t *testing.T) {
	r := connect(t, "127.0.0.1:1")
	if _, err := r.Register(t.Context(), make([]registry.Endpoint, 10001)); registry.KindOf(err) != registry.Invalid {
		t.Errorf("register too many: %v", err)
	}
	if _, err := r.Register(t.Context(), make([]registry.Endpoint, 1)); registry.KindOf(err) != registry.Invalid {
		t.Errorf("register without an address: %v", err)
	}
	if _, _, err := r.Unregister(t.Context(), make([]registry.Claim, 1)); registry.KindOf(err) != registry.Invalid {
		t.Errorf("unregister without an address: %v", err)
	}
}

func TestStatusCalls(t *testing.T) {
	r := connect(t, serve(t, etcdtest.Start(t), registry.Origin{Region: "a", Cluster: "c1"}))
	regions, err := r.Regions(t.Context())
	fatal(t, err)
	if len(regions) != 1 || regions[0].GetRegion() != "a" || regions[0].GetState() != "own" {
		t.Errorf("regions: %v", regions)
	}
	services, revision, err := r.Services(t.Context())
	fatal(t, err)
	if listing, err := r.Listing(t.Context(), registry.Query{}); err != nil || revision == "" || revision != listing.Revision {
		t.Errorf("services at revision %q, endpoints at %q, %v", revision, listing.Revision, err)
	}
	peers, err := r.Peers(t.Context())
	fatal(t, err)
	if len(services) != 0 || len(peers) != 0 {
		t.Errorf("services %v, peers %v of an empty registry", services, peers)
	}
}

func TestRequestThatIsTooLargeIsInvalid(t *testing.T) {
	r := connect(t, serve(t, etcdtest.Start(t), registry.Origin{Region: "a", Cluster: "c1"}))
	endpoints := make([]registry.Endpoint, 1200)
	for i := range endpoints {
		endpoints[i] = registry.Endpoint{
			Key:      registry.Key{Service: "api", Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
			Metadata: map[string]string{"pad": strings.Repeat("x", 15<<10)},
		}
	}
	if _, err := r.Register(t.Context(), endpoints); registry.KindOf(err) != registry.Invalid {
		t.Errorf("register: %v is %v", err, registry.KindOf(err))
	}
}
