package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry"
)

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 3 * time.Second
	// burstEvents are enough for one step of a sink. busyEvents at once say that more
	// are under way: they are waited for, for burstWait at most, because what a step
	// costs depends more on how many services it changes than on how often.
	burstEvents = 1024
	busyEvents  = 32
	burstWait   = 20 * time.Millisecond
)

var (
	// errRestored: the store is not the one that was followed so far.
	errRestored = errors.New("etcd was restored or replaced")
	// errStalled: etcd answers, but the watch does not tell what happens.
	errStalled = errors.New("the watch is silent though etcd moves on")
)

// sink is told what a follower sees, by one goroutine at a time. An error ends
// the follower, which returns it.
type sink interface {
	// reset voids all that was told; pages and a synced follow.
	reset() error
	page(kvs []*mvccpb.KeyValue) error
	synced(rev int64) error
	// events of one or more responses: whole revisions, in order, the last of them rev.
	events(events []*clientv3.Event, rev int64) error
	// current says that what was told equals the store as it was at the time at.
	current(rev int64, at time.Time) error
}

// stopError carries the error of a sink through the follower.
type stopError struct{ error }

func (e stopError) Unwrap() error { return e.error }

func stop(err error) error {
	if err == nil {
		return nil
	}
	return stopError{err}
}

// follower lists a range at a revision and watches from the next, for good. It
// resumes where it was after a fault, and starts over, with a reset, once the
// revisions that it lacks are compacted or the store turns out to be another.
type follower struct {
	client  *clientv3.Client
	span    span
	timeout time.Duration
	log     *slog.Logger
	sink    sink

	// seen is the revision up to which everything was told; 0: start over.
	seen atomic.Int64
	// store and term are what the last answer said of the store.
	store string
	term  uint64
	// pending proofs await that the watch has caught up with them.
	pending []proof
	// silent counts the proofs since the watch was last heard.
	silent int
	// begun: a snapshot has been told, whole.
	begun   bool
	backoff time.Duration
}

// run returns the sink's error, or ctx's, or Denied if etcd refuses the first
// list; it goes on after every other error.
func (f *follower) run(ctx context.Context) error {
	for {
		err := f.attempt(ctx)
		if s, ok := errors.AsType[stopError](err); ok {
			return s.error
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !f.begun && kindOf(err) == registry.Denied {
			return translate("follow endpoints", f.client, err)
		}
		f.note(err)
		if err := f.pause(ctx); err != nil {
			return err
		}
	}
}

// attempt follows until something fails.
func (f *follower) attempt(ctx context.Context) error {
	p, err := f.prove(ctx)
	if err != nil {
		return err
	}
	if f.seen.Load() == 0 {
		f.store, f.term = p.store, p.term
		if err := f.snapshot(ctx); err != nil {
			return err
		}
	} else if err := f.check(p); err != nil {
		return err
	}
	return f.watch(ctx)
}

// note tells what ended an attempt and decides how the next begins.
func (f *follower) note(err error) {
	if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, errRestored) {
		f.log.Warn("start over with a snapshot", "prefix", f.span.begin, "revision", f.seen.Load(), "reason", err)
		f.seen.Store(0)
		return
	}
	f.log.Warn("watch ended, trying again", "prefix", f.span.begin, "revision", f.seen.Load(), "error", err)
}

