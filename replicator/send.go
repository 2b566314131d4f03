package replicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

const (
	// maxTxnOps is etcd's default for operations in a transaction. It counts them
	// on each level, and what the outer level uses is not left to the inner one:
	// two transactions inside one hold 126 each.
	maxTxnOps    = 128
	maxNestedOps = maxTxnOps - 2
	// maxBatchOps goes to the peer in one transaction, and a batch of enoughOps
	// ends with its lease: for a restricted user etcd checks each leased put
	// against every key that was on the lease before the transaction, and so
	// against none where all keys of a new lease come in one.
	maxBatchOps = 2 * maxNestedOps
	enoughOps   = maxNestedOps
	// maxBatchBytes leaves room under etcd's default limit of 1.5 MiB a request.
	maxBatchBytes = 1 << 20
	// gatherAbove and gatherFor: while that many batches are in flight a batch
	// that is not full waits a little for more, so that a steady stream of single
	// changes does not cost the peer a transaction each.
	gatherAbove = 8
	gatherFor   = 5 * time.Millisecond
	// fullRetry is how often a peer without space is offered a put.
	fullRetry = 2 * time.Second
)

// sendAlways sends what the queue holds, many batches in flight, until something
// unexpected happens.
func (s *session) sendAlways(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			batch, err := s.next(ctx)
			if err != nil {
				return err
			}
			g.Go(func() error { return s.sendOne(ctx, batch) })
		}
	})
	return g.Wait()
}

