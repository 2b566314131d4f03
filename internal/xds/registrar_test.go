package xds_test

import (
	"context"
	"net"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/remote"
)

// TestBesideTheRegistry: a registrar serves xDS at its own port, to whom its access
// control lets read, and ends its streams when it stops.
func TestBesideTheRegistry(t *testing.T) {
	ca := certtest.New(t)
	ca.Server("registrar")
	ca.Client("reader")
	ca.Client("stranger")
	policy, err := access.NewPolicy([]access.Rule{{Role: access.Reader, Identities: []string{"cn:reader"}}})
	must(t, err)
	address := start(t, ca, policy)

	dial := func(name string) xds.Inspector {
		r, err := remote.New(address, remote.WithTLS(ca.TLS(name)))
		must(t, err)
		t.Cleanup(func() { must(t, r.Close()) })
		return xds.Inspector{Conn: r.Conn()}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	shown, err := dial("reader").Show(ctx, "api", xds.Client{})
	must(t, err)
	if len(shown.Localities) != 0 {
		t.Errorf("shown: %+v", shown)
	}
	// Its stream is open when the registrar stops, which has all the time it wants.
	open, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(ca.TLS("reader"))))
	must(t, err)
	t.Cleanup(func() { must(t, open.Close()) })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(open).StreamAggregatedResources(context.WithoutCancel(ctx))
	must(t, err)
	must(t, stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "n"}, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}))
	_, err = stream.Recv()
	must(t, err)
	if _, err := dial("reader").Status(ctx); err != nil {
		t.Errorf("status for a reader: %v", err)
	}
	if _, err := dial("stranger").Show(ctx, "api", xds.Client{}); registry.KindOf(err) != registry.Denied {
		t.Errorf("a stranger is shown an assignment: %v", err)
	}
	if _, err := dial("stranger").Status(ctx); registry.KindOf(err) != registry.Denied {
		t.Errorf("a stranger is shown the status: %v", err)
	}
}

// start runs a registrar with xDS until the test ends and returns its address.
func start(t *testing.T, ca *certtest.Authority, policy *access.Policy) string {
	t.Helper()
	origin := registry.Origin{Region: "a", Cluster: "c1"}
	client := etcdtest.Start(t).Client(t)
	store, err := etcd.New(etcd.Config{Client: client, Origin: origin})
	must(t, err)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: client})
	must(t, err)
	cfg := config.Default()
	cfg.TLSCert, cfg.TLSKey, cfg.TLSClientCA = ca.Cert("registrar"), ca.Key("registrar"), ca.CA()
	secure, _, err := cfg.ListenerTLS(nil)
	must(t, err)
	l, web := listen(t), listen(t)
	r, err := registrar.New(registrar.Config{
		Origin: origin, Store: store, Feed: etcdfeed.New(feed), GRPC: l, HTTP: web, TLS: secure, Access: policy, StopTimeout: time.Hour,
	})
	must(t, err)
	x, err := xds.New(xds.Config{Source: r.View(), Home: func() xds.Client { return xds.Client{Locality: registry.Locality{Region: "a"}} }})
	must(t, err)
	x.Register(r)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- r.Run(ctx) }()
	go func() { ended <- x.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
		must(t, <-ended)
	})
	return l.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
