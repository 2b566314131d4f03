package agent

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/aether-federation/aether/internal/agent/catalog"
	"github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry"
)

// TestBrokenAgentLeavesNothingUndone: when a part fails the agent ends, and what it
// registered stays for the one that is started next.
func TestBrokenAgentLeavesNothingUndone(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, n := observe(t, r), newNode(t, r)
	n.services(oneService)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	client := r.client()
	a, err := New(Config{
		Node:    NodeConfig{Name: "n1", Registrar: client, Files: []string{n.dir}},
		Catalog: catalog.Config{Registrar: client}, Listen: Listeners{HTTP: []net.Listener{l}},
	})
	fatal(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(context.Background()) }()
	o.await(t, "a healthy")
	eventually(t, "the agent knows its own", func() bool { return a.Status().View.Known && a.Status().View.Region == "a" })
	fatal(t, l.Close())
	if err := <-ended; err == nil {
		t.Error("the agent ended without a word")
	}
	wantHistory(t, o, "a healthy")
}

func TestAgentStopsInOrder(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, n := observe(t, r), newNode(t, r)
	n.services(oneService)
	client := r.client()
	a, err := New(Config{
		Node: NodeConfig{Name: "n1", Registrar: client, Files: []string{n.dir}}, Catalog: catalog.Config{Registrar: client},
	})
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	o.await(t, "a healthy")
	cancel()
	fatal(t, <-ended)
	o.await(t, "")
}

// TestAgentServesXDS: gRPC clients and Envoy get of an agent what they would of its
// registrar, nearest first as from the agent's own place, and go on getting it while
// no registrar answers.
func TestAgentServesXDS(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	client := r.client()
	for ip, zone := range map[string]string{"10.0.0.1": "z1", "10.0.0.2": "z2"} {
		_, err := client.Register(t.Context(), []registry.Endpoint{{
			Key:   registry.Key{Service: "hello", Protocol: registry.GRPC, IP: netip.MustParseAddr(ip)},
			Ports: []registry.Port{{Name: "grpc", Number: 9000}}, Zone: zone,
		}})
		fatal(t, err)
	}
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	fatal(t, err)
	a, err := New(Config{
		Node:    NodeConfig{Name: "n1", Registrar: client, Defaults: source.Defaults{Zone: "z2"}},
		Catalog: catalog.Config{Registrar: client}, Listen: Listeners{Both: []net.Listener{l}},
	})
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(t, err)
	wantShown := func() {
		t.Helper()
		shown, err := xds.Inspector{Conn: conn}.Show(t.Context(), "hello", xds.Client{})
		fatal(t, err)
		var zones []string
		for _, g := range shown.Localities {
			zones = append(zones, g.Region+"/"+g.Zone)
		}
		if want := []string{"a/z2", "a/z1"}; !slices.Equal(zones, want) {
			t.Errorf("the assignment's zones are %v, want %v", zones, want)
		}
	}
	wantShown()
	r.stop()
	wantShown()
	fatal(t, conn.Close())
	cancel()
	<-ended // it could not say goodbye
}
