package replicator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

const (
	// unitKeys is how many keys are compared in one go, and unitsInFlight how many
	// goes at a time: the peer's side of each costs a round trip.
	unitKeys      = 1000
	unitsInFlight = 8
	// backlog is the depth of the queue above which reading waits for the sender.
	backlogKeys, backlogBytes = 20_000, 32 << 20
)

// rebuild makes the whole mirror equal to the origin, whatever it holds, and
// then says that it is complete.
func (s *session) rebuild(ctx context.Context, p plan) error {
	s.log.Info("rebuilding mirror", "reason", p.reason)
	if p.broken {
		if err := s.hold(ctx, p); err != nil {
			return err
		}
	}
	settle, err := s.refill(ctx, []span{all}, s.rec.syncing)
	if err != nil {
		return err
	}
	if err := settle(); err != nil {
		return err
	}
	for {
		head, err := s.head(ctx)
		if err != nil {
			return err
		}
		if err := s.reach(ctx, head, true); err != nil {
			return err
		}
		// A compaction may overtake the checkpoint: then a newer one.
		if err := s.record(ctx); !errors.Is(err, rpctypes.ErrCompacted) {
			return err
		}
	}
}

// mendAlways fills ranges anew that lost their lease or keys, or grew too large.
func (s *session) mendAlways(ctx context.Context) error {
	for {
		spans, err := s.tasks.take(ctx)
		if err != nil {
			return err
		}
		if _, leases := s.table.total(); len(spans) > 8 && len(spans) > leases/2 {
			return fmt.Errorf("%d of %d ranges are to be mended: %w", len(spans), leases, errLeasesLost)
		}
		err = s.mend(ctx, spans)
		if err != nil && !isFull(err) {
			return err
		}
		if err != nil {
			// Without space there are no new leases: again later.
			if !sleep(ctx, fullRetry) {
				return ctx.Err()
			}
			s.tasks.add(spans...)
		}
	}
}

func (s *session) mend(ctx context.Context, spans []span) error {
	if err := s.forgetDead(ctx, spans); err != nil {
		return err
	}
	settle, err := s.refill(ctx, spans, s.rec.write)
	if err != nil {
		return err
	}
	// A range that is to be mended again must not wait for itself, so what is
	// left, to wait for the peer, goes on beside the next mending.
	s.background.Go(func() error {
		if err := settle(); err != nil {
			return err
		}
		if err := s.rec.write(ctx); !isFull(err) {
			return err
		}
		return nil // still recorded as incomplete: a successor looks once more
	})
	return nil
}

// forgetDead asks the peer which leases of some spans still exist.
func (s *session) forgetDead(ctx context.Context, spans []span) error {
	var ids []clientv3.LeaseID
	for _, in := range spans {
		for _, r := range s.table.within(in) {
			if r.id != 0 {
				ids = append(ids, r.id)
			}
		}
	}
	left, err := keepAliveOnce(ctx, s.client, ids)
	if err != nil {
		return fmt.Errorf("ask for leases: %w", err)
	}
	dead := deadOf(left)
	for _, in := range spans {
		s.table.update(in, func(r *leaseRange) {
			if dead[r.id] {
				r.id = 0
			}
		})
	}
	return nil
}

// refill lays the keys of spans out over leases, compares both sides and enters
// what differs into the queue. record is called with the new layout, in which the
// ranges are incomplete, before the first new lease is granted. settle waits until
// the peer has acknowledged everything; then the ranges are complete.
func (s *session) refill(ctx context.Context, spans []span, record func(context.Context) error) (settle func() error, err error) {
	number := s.fills.Add(1)
	for _, in := range spans {
		s.table.update(in, func(r *leaseRange) { r.blocked, r.incomplete = true, true })
		if err := s.lay(ctx, in, number); err != nil {
			return nil, err
		}
	}
	if err := s.grantLaid(ctx, spans, record); err != nil {
		return nil, err
	}
	settled := &sync.WaitGroup{}
	if err := s.fill(ctx, spans, settled); err != nil {
		return nil, err
	}
	return func() error {
		settled.Wait() // ends with the session at the latest
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.table.update(all, func(r *leaseRange) { r.incomplete = r.incomplete && r.fill != number })
		return nil
	}, nil
}

// lay lays the origin's keys in a span out over ranges.
func (s *session) lay(ctx context.Context, in span, number int64) error {
	var readErr error
	keys := func(yield func(string) bool) {
		for key, err := range keysOf(ctx, s.source, s, in, nil) {
			if err != nil {
				readErr = fmt.Errorf("read keys of own etcd: %w", err)
				return
			}
			if !yield(key) {
				return
			}
		}
	}
	ranges := place(s.table.within(in), keys, s.table.perLease)
	if readErr != nil {
		return readErr
	}
	for i := range ranges {
		ranges[i].blocked, ranges[i].incomplete, ranges[i].fill = true, true, number
	}
	s.table.swap(in, ranges)
	return nil
}

