package remote

import (
	"context"
	"errors"
	"io"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

// Watch implements [registry.Registry]. While fn runs nothing more is read; the
// registrar cuts off a watcher that falls too far behind, with SlowReader. A
// connection that breaks, and a registrar that stops, end the watch with
// Unavailable; Follow goes on.
func (r *Registry) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	return r.stream(ctx, &registryv1.WatchRequest{Services: q.Services}, func(m *registryv1.WatchResponse) error {
		return tell(m, fn)
	})
}

// tell calls fn with what m says.
func tell(m *registryv1.WatchResponse, fn func(registry.Event) error) error {
	rev := registry.Revision(m.GetRevision())
	if m.GetReset_() {
		if err := fn(registry.Event{Kind: registry.Reset}); err != nil {
			return err
		}
	}
	for _, c := range m.GetChanges() {
		e, err := eventOf(c)
		if err != nil {
			return registry.Errorf(registry.Internal, "read change: %w", err)
		}
		e.Revision = rev
		if err := fn(e); err != nil {
			return err
		}
	}
	if m.GetSynced() {
		return fn(registry.Event{Kind: registry.Synced, Revision: rev})
	}
	return nil
}

func eventOf(c *registryv1.Change) (registry.Event, error) {
	if gone := c.GetDelete(); gone != nil {
		key, err := wire.KeyFromProto(gone)
		return registry.Event{Kind: registry.Delete, Endpoint: registry.Endpoint{Key: key}}, err
	}
	e, err := wire.FromProto(c.GetPut())
	return registry.Event{Kind: registry.Put, Endpoint: e}, err
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
		if err != nil {
			return ended(ctx, err)
		}
		if err := fn(m); err != nil {
			return err
		}
	}
}
