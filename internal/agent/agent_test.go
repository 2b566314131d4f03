package agent

import (
	"context"
	"net"
	"testing"

	"github.com/aether-federation/aether/internal/agent/catalog"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry/remote"
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

// TestAgentServesXDS: from its own view, to clients that it takes to be where it is,
// and while its registrar is away.
func TestAgentServesXDS(t *testing.T) {
	t.Parallel()
	r := startRegistrar(t, etcdtest.Start(t))
	o, n := observe(t, r), newNode(t, r)
	n.services("services:\n- {name: a, protocol: tcp, ip: 10.0.0.2, ports: {sql: 5432}}\n")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	client := r.client()
	a, err := New(Config{
		Node:    NodeConfig{Name: "n1", Registrar: client, Files: []string{n.dir}},
		Catalog: catalog.Config{Registrar: client}, Listen: Listeners{GRPC: []net.Listener{l}},
	})
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	o.await(t, "a healthy")
	asked, err := remote.New(l.Addr().String())
	fatal(t, err)
	i := xds.Inspector{Conn: asked.Conn()}
	shows := func() bool {
		shown, err := i.Show(t.Context(), "a", xds.Client{})
		return err == nil && len(shown.Localities) == 1 && shown.Localities[0].Region == "a" && shown.Localities[0].Priority == 0
	}
	eventually(t, "the agent shows what is there", shows)
	r.stop()
	if !shows() {
		t.Error("without its registrar the agent shows something else")
	}
	r.start()
	cancel()
	fatal(t, <-ended)
	fatal(t, asked.Close())
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
