package agent

import (
	"context"
	"net"
	"testing"

	"github.com/aether-federation/aether/internal/agent/catalog"
	"github.com/aether-federation/aether/internal/etcdtest"
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
