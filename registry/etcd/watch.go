package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry"
)

// Watch implements [registry.Registry]. It goes on through faults of etcd, with
// a Reset and a new snapshot after a compaction that it missed or when etcd was
// replaced. A slow fn is not cut off: it gets the latest of each key.
func (s *Store) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := newQueue()
	f := &follower{
		client: s.client, span: s.span(), timeout: s.timeout, log: s.decoder.log,
		sink: &watchSink{store: s, query: q, queue: events},
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.run(gctx) })
	told, err := deliver(gctx, events, fn)
	cancel()
	if ended := g.Wait(); !told {
		return ended
	}
	return err
}

// deliver calls fn with what arrives. It reports whether the error is fn's.
func deliver(ctx context.Context, q *queue, fn func(registry.Event) error) (bool, error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-q.wake:
		}
		for _, e := range q.take() {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			if err := fn(e); err != nil {
				return true, err
			}
		}
	}
}

// watchSink turns what a follower sees into a watcher's events.
type watchSink struct {
	store *Store
	query registry.Query
	queue *queue
}

func (w *watchSink) reset() error {
	w.queue.put(registry.Event{Kind: registry.Reset})
	return nil
}

func (w *watchSink) page(kvs []*mvccpb.KeyValue) error {
	events := make([]registry.Event, 0, len(kvs))
	for _, kv := range kvs {
		if e, ok := w.store.wanted(w.query, kv); ok {
			events = append(events, registry.Event{Kind: registry.Put, Endpoint: e})
		}
	}
	w.queue.put(events...)
	return nil
}

func (w *watchSink) synced(rev int64) error {
	w.queue.put(registry.Event{Kind: registry.Synced, Revision: revision(rev)})
	return nil
}

func (w *watchSink) events(events []*clientv3.Event, _ int64) error {
	out := make([]registry.Event, 0, len(events))
	for _, ev := range events {
		change, ok := w.store.decoder.change(ev, w.query.Wants)
		if !ok {
			continue
		}
		e := registry.Event{Kind: registry.Put, Endpoint: change.Endpoint, Revision: revision(ev.Kv.ModRevision)}
		if change.Delete {
			e.Kind = registry.Delete
		}
		out = append(out, e)
	}
	w.queue.put(out...)
	return nil
}

func (w *watchSink) current(int64, time.Time) error { return nil }