// pause waits for the next attempt: longer each time, until one succeeds.
func (f *follower) pause(ctx context.Context) error {
	f.backoff = min(max(2*f.backoff, minBackoff), maxBackoff)
	t := time.NewTimer(f.backoff/2 + rand.N(f.backoff/2))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// snapshot tells the whole range. The reset comes once there is an answer, so
// that a store that does not answer voids nothing.
func (f *follower) snapshot(ctx context.Context) error {
	reset := false
	rev, err := pages(ctx, f.client, f.span, f.timeout, func(kvs []*mvccpb.KeyValue) error {
		if !reset {
			reset = true
			if err := f.sink.reset(); err != nil {
				return stop(err)
			}
		}
		return stop(f.sink.page(kvs))
	})
	if err != nil {
		return err
	}
	f.seen.Store(rev)
	f.begun = true
	return stop(f.sink.synced(rev))
}

// watch tells what happens after seen. Where etcd does not confirm the watch in
// time it tries again at once, as often as there are endpoints: the client takes
// them in turns, and one that hangs must not hold the watch.
func (f *follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for range f.client.Endpoints() {
		if opened, err := f.watchOnce(ctx); opened {
			return err
		}
	}
	return errStalled
}

// watchOnce reports whether the watch was opened, and if so what ended it. The
// watch has a stream of its own, so that progress asked for is this watch's.
func (f *follower) watchOnce(ctx context.Context) (opened bool, err error) {
	w := clientv3.NewWatcher(f.client)
	defer w.Close()
	responses, opened := f.open(ctx, w)
	if !opened {
		return false, nil
	}
	proofs := make(chan proof)
	f.pending, f.silent = nil, 0
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.proveAgain(ctx, w, proofs) })
	g.Go(func() error { return f.consume(ctx, responses, proofs) })
	return true, g.Wait()
}

func (f *follower) open(ctx context.Context, w clientv3.Watcher) (clientv3.WatchChan, bool) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(f.timeout, cancel)
	responses := w.Watch(ctx, f.span.begin, clientv3.WithRange(f.span.end), clientv3.WithRev(f.seen.Load()+1))
	return responses, late.Stop()
}

func (f *follower) consume(ctx context.Context, responses clientv3.WatchChan, proofs <-chan proof) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p := <-proofs:
			if err := f.check(p); err != nil {
				return err
			}
			if err := f.meet(p); err != nil {
				return err
			}
		case resp, ok := <-responses:
			if !ok {
				return fmt.Errorf("watch %s: %w", f.span.begin, errors.Join(ctx.Err(), errors.New("etcd closed the stream")))
			}
			if err := f.burst(ctx, resp, responses); err != nil {
				return err
			}
		}
	}
}

// burst takes resp and what comes with it as one step of the sink: one that is slower
// than etcd has less to do that way than for each transaction by itself.
func (f *follower) burst(ctx context.Context, resp clientv3.WatchResponse, responses clientv3.WatchChan) error {
	var events []*clientv3.Event
	var late <-chan time.Time
	for plain(resp) {
		events = append(events, resp.Events...)
		if len(events) >= burstEvents {
			return f.events(events)
		}
		if late == nil && len(events) >= busyEvents {
			late = time.After(burstWait)
		}
		var ok bool
		if resp, ok = next(ctx, responses, late); !ok {
			return f.events(events) // the next read finds out if the channel is closed
		}
	}
	if err := f.events(events); err != nil {
		return err
	}
	return f.response(resp)
}

// next returns a response that is there already or, if late is set, comes before that.
func next(ctx context.Context, responses clientv3.WatchChan, late <-chan time.Time) (resp clientv3.WatchResponse, ok bool) {
	if late == nil {
		select {
		case resp, ok = <-responses:
		default:
		}
		return resp, ok
	}
	select {
	case resp, ok = <-responses:
	case <-late:
	case <-ctx.Done():
	}
	return resp, ok
}

// plain reports whether resp carries changes and nothing else.
func plain(resp clientv3.WatchResponse) bool { return len(resp.Events) > 0 && resp.Err() == nil }

func (f *follower) events(events []*clientv3.Event) error {
	if len(events) == 0 {
		return nil
	}
	f.silent = 0
	rev := events[len(events)-1].Kv.ModRevision
	f.seen.Store(rev)
	return stop(f.sink.events(events, rev))
}

// response takes one that is not plain.
func (f *follower) response(resp clientv3.WatchResponse) error {
	f.silent = 0
	if err := resp.Err(); err != nil {
		return fmt.Errorf("watch %s: %w", f.span.begin, err)
	}
	if resp.IsProgressNotify() {
		return f.progress(resp.Header.Revision)
	}
	return nil
}