// next waits until there is something to send and room in the window.
func (s *session) next(ctx context.Context) ([]*entry, error) {
	for {
		changed := s.queue.changes()
		wait, may := s.mayTake()
		if may {
			if batch := s.take(); len(batch) > 0 {
				return batch, nil
			}
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-changed:
		case <-timer:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// mayTake reports whether a batch may be sent now or, if not, when to ask again;
// 0 is at the next change of the queue.
func (s *session) mayTake() (wait time.Duration, may bool) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if s.inFlight >= s.window.limit() {
		return 0, false
	}
	if s.full.Load() {
		if since := time.Since(s.lastSent); since < fullRetry {
			// Deletes alone are taken meanwhile.
			return fullRetry - since, true
		}
		return 0, true
	}
	if s.inFlight >= gatherAbove && s.queue.depth().ready < enoughOps {
		if since := time.Since(s.lastSent); since < gatherFor {
			return gatherFor - since, false
		}
	}
	return 0, true
}

func (s *session) take() []*entry {
	l := limits{ops: maxBatchOps, enough: enoughOps, bytes: maxBatchBytes}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if s.full.Load() {
		l.deletesOnly = time.Since(s.lastSent) < fullRetry
	}
	batch := s.queue.take(l, func(key string) (clientv3.LeaseID, bool) { return s.table.lookup(s.relative(key)) })
	if len(batch) > 0 {
		s.inFlight++
		if !l.deletesOnly {
			s.lastSent = time.Now()
		}
	}
	return batch
}

func (s *session) sendOne(ctx context.Context, batch []*entry) error {
	begun := time.Now()
	err := s.deliver(ctx, batch)
	s.sendMu.Lock()
	busy := s.inFlight >= s.window.limit()
	s.inFlight--
	if err == nil {
		s.window.observe(time.Now(), time.Since(begun), busy)
	}
	s.sendMu.Unlock()
	s.queue.nudge()
	return err
}

// deliver sends a batch in one fenced transaction and acts on the outcome.
func (s *session) deliver(ctx context.Context, batch []*entry) error {
	call, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	seen := s.seenTheirs.Load()
	resp, err := s.client.Txn(call).If(s.fence.compare()).Then(nest(s.operations(batch))...).Commit()
	switch {
	case err != nil:
		return s.undelivered(ctx, batch, err)
	case !resp.Succeeded:
		return fmt.Errorf("write %d keys: %w", len(batch), ErrFenced)
	}
	if err := setBack(seen, resp.Header.Revision); err != nil {
		return err
	}
	raise(&s.seenTheirs, resp.Header.Revision)
	s.delivered(batch, resp.Header.Revision)
	return nil
}

// nest puts more operations than a transaction may have into two inside it.
func nest(ops []clientv3.Op) []clientv3.Op {
	if len(ops) <= maxTxnOps {
		return ops
	}
	return []clientv3.Op{
		clientv3.OpTxn(nil, ops[:maxNestedOps], nil),
		clientv3.OpTxn(nil, ops[maxNestedOps:], nil),
	}
}

func (s *session) operations(batch []*entry) []clientv3.Op {
	ops := make([]clientv3.Op, len(batch))
	for i, e := range batch {
		id, _ := s.table.lookup(s.relative(e.key))
		switch e.op.kind {
		case opDelete:
			ops[i] = clientv3.OpDelete(e.key)
		case opAttach:
			ops[i] = clientv3.OpPut(e.key, "", clientv3.WithIgnoreValue(), clientv3.WithLease(id))
		default:
			ops[i] = clientv3.OpPut(e.key, string(e.op.value), clientv3.WithLease(id))
		}
	}
	return ops
}

func (s *session) delivered(batch []*entry, rev int64) {
	puts, deletes := 0, 0
	for _, e := range batch {
		if e.op.kind == opDelete {
			deletes++
		} else {
			puts++
			s.poison.cured(e.key)
		}
	}
	if deletes > 0 {
		s.deleted.add(rev)
	}
	if puts > 0 && s.full.CompareAndSwap(true, false) {
		s.status.leave(StateFull, s.restingState())
		s.log.Info("peer has space again")
	}
	s.meter.sent(puts, deletes)
	s.status.noteSent()
	s.queue.acknowledge(batch)
}

// undelivered acts on a transaction that failed. What is surely not applied is
// tried again in another way; all else ends the session.
func (s *session) undelivered(ctx context.Context, batch []*entry, err error) error {
	v := judge(err)
	s.meter.failed(v)
	switch v {
	case full:
		if s.full.CompareAndSwap(false, true) {
			s.status.enter(StateFull, errFull)
			s.log.Error("peer refuses puts", "error", errFull)
		}
		s.queue.retry(batch)
		return nil
	case overloaded:
		s.queue.retry(batch)
		if !sleep(ctx, gatherFor*gatherAbove) {
			return ctx.Err()
		}
		return nil
	case tooLarge, keyGone:
		return s.bisect(ctx, batch, v, err)
	case leaseGone:
		s.mendRangesOf(batch)
		s.queue.retry(batch)
		return nil
	case denied:
		return fmt.Errorf("write %d keys: %w", len(batch), err)
	default:
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("write %d keys: %w: %w", len(batch), errUnknownOutcome, err)
	}
}

// bisect finds the operation for which a batch was refused.
func (s *session) bisect(ctx context.Context, batch []*entry, v verdict, err error) error {
	if len(batch) > 1 {
		half := len(batch) / 2
		if err := s.deliver(ctx, batch[:half]); err != nil {
			return err
		}
		return s.deliver(ctx, batch[half:])
	}
	e := batch[0]
	if v == keyGone {
		// It was to be moved to another lease and is not there: as good as lost.
		s.mendRangesOf(batch)
		s.queue.acknowledge(batch)
		return nil
	}
	if e.op.kind == opDelete {
		return fmt.Errorf("delete %s: %w", e.key, err)
	}
	s.poison.found(e.key, err)
	s.log.Error("peer refuses a value: the key is left out there and its older value removed", "key", e.key, "bytes", len(e.op.value), "error", err)
	s.queue.replace(e, opDelete)
	return nil
}

func (s *session) mendRangesOf(batch []*entry) {
	for _, e := range batch {
		if span, fresh := s.table.block(s.relative(e.key)); fresh {
			s.tasks.add(span)
		}
	}
}

// isFull reports whether err is that the peer has no space.
func isFull(err error) bool { return errors.Is(err, errFull) || judge(err) == full }
