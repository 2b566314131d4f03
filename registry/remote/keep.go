package remote

import (
	"context"
	"errors"
	"io"
	"iter"
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
	// askEvery is how often a follower asks whether it is in step, and
	// answerTimeout how long the registrar may take to say so before another is
	// tried.
	askEvery      = 5 * time.Second
	answerTimeout = 10 * time.Second
)

// Held is what a follower holds, kept by whoever follows.
type Held interface {
	// Revision that was told last; empty: nothing is held.
	Revision() registry.Revision
	// Services that have an endpoint.
	Services() iter.Seq[string]
	// Endpoints of one service.
	Endpoints(service string) iter.Seq[*registry.Endpoint]
}

// Following says what to follow and whom to tell.
type Following struct {
	Query registry.Query
	// Held shows what Tell was told, and what was held before the first call, of
	// the services that Query asks for: from it follows what has to be told.
	Held Held
	// Tell takes one step of the registrar's view, whole. It belongs to the
	// receiver.
	Tell func(Step) error
	// Proven, if it is not nil, is called with moments at which what was told so
	// far was all that the registrar had: every few seconds while one answers.
	Proven func(at time.Time)
	// Interrupted, if it is not nil, is called with each error that a stream ended
	// with, before the next attempt.
	Interrupted func(error)
}

// Step is what has changed from one state of what is followed to the next. What is
// held never becomes void: there is no reset.
type Step struct {
	// Changes, one for each key.
	Changes []Change
	// Revision that is reached with them.
	Revision registry.Revision
	// Synced: a stream has brought the follower into step.
	Synced bool
}

// Change is a Put, or a Delete of which only the Key is set.
type Change struct {
	Kind     registry.EventKind
	Endpoint *registry.Endpoint
}

