package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/agent/catalog"
	"github.com/aether-federation/aether/internal/agent/local"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// spoken is a registrar that says one thing and then no more.
type spoken struct{}

func (spoken) Keep(ctx context.Context, f remote.Following) error {
	e := registry.Endpoint{Key: registry.Key{
		Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: "api", Protocol: registry.HTTP, IP: netip.MustParseAddr("10.0.0.1"),
	}}
	if err := f.Tell(remote.Step{Changes: []remote.Change{{Kind: registry.Put, Endpoint: &e}}, Revision: "x-1-7", Synced: true}); err != nil {
		return err
	}
	f.Proven(time.Now())
	<-ctx.Done()
	return ctx.Err()
}

func (spoken) Regions(context.Context) ([]*registryv1.Region, error) {
	return []*registryv1.Region{{Region: "a", State: "own", Endpoints: 1}}, nil
}

// TestCommandsAskAnAgent: what asks a registrar asks an agent by its socket.
func TestCommandsAskAnAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	c, err := catalog.New(catalog.Config{Registrar: spoken{}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := local.New(local.Config{Catalog: c, View: c.View, Both: []net.Listener{l}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	known, served := make(chan error, 1), make(chan error, 1)
	go func() { known <- c.Run(ctx) }()
	go func() { served <- s.Run(ctx) }()
	<-c.Ready()
	for command, want := range map[string]string{"services": "api", "endpoints api": "10.0.0.1", "regions": "a"} {
		var out, errOut bytes.Buffer
		args := append(strings.Fields(command), "--registrar", "unix://"+socket)
		if code := run(t.Context(), args, streams{out: &out, err: &errOut}); code != exitFine || !strings.Contains(out.String(), want) {
			t.Errorf("%s: exit code %d, %q, %q", command, code, out.String(), errOut.String())
		}
	}
	for command, want := range map[string]int{"status": exitFine, "mirror status": exitFailed, "sweep --dry-run": exitFailed} {
		var out, errOut bytes.Buffer
		args := append(strings.Fields(command), "--registrar", "unix://"+socket)
		code := run(t.Context(), args, streams{out: &out, err: &errOut})
		if said := out.String() + errOut.String(); code != want || !strings.Contains(said, "a registrar") || strings.Contains(said, "No mirrors") {
			t.Errorf("%s: exit code %d, %q, want %d and that a registrar knows", command, code, said, want)
		}
	}
	cancel()
	if err := <-known; !errors.Is(err, context.Canceled) {
		t.Errorf("the catalog ended with %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("the API ended with %v", err)
	}
}
