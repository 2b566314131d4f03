package remote

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

const (
	// firstPause is the longest wait before watching again, maxPause the longest
	// after several vain attempts. Each wait is a random part of that, so that the
	// clients of a registrar that went do not come to the next one all at once.
	firstPause = time.Second
	maxPause   = 3 * time.Second
	// maxHeld is how many services a registrar takes digests of.
	maxHeld = 10000
)

// Follow is Watch that outlives the registrar: it watches again when the stream
// ends, at whichever registrar of the same region the target leads to, says what
// it holds, and is told what differs. So fn is called with a Reset once, before
// the first Put; then with the first snapshot and a Synced; and from then on only
// with what has really changed, a Delete for each endpoint that is gone, whether
// the registrar remembers it or not, and a Synced whenever it is in step again.
// While no registrar answers, fn is not called: what was told last stands.
//
// interrupted, if it is not nil, is called with each error that a stream ended
// with, before the next attempt. Follow ends with ctx's error, with fn's, and
// with one that another attempt cannot mend: Invalid, Denied and NotFound among
// them. It keeps every endpoint that it told in memory.
func (r *Registry) Follow(ctx context.Context, q registry.Query, fn func(registry.Event) error, interrupted func(error)) error {
	f := newFollower(q, fn)
	pause := firstPause
	for {
		told := f.messages
		err := r.stream(ctx, f.request(), f.take)
		switch registry.KindOf(err) {
		case registry.Unavailable, registry.SlowReader, registry.Limited:
		default:
			return err
		}
		if f.broken || ctx.Err() != nil {
			return err
		}
		if interrupted != nil {
			interrupted(err)
		}
		if pause = min(2*pause, maxPause); f.messages > told {
			pause = firstPause
		}
		if err := sleep(ctx, rand.N(pause)); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// stream watches with one stream and calls fn with each message.
func (r *Registry) stream(ctx context.Context, req *registryv1.WatchRequest, fn func(*registryv1.WatchResponse) error) error {
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := r.client.Watch(stream)
	if err != nil {
		return fail(ctx, "watch", err)
	}
	// An error of Send is io.EOF; Recv tells what it was.
	if err := watch.Send(req); err != nil && !errors.Is(err, io.EOF) {
		return fail(ctx, "watch", err)
	}
	for {
		m, err := watch.Recv()
		if errors.Is(err, io.EOF) {
			return registry.Errorf(registry.Unavailable, "the registrar ended the watch: watch again")
		}
		if err != nil {
			return fail(ctx, "watch", err)
		}
		if err := fn(m); err != nil {
			return err
		}
	}
}

// endpoints of one service.
type endpoints = map[registry.Key]registry.Endpoint

// follower turns the messages of one stream after the other into events.
type follower struct {
	query    registry.Query
	fn       func(registry.Event) error
	known    map[string]endpoints
	revision string
	messages int
	// begun: the first snapshot is complete.
	begun bool
	// broken: fn returned an error.
	broken bool
	// staged is a snapshot under way, of all services or of those that are in it.
	staged map[string]endpoints
	all    bool
}

func newFollower(q registry.Query, fn func(registry.Event) error) *follower {
	return &follower{query: q, fn: fn, known: map[string]endpoints{}}
}

// request asks for what differs from what is known.
func (f *follower) request() *registryv1.WatchRequest {
	req := &registryv1.WatchRequest{Services: f.query.Services}
	f.staged = nil
	if !f.begun || len(f.known) > maxHeld {
		return req
	}
	req.Held = &registryv1.Held{Revision: f.revision, Digests: make(map[string]uint64, len(f.known))}
	for service, endpoints := range f.known {
		for _, e := range endpoints {
			req.Held.Digests[service] += wire.Digest(e)
		}
	}
	return req
}

// take tells what m means.
func (f *follower) take(m *registryv1.WatchResponse) error {
	f.messages++
	if m.GetReset_() {
		f.staged, f.all = map[string]endpoints{}, true
	}
	if len(m.GetReplaced()) > 0 {
		f.staged, f.all = map[string]endpoints{}, false
	}
	for _, service := range m.GetReplaced() {
		f.staged[service] = endpoints{}
	}
	for _, c := range m.GetChanges() {
		e, err := eventOf(c)
		if err != nil {
			return registry.Errorf(registry.Internal, "read change: %w", err)
		}
		e.Revision = registry.Revision(m.GetRevision())
		if err := f.change(e); err != nil {
			return err
		}
	}
	if m.GetSynced() {
		return f.sync(m.GetRevision())
	}
	if f.staged == nil {
		f.revision = m.GetRevision()
	}
	return nil
}

// change takes one change: into the snapshot that is under way, if there is one.
func (f *follower) change(e registry.Event) error {
	service := e.Endpoint.Service
	if f.staged == nil {
		return f.tell(e)
	}
	if f.staged[service] == nil {
		f.staged[service] = endpoints{}
	}
	f.staged[service][e.Endpoint.Key] = e.Endpoint
	return nil
}

// sync tells in what the snapshot differs from what was known.
func (f *follower) sync(revision string) error {
	if !f.begun {
		if err := f.call(registry.Event{Kind: registry.Reset}); err != nil {
			return err
		}
	}
	rev := registry.Revision(revision)
	for service := range f.known {
		if _, told := f.staged[service]; !told && f.all {
			f.staged[service] = endpoints{}
		}
	}
	for service, staged := range f.staged {
		if err := f.replace(service, staged, rev); err != nil {
			return err
		}
	}
	f.staged, f.all, f.begun, f.revision = nil, false, true, revision
	return f.call(registry.Event{Kind: registry.Synced, Revision: rev})
}

func (f *follower) replace(service string, staged endpoints, rev registry.Revision) error {
	for key, e := range staged {
		if was, known := f.known[service][key]; known && was.Equal(e) {
			continue
		}
		if err := f.tell(registry.Event{Kind: registry.Put, Endpoint: e, Revision: rev}); err != nil {
			return err
		}
	}
	for key := range f.known[service] {
		if _, stays := staged[key]; stays {
			continue
		}
		if err := f.tell(registry.Event{Kind: registry.Delete, Endpoint: registry.Endpoint{Key: key}, Revision: rev}); err != nil {
			return err
		}
	}
	return nil
}

// tell tells of one endpoint and remembers it.
func (f *follower) tell(e registry.Event) error {
	service := e.Endpoint.Service
	if f.known[service] == nil {
		f.known[service] = endpoints{}
	}
	if e.Kind == registry.Put {
		f.known[service][e.Endpoint.Key] = e.Endpoint
	} else {
		delete(f.known[service], e.Endpoint.Key)
	}
	if len(f.known[service]) == 0 {
		delete(f.known, service)
	}
	return f.call(e)
}

func (f *follower) call(e registry.Event) error {
	err := f.fn(e)
	f.broken = err != nil
	return err
}
