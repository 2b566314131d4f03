package registrytest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/aether-federation/aether/registry"
)

// watcher follows a registry and keeps what it is told.
type watcher struct {
	s      *suite
	events chan registry.Event
	known  map[registry.Key]registry.Endpoint
	// synced: no snapshot is under way.
	synced bool
}

// watch starts a watcher, which ends with the test.
func (s *suite) watch(services ...string) *watcher {
	w := &watcher{s: s, events: make(chan registry.Event), known: map[registry.Key]registry.Endpoint{}}
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan error, 1)
	go func() {
		done <- s.Registry.Watch(ctx, registry.Query{Services: services}, func(e registry.Event) error {
			select {
			case w.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	s.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.Errorf("watch ended with %v, want %v", err, context.Canceled)
		}
	})
	return w
}

// next returns the next event and checks that it may come now.
func (w *watcher) next() registry.Event {
	w.s.Helper()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case e := <-w.events:
		w.apply(e)
		return e
	case <-t.C:
		w.s.Fatal("watch told nothing more")
		return registry.Event{}
	}
}

func (w *watcher) apply(e registry.Event) {
	w.s.Helper()
	switch e.Kind {
	case registry.Reset:
		clear(w.known)
		w.synced = false
	case registry.Put:
		w.known[e.Endpoint.Key] = e.Endpoint
	case registry.Delete:
		delete(w.known, e.Endpoint.Key)
		if !(registry.Endpoint{Key: e.Endpoint.Key}).Equal(e.Endpoint) {
			w.s.Errorf("delete carries more than a key: %+v", e.Endpoint)
		}
	case registry.Synced:
		w.synced = true
		if e.Revision == "" {
			w.s.Error("synced without a revision")
		}
	default:
		w.s.Errorf("event of kind %v", e.Kind)
	}
}

// wantSnapshot checks that a reset, the endpoints in any order, and a synced
// come next.
func (w *watcher) wantSnapshot(want ...registry.Endpoint) {
	w.s.Helper()
	if e := w.next(); e.Kind != registry.Reset {
		w.s.Fatalf("watch begins with %s, want reset", e.Kind)
	}
	for e := w.next(); e.Kind != registry.Synced; e = w.next() {
		if e.Kind != registry.Put {
			w.s.Fatalf("%s within a snapshot", e.Kind)
		}
	}
	if diff := difference(want, w.endpoints()); diff != "" {
		w.s.Fatalf("snapshot differs (-want +got):\n%s", diff)
	}
}

// wantEndpoints reads on until the watcher knows exactly these.
func (w *watcher) wantEndpoints(want ...registry.Endpoint) {
	w.s.Helper()
	for !w.synced || difference(want, w.endpoints()) != "" {
		w.next()
	}
}

// wantChange checks the next event.
func (w *watcher) wantChange(kind registry.EventKind, want registry.Endpoint) {
	w.s.Helper()
	e := w.next()
	if kind == registry.Delete {
		want = registry.Endpoint{Key: want.Key}
	}
	if e.Kind != kind || !e.Endpoint.Equal(want) {
		w.s.Fatalf("got %s %+v, want %s %+v", e.Kind, e.Endpoint, kind, want)
	}
}

func (w *watcher) endpoints() []registry.Endpoint {
	return slices.SortedFunc(maps.Values(w.known), func(a, b registry.Endpoint) int { return a.Key.Compare(b.Key) })
}

func (s *suite) watchChanges() {
	empty := s.watch()
	empty.wantSnapshot()
	a, b := s.endpoint("api", "10.0.0.1"), s.endpoint("api", "10.0.0.2")
	s.register(a)
	empty.wantChange(registry.Put, a)

	w := s.watch()
	w.wantSnapshot(a)
	for _, weight := range []uint32{2, 3} {
		a.Weight = weight
		s.register(a)
		w.wantChange(registry.Put, a)
		empty.wantChange(registry.Put, a)
	}
	s.register(b)
	w.wantChange(registry.Put, b)
	s.unregister(1, claim(a, ""))
	w.wantChange(registry.Delete, a)
	s.register(a)
	w.wantChange(registry.Put, a)
}

func (s *suite) watchFilters() {
	a, ab, b := s.endpoint("a", "10.0.0.1"), s.endpoint("a.b", "10.0.0.1"), s.endpoint("b", "10.0.0.1")
	s.register(a, ab, b)
	s.wantList([]registry.Endpoint{a, ab, b})
	w := s.watch("a", "b")
	w.wantSnapshot(a, b)
	ab.Weight = 2
	s.register(ab)
	s.unregister(1, claim(ab, ""))
	b.Weight = 2
	s.register(b)
	w.wantChange(registry.Put, b)
}

func (s *suite) watchError() {
	broken := errors.New("broken")
	calls := 0
	err := s.Registry.Watch(s.ctx, registry.Query{}, func(e registry.Event) error {
		calls++
		if e.Kind == registry.Synced {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) || calls != 2 {
		s.Errorf("got %v after %d calls, want %v after a reset and a synced", err, calls, broken)
	}
}

func (s *suite) watchContext() {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	err := s.Registry.Watch(ctx, registry.Query{}, func(e registry.Event) error {
		if ctx.Err() != nil {
			s.Errorf("%s after the context ended", e.Kind)
		}
		if e.Kind == registry.Synced {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		s.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// A watcher that does not read does not keep others from reading.
func (s *suite) watchSeveral() {
	s.watch() // stuck in its first event
	one, two := s.watch(), s.watch("api")
	one.wantSnapshot()
	two.wantSnapshot()
	many := s.numbered("api", 100)
	s.register(many...)
	one.wantEndpoints(many...)
	two.wantEndpoints(many...)
}

// A watcher that starts amid changes ends with the same as List.
func (s *suite) watchConverges() {
	w := s.watch()
	var last []registry.Endpoint
	for i := range 20 {
		e := s.endpoint(fmt.Sprintf("s%d", i%3), "10.0.0.1")
		e.Weight = uint32(i + 1)
		s.register(e)
		if i%5 == 4 {
			s.unregister(1, claim(e, ""))
		}
	}
	final := s.numbered("final", 3)
	s.register(final...)
	s.eventually(func() bool {
		last = s.list().Endpoints // one answer: a second one may be of later
		listed := slices.DeleteFunc(slices.Clone(last), func(e registry.Endpoint) bool { return e.Service != "final" })
		return difference(final, listed) == ""
	}, func() string { return fmt.Sprintf("the last changes are not listed: %v", last) })
	w.wantEndpoints(last...)
}
