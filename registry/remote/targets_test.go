package remote_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// TestListOfRegistrars: one that is not there, one by its name and one by its
// address are one registry, as long as one of them serves.
func TestListOfRegistrars(t *testing.T) {
	server := etcdtest.Start(t)
	one, two := newReplica(t, server), newReplica(t, server)
	one.register(endpointAt("api", 1))
	_, port, err := net.SplitHostPort(one.address)
	fatal(t, err)
	client := connect(t, "127.0.0.1:1,localhost:"+port+", "+two.address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, ended := make(chan registry.Event, 100), make(chan error, 1)
	go func() {
		ended <- client.Follow(ctx, registry.Query{}, func(e registry.Event) error {
			events <- e
			return nil
		}, nil)
	}()
	until := func(n byte) {
		t.Helper()
		for e := range events {
			if e.Kind == registry.Delete {
				t.Fatalf("told of a deletion: %v", e)
			}
			if e.Kind == registry.Put && e.Endpoint.Key == endpointAt("api", n).Key {
				return
			}
		}
	}
	until(1)
	one.stop()
	two.register(endpointAt("api", 2))
	until(2)
	one.start()
	two.stop()
	one.register(endpointAt("api", 3))
	until(3)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("follow: %v", err)
	}
}

func TestListThatIsNone(t *testing.T) {
	for _, target := range []string{"a:1,b", "a:1,", ":1,b:2"} {
		if _, err := remote.New(target); registry.KindOf(err) != registry.Invalid {
			t.Errorf("%q: %v", target, err)
		}
	}
	if r, err := remote.New("registrars:8443", remote.WithFailover()); err != nil {
		t.Error(err)
	} else if err := r.Close(); err != nil {
		t.Error(err)
	}
}
