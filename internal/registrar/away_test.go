package registrar_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
)

// TestEtcdThatHangsOrDies: reads go on, with the age of what they show; writes
// end by themselves, with an error that says to repeat them; streams stay, and
// tell what happens once etcd is back.
func TestEtcdThatHangsOrDies(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ begin, end func(*etcdtest.Process) }{
		"hangs": {
			begin: func(p *etcdtest.Process) { p.Signal(syscall.SIGSTOP) },
			end:   func(p *etcdtest.Process) { p.Signal(syscall.SIGCONT) },
		},
		"is killed": {begin: (*etcdtest.Process).Kill, end: (*etcdtest.Process).Restart},
	} {
		t.Run(name, func(t *testing.T) {
			process := etcdtest.StartProcess(t)
			n := start(t, process, origin, func(c *registrar.Config) { c.WriteTimeout, c.BlindAfter = time.Second, time.Second }).ready()
			n.register(plainEndpoint("a", 1))
			events := n.watch()
			if e := events(registry.Put); e.Endpoint.IP != plainEndpoint("a", 1).IP {
				t.Fatalf("watched %v", e)
			}
			fault.begin(process)
			_, err := n.client.Register(t.Context(), []registry.Endpoint{plainEndpoint("a", 2)})
			if registry.KindOf(err) != registry.Unavailable {
				t.Errorf("register: %v", err)
			}
			_, _, err = n.client.Unregister(t.Context(), []registry.Claim{{Key: plainEndpoint("a", 1).Key}})
			if registry.KindOf(err) != registry.Unavailable {
				t.Errorf("unregister: %v", err)
			}
			eventually(t, "reads show their age", func() bool {
				l, err := n.client.Listing(t.Context(), registry.Query{})
				return err == nil && len(l.Endpoints) == 1 && l.Age[origin.Region] > time.Second
			})
			n.want("GET", "/readyz", "", 200)
			fault.end(process)
			eventually(t, "writes work again", func() bool {
				_, err := n.client.Register(t.Context(), []registry.Endpoint{plainEndpoint("a", 3)})
				return err == nil
			})
			for events(registry.Put).Endpoint.IP != plainEndpoint("a", 3).IP {
			}
		})
	}
}

// watch follows everything until the test ends; what it returns waits for the next
// event of a kind.
func (n *node) watch() func(registry.EventKind) registry.Event {
	n.t.Helper()
	events, ended := make(chan registry.Event, 100), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- n.client.Watch(ctx, registry.Query{}, func(e registry.Event) error {
			events <- e
			return nil
		})
	}()
	n.t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func(kind registry.EventKind) registry.Event {
		n.t.Helper()
		for {
			select {
			case e := <-events:
				if e.Kind == kind {
					return e
				}
			case <-time.After(patience):
				n.t.Fatalf("no %s was told", kind)
			}
		}
	}
}
