package etcd

import (
	"context"
	"sync"
	"time"

	"github.com/aether-federation/aether/registry"
)

const (
	// maxInFlight transactions of one store at once: enough to keep etcd busy
	// while it syncs its log, few enough for calls to gather meanwhile.
	maxInFlight = 8
	// maxWaiting writes of one store; more are refused.
	maxWaiting = 64 << 10
)

// errBusy: the queue of writes is full.
var errBusy = registry.Errorf(registry.Unavailable, "%d writes wait for etcd already: try again in a moment", maxWaiting)

// pending is one batch that waits for its transaction, or for its end.
type pending struct {
	ctx     context.Context
	batch   []write
	partial bool
	since   time.Time
	// lead gets the transaction's batches, this one first, if this batch's
	// caller is to commit it.
	lead chan []*pending
	done chan result
}

func (p *pending) size() int {
	n := 0
	for _, w := range p.batch {
		n += w.size()
	}
	return n
}

// result is how a batch ended.
type result struct {
	written, removed int
	revision         int64
	// conflicts of a partial batch, by index.
	conflicts map[int]error
	err       error
}

// group lets batches that arrive while transactions are under way travel
// together in the next one. It has no goroutine of its own: the caller of the
// first batch of a transaction commits it. A key is in one transaction at a time.
type group struct {
	commit func([]*pending)
	// began is told of each transaction.
	began func(writes int, waited time.Duration)

	mu       sync.Mutex
	queue    []*pending
	waiting  int // writes in queue
	inFlight int
	busy     map[string]bool // keys in flight
}

func newGroup(commit func([]*pending)) *group {
	return &group{commit: commit, began: func(int, time.Duration) {}, busy: map[string]bool{}}
}

// submit returns once batch is durable or refused, or when ctx ends; whether the
// batch is written is not known then, unless it was still waiting.
func (g *group) submit(ctx context.Context, batch []write, partial bool) (result, error) {
	p := &pending{ctx: ctx, batch: batch, partial: partial, since: time.Now(), lead: make(chan []*pending, 1), done: make(chan result, 1)}
	if err := g.enqueue(p); err != nil {
		return result{}, err
	}
	select {
	case members := <-p.lead:
		g.run(members)
	case r := <-p.done:
		return r, r.err
	case <-ctx.Done():
		if !g.leave(p) {
			return result{}, ctx.Err()
		}
	}
	r := <-p.done
	return r, r.err
}

func (g *group) enqueue(p *pending) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting+len(p.batch) > maxWaiting {
		return errBusy
	}
	g.queue = append(g.queue, p)
	g.waiting += len(p.batch)
	g.dispatch()
	return nil
}

// leave gives p up. A batch whose caller was to commit others too does that
// first: then it reports true.
func (g *group) leave(p *pending) (led bool) {
	g.mu.Lock()
	for i, q := range g.queue {
		if q == p {
			g.queue = append(g.queue[:i:i], g.queue[i+1:]...)
			g.waiting -= len(p.batch)
			break
		}
	}
	g.mu.Unlock()
	select {
	case members := <-p.lead:
		g.run(members)
		return true
	default:
		return false
	}
}

func (g *group) run(members []*pending) {
	g.commit(members)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range members {
		for _, w := range p.batch {
			delete(g.busy, w.key)
		}
	}
	g.inFlight--
	g.dispatch()
}

// dispatch begins transactions while there may be more; g.mu is held.
func (g *group) dispatch() {
	for g.inFlight < maxInFlight {
		members := g.gather()
		if len(members) == 0 {
			return
		}
		g.inFlight++
		members[0].lead <- members
	}
}

// gather takes out of the queue what fits one transaction, in order; what has a
// key in flight stays, and so does what comes after it with one of its keys.
func (g *group) gather() []*pending {
	var members, rest []*pending
	var held map[string]bool // keys of what stays
	n, size := 0, 0
	for i, p := range g.queue {
		more := p.size()
		if len(members) > 0 && (n+len(p.batch) > registry.MaxBatch || size+more > maxBatchBytes) {
			rest = append(rest, g.queue[i:]...)
			break
		}
		if g.collides(p, held) {
			rest = append(rest, p)
			held = hold(held, p)
		} else {
			members = append(members, p)
			n, size = n+len(p.batch), size+more
			hold(g.busy, p)
		}
	}
	g.queue = rest
	g.waiting -= n
	if n > 0 {
		g.began(n, time.Since(members[0].since))
	}
	return members
}

// hold adds p's keys to those that are held, nil if there are none yet.
func hold(held map[string]bool, p *pending) map[string]bool {
	if held == nil {
		held = map[string]bool{}
	}
	for i := range p.batch {
		held[p.batch[i].key] = true
	}
	return held
}

func (g *group) collides(p *pending, held map[string]bool) bool {
	for i := range p.batch {
		if key := p.batch[i].key; g.busy[key] || held[key] {
			return true
		}
	}
	return false
}