// grantLaid gives leases to the ranges that have none. Their IDs are recorded on
// the peer before they are granted, and so before their first key.
func (s *session) grantLaid(ctx context.Context, spans []span, record func(context.Context) error) error {
	fresh := map[clientv3.LeaseID]bool{}
	for _, in := range spans {
		s.table.update(in, func(r *leaseRange) {
			if r.id == 0 {
				r.id = newLeaseID()
				fresh[r.id] = true
			}
		})
	}
	err := record(ctx)
	if err == nil {
		err = s.grant(ctx, fresh)
	}
	if err != nil {
		// They may exist or not: another attempt takes other ones.
		s.table.update(all, func(r *leaseRange) {
			if fresh[r.id] {
				r.id = 0
			}
		})
	}
	return err
}

// newLeaseID returns a random positive ID, so that a lease can be recorded before
// it is granted.
func newLeaseID() clientv3.LeaseID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its contract
	return clientv3.LeaseID(binary.BigEndian.Uint64(b[:])>>1 | 1)
}

// fill compares both sides of spans, several units at a time, and enters what
// differs into the queue. settled is done once the peer has acknowledged it.
func (s *session) fill(ctx context.Context, spans []span, settled *sync.WaitGroup) error {
	s.table.startCounting()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(unitsInFlight)
	for _, in := range spans {
		empty, err := s.peerIsEmpty(ctx, in)
		if err != nil {
			g.Go(func() error { return err })
			break
		}
		for _, unit := range units(s.table.within(in), in.end, unitKeys) {
			if s.waitForBacklog(gctx) != nil {
				break // for a failure that Wait returns
			}
			g.Go(func() error { return s.fillUnit(gctx, unit, empty, settled) })
		}
	}
	err := g.Wait()
	s.tasks.add(s.table.stopCounting()...)
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (s *session) peerIsEmpty(ctx context.Context, in span) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	from, end := s.bounds(in)
	got, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return false, fmt.Errorf("read peer: %w", err)
	}
	return len(got.Kvs) == 0, nil
}

func (s *session) waitForBacklog(ctx context.Context) error {
	for {
		changed := s.queue.changes()
		if d := s.queue.depth(); d.entries < backlogKeys && d.bytes < backlogBytes {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fillUnit merges the origin's and the peer's keys of a span. Its ranges are
// blocked until every event up to the revision of the reading has been pushed:
// of what was read and what was watched the newest is then in the queue, for each
// key, and nothing older can come. Until settled is done, the ranges are recorded
// as incomplete, so a fill holds no checkpoint back.
func (s *session) fillUnit(ctx context.Context, in span, empty bool, settled *sync.WaitGroup) error {
	origin := newPager(s.source, s, in, "own etcd")
	peer := newPager(s.client, s, in, "peer")
	peer.done = empty
	counted := map[string]int{}
	ranges := s.table.within(in)
	at := 0
	var ops []keyOp
	for {
		p, ok, err := mergeNext(ctx, origin, peer)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		for at+1 < len(ranges) && s.relative(p.key) >= ranges[at+1].start {
			at++
		}
		p.wanted = ranges[at].id
		if p.origin {
			counted[ranges[at].start]++
		}
		if o, differs := difference(p); differs {
			o.settled = settled
			ops = append(ops, keyOp{p.key, o})
		}
	}
	if err := s.reach(ctx, origin.rev, false); err != nil {
		return err
	}
	settled.Add(len(ops))
	s.queue.pushRead(ops)
	s.table.recount(in, counted, origin.firstRev)
	s.table.update(in, func(r *leaseRange) { r.blocked = false })
	s.queue.release()
	return nil
}

// mergeNext returns the next key of the two sides, in order.
func mergeNext(ctx context.Context, origin, peer *pager) (p pair, ok bool, err error) {
	o, err := origin.peek(ctx)
	if err != nil {
		return pair{}, false, err
	}
	q, err := peer.peek(ctx)
	if err != nil {
		return pair{}, false, err
	}
	if o == nil && q == nil {
		return pair{}, false, nil
	}
	if o != nil && (q == nil || string(o.Key) <= string(q.Key)) {
		p.key, p.origin, p.value, p.rev = string(o.Key), true, o.Value, o.ModRevision
		origin.next()
	} else {
		p.key, p.rev = string(q.Key), origin.rev
	}
	if q != nil && string(q.Key) == p.key {
		p.peer, p.peerValue, p.lease = true, q.Value, clientv3.LeaseID(q.Lease)
		peer.next()
	}
	return p, true, nil
}