// Keep keeps what f holds equal to what the registrar shows, at whichever
// registrar of the same region the target leads to, until ctx ends: it says what
// is held, and tells what differs. While no registrar answers, what was told last
// stands. Keep ends with ctx's error, with Tell's, and with one that another
// attempt cannot mend: Invalid, Denied and NotFound among them. Its functions are
// called from one goroutine.
func (r *Registry) Keep(ctx context.Context, f Following) error {
	k := &keeper{Following: f}
	pause := firstPause
	for {
		told := k.messages
		err := r.keepOnce(ctx, k)
		switch registry.KindOf(err) {
		case registry.Unavailable, registry.SlowReader, registry.Limited:
		default:
			return err
		}
		if k.broken || ctx.Err() != nil {
			return err
		}
		if k.Interrupted != nil {
			k.Interrupted(err)
		}
		if pause = min(2*pause, maxPause); k.messages > told {
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

// received is what came of one Recv.
type received struct {
	m   *registryv1.WatchResponse
	err error
}

// keepOnce follows one stream, and asks now and then whether it is in step.
func (r *Registry) keepOnce(ctx context.Context, k *keeper) error {
	stream, cancel := context.WithCancel(ctx)
	watch, err := r.client.Watch(stream)
	if err != nil {
		cancel()
		return fail(ctx, "watch", err)
	}
	messages := make(chan received)
	go receive(stream, watch, messages)
	defer func() {
		cancel()
		for range messages { // until receive has ended
		}
	}()
	ask := time.NewTicker(askEvery)
	defer ask.Stop()
	// An error of Send is io.EOF; Recv tells what it was.
	if err := watch.Send(k.begin(time.Now())); err != nil && !errors.Is(err, io.EOF) {
		return fail(ctx, "watch", err)
	}
	for {
		select {
		case got, open := <-messages:
			switch {
			case !open:
				return fail(ctx, "watch", ctx.Err())
			case got.err != nil:
				return ended(ctx, got.err)
			}
			if err := k.take(got.m); err != nil {
				return err
			}
		case now := <-ask.C:
			switch {
			case k.asked.IsZero():
				k.asked = now
				if err := watch.Send(k.again()); err != nil && !errors.Is(err, io.EOF) {
					return fail(ctx, "watch", err)
				}
			case k.silent(now):
				return registry.Errorf(registry.Unavailable, "the registrar has not answered for %v: watch again", answerTimeout)
			}
		}
	}
}

// receive hands on what a stream brings until it ends, or ctx does.
func receive(ctx context.Context, watch registryv1.RegistryService_WatchClient, out chan<- received) {
	defer close(out)
	for {
		m, err := watch.Recv()
		select {
		case out <- received{m, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// ended returns the error of a stream as a registry's.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, io.EOF) {
		return registry.Errorf(registry.Unavailable, "the registrar ended the watch: watch again")
	}
	return fail(ctx, "watch", err)
}

// staged is a snapshot under way.
type staged = map[registry.Key]*registry.Endpoint

// keeper turns the messages of one stream after the other into steps.
type keeper struct {
	Following
	messages int
	// broken: Tell returned an error.
	broken bool
	// asked is when the question was sent that was not answered yet, heard when
	// the last message came.
	asked, heard time.Time
	// inStep: this stream has told all once.
	inStep bool
	// staged is a snapshot under way, of all services or of those that are in it.
	staged map[string]staged
	all    bool
	// step is what was told since the last step that was whole.
	step []Change
}

// begin asks for what differs from what is held.
func (k *keeper) begin(now time.Time) *registryv1.WatchRequest {
	k.asked, k.heard, k.inStep, k.staged, k.all, k.step = now, now, false, nil, false, nil
	req := &registryv1.WatchRequest{Services: k.Query.Services}
	revision := k.Held.Revision()
	if revision == "" {
		return req
	}
	held := &registryv1.Held{Revision: string(revision), Digests: map[string]uint64{}}
	for service := range k.Held.Services() {
		if len(held.Digests) == maxHeld {
			return req
		}
		held.Digests[service] = 0
		for e := range k.Held.Endpoints(service) {
			held.Digests[service] += wire.Digest(*e)
		}
	}
	req.Held = held
	return req
}

// again asks to be told once everything was sent.
func (k *keeper) again() *registryv1.WatchRequest {
	return &registryv1.WatchRequest{Services: k.Query.Services, Held: &registryv1.Held{}}
}

// silent reports whether the registrar owes an answer, and says nothing.
func (k *keeper) silent(now time.Time) bool {
	return now.Sub(k.asked) > answerTimeout && now.Sub(k.heard) > answerTimeout
}

// take tells what m means, once its step is whole: its last message has the
// revision.
func (k *keeper) take(m *registryv1.WatchResponse) error {
	k.messages++
	k.heard = time.Now()
	if m.GetReset_() {
		k.staged, k.all = map[string]staged{}, true
	}
	if len(m.GetReplaced()) > 0 {
		k.staged, k.all = map[string]staged{}, false
	}
	for _, service := range m.GetReplaced() {
		k.staged[service] = staged{}
	}
	for _, c := range m.GetChanges() {
		e, err := eventOf(c)
		if err != nil {
			return registry.Errorf(registry.Internal, "read change: %w", err)
		}
		endpoint := e.Endpoint
		k.change(Change{Kind: e.Kind, Endpoint: &endpoint})
	}
	rev := registry.Revision(m.GetRevision())
	if m.GetSynced() {
		return k.sync(rev)
	}
	if k.staged == nil && rev != "" && len(k.step) > 0 {
		return k.tell(rev, false)
	}
	return nil
}

// change takes one change: into the snapshot that is under way, if there is one.
func (k *keeper) change(e Change) {
	service := e.Endpoint.Service
	if k.staged == nil {
		k.step = append(k.step, e)
		return
	}
	if k.staged[service] == nil {
		k.staged[service] = staged{}
	}
	k.staged[service][e.Endpoint.Key] = e.Endpoint
}

// sync tells in what the snapshot, if there was one, differs from what is held.
func (k *keeper) sync(rev registry.Revision) error {
	if k.all {
		for service := range k.Held.Services() {
			if _, told := k.staged[service]; !told {
				k.staged[service] = staged{}
			}
		}
	}
	for service, staged := range k.staged {
		k.replace(service, staged)
	}
	k.staged, k.all = nil, false
	synced := !k.inStep
	k.inStep = true
	if err := k.tell(rev, synced); err != nil {
		return err
	}
	asked := k.asked
	k.asked = time.Time{}
	if k.Proven != nil && !asked.IsZero() {
		k.Proven(asked)
	}
	return nil
}

// replace adds to the step what makes a service what was staged.
func (k *keeper) replace(service string, fresh staged) {
	for was := range k.Held.Endpoints(service) {
		e, stays := fresh[was.Key]
		switch {
		case !stays:
			k.step = append(k.step, Change{Kind: registry.Delete, Endpoint: &registry.Endpoint{Key: was.Key}})
		case e.Equal(*was):
			delete(fresh, was.Key)
		}
	}
	for _, e := range fresh {
		k.step = append(k.step, Change{Kind: registry.Put, Endpoint: e})
	}
}

// tell hands on the step, if there is anything to tell.
func (k *keeper) tell(rev registry.Revision, synced bool) error {
	step := Step{Changes: k.step, Revision: rev, Synced: synced}
	k.step = nil
	if len(step.Changes) == 0 && !synced {
		return nil
	}
	err := k.Tell(step)
	k.broken = err != nil
	return err
}
