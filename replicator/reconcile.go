package replicator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// unitKeys is how many keys are compared in one go, and unitsInFlight how many
	// goes at a time: the peer's side of each costs a round trip.
	unitKeys      = 1000
	unitsInFlight = 8
	// backlog is the depth of the queue above which reading waits for the sender.
	backlogKeys, backlogBytes = 20_000, 32 << 20
	// pageBytes is the wanted size of one page of a range, and pageKeys its most.
	pageBytes, pageKeys = 1 << 20, 2000
	// keysPage is the size of a page of keys without values.
	keysPage = 10_000
	// lookupsInFlight transactions read keys on the peer at a time.
	lookupsInFlight = 16
)

// adopt makes up for what happened since the checkpoint: the changes from there
// to the origin's head, the latest of each key, are compared with the peer, which
// may be ahead of the checkpoint, and only what differs is sent.
func (s *session) adopt(ctx context.Context) error {
	s.queue.pause(true)
	head, err := s.head(ctx)
	if err != nil {
		return err
	}
	if err := s.reach(ctx, head, false); err != nil {
		return err
	}
	if err := s.dropEqual(ctx); err != nil {
		return err
	}
	s.rec.set(s.found.state.GetPhase(), s.found.state.GetCheckpoint(), s.found.state.GetWitness())
	s.queue.pause(false)
	s.table.update(all, func(r *leaseRange) { r.blocked = r.blocked || r.incomplete })
	for _, r := range s.table.within(all) {
		if r.incomplete {
			span, _ := s.table.block(r.start)
			s.tasks.add(span)
		}
	}
	return s.recountAll(ctx)
}

// head returns the origin's current revision.
func (s *session) head(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	got, err := s.source.Get(ctx, s.prefix, clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("read own etcd's revision: %w", err)
	}
	return got.Header.Revision, nil
}

// dropEqual drops the waiting operations to which the peer already corresponds.
func (s *session) dropEqual(ctx context.Context) error {
	waiting := s.queue.waiting()
	keys := make([]string, 0, len(waiting))
	for key := range waiting {
		keys = append(keys, key)
	}
	var mu sync.Mutex
	equal := map[string]int64{}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookupsInFlight)
	for len(keys) > 0 {
		n := min(len(keys), maxBatchOps)
		some := keys[:n]
		keys = keys[n:]
		g.Go(func() error {
			found, err := s.lookUp(ctx, some)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			for i, key := range some {
				if s.holds(key, waiting[key], found[i]) {
					equal[key] = waiting[key].rev
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	s.queue.drop(func(key string, o op) bool { return equal[key] == o.rev && o.rev != 0 })
	return nil
}

// lookUp reads keys on the peer; the result has nil for one that is not there.
func (s *session) lookUp(ctx context.Context, keys []string) ([]*mvccpb.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key)
	}
	resp, err := s.client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read %d keys of peer: %w", len(keys), err)
	}
	found := make([]*mvccpb.KeyValue, len(keys))
	for i, r := range resp.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			found[i] = kvs[0]
		}
	}
	return found, nil
}

// holds reports whether the peer's kv is what o would make of key.
func (s *session) holds(key string, o op, kv *mvccpb.KeyValue) bool {
	p := pair{key: key, origin: o.kind != opDelete, value: o.value, rev: o.rev}
	p.wanted, _ = s.table.lookup(s.relative(key))
	if kv != nil {
		p.peer, p.peerValue, p.lease = true, kv.Value, clientv3.LeaseID(kv.Lease)
	}
	_, differs := difference(p)
	return !differs
}

// recountAll counts the origin's keys in each range.
func (s *session) recountAll(ctx context.Context) error {
	s.table.startCounting()
	counted := map[string]int{}
	ranges := s.table.within(all)
	at, rev := 0, int64(0)
	for key, err := range keysOf(ctx, s.source, s, all, &rev) {
		if err != nil {
			return fmt.Errorf("count keys of own etcd: %w", err)
		}
		for at+1 < len(ranges) && key >= ranges[at+1].start {
			at++
		}
		counted[ranges[at].start]++
	}
	s.table.recount(all, counted, rev)
	s.tasks.add(s.table.stopCounting()...)
	return nil
}

// keysOf returns the keys that an etcd has in a span, relative and sorted, page by
// page; rev, if not nil, becomes the revision of the first page.
func keysOf(ctx context.Context, c *clientv3.Client, s *session, in span, rev *int64) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		from, end := s.bounds(in)
		for {
			call, cancel := context.WithTimeout(ctx, s.callTimeout())
			got, err := c.Get(call, from, clientv3.WithRange(end), clientv3.WithLimit(keysPage), clientv3.WithKeysOnly())
			cancel()
			if err != nil {
				yield("", err)
				return
			}
			if rev != nil && *rev == 0 {
				*rev = got.Header.Revision
			}
			for _, kv := range got.Kvs {
				if !yield(s.relative(string(kv.Key)), nil) {
					return
				}
			}
			if !got.More {
				return
			}
			from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
		}
	}
}

// bounds returns the first key of a span, and the one behind its last.
func (s *session) bounds(in span) (from, end string) {
	if in.end == "" {
		return s.prefix + in.start, clientv3.GetPrefixRangeEnd(s.prefix)
	}
	return s.prefix + in.start, s.prefix + in.end
}

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
	dead, err := keepAliveOnce(ctx, s.client, ids)
	if err != nil {
		return fmt.Errorf("ask for leases: %w", err)
	}
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

// pager reads a span page by page.
type pager struct {
	client    *clientv3.Client
	s         *session
	what      string
	from, end string
	page      []*mvccpb.KeyValue
	done      bool
	// rev is the revision of the page that covers the current key, firstRev that
	// of the first page.
	rev, firstRev int64
}

func newPager(c *clientv3.Client, s *session, in span, what string) *pager {
	from, end := s.bounds(in)
	return &pager{client: c, s: s, what: what, from: from, end: end}
}

// peek returns the current key, nil at the end.
func (p *pager) peek(ctx context.Context) (*mvccpb.KeyValue, error) {
	for len(p.page) == 0 && !p.done {
		if err := p.read(ctx); err != nil {
			return nil, err
		}
	}
	if len(p.page) == 0 {
		return nil, nil
	}
	return p.page[0], nil
}

func (p *pager) next() { p.page = p.page[1:] }

func (p *pager) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.s.callTimeout())
	defer cancel()
	limit := min(max(pageBytes/max(p.s.valueSize.Load(), 1), 8), pageKeys)
	got, err := p.client.Get(ctx, p.from, clientv3.WithRange(p.end), clientv3.WithLimit(limit))
	if err != nil {
		return fmt.Errorf("read %s: %w", p.what, err)
	}
	p.page, p.rev, p.done = got.Kvs, got.Header.Revision, !got.More
	if p.firstRev == 0 {
		p.firstRev = p.rev
	}
	next := p.end
	if got.More {
		next = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
	p.s.learnSize(got.Kvs)
	p.from = next
	return nil
}

// learnSize moves the average size of values towards that of a page.
func (s *session) learnSize(kvs []*mvccpb.KeyValue) {
	if len(kvs) == 0 {
		return
	}
	total := 0
	for _, kv := range kvs {
		total += len(kv.Value) + len(kv.Key)
	}
	s.valueSize.Store((s.valueSize.Load() + int64(total/len(kvs))) / 2)
}

// hold keeps a mirror as it is, its leases alive, when a rebuild after a break
// would delete more than half of it: an emptied origin must not empty the world.
// It returns when the rebuild may go on.
func (s *session) hold(ctx context.Context, p plan) error {
	for {
		lost, total, err := s.wouldDelete(ctx)
		if err != nil {
			return err
		}
		if 2*lost <= total {
			return nil
		}
		s.status.enter(StateHeld, fmt.Errorf("%s: a rebuild would delete %d of the mirror's %d keys", p.reason, lost, total))
		s.log.Error("mirror held: a rebuild would delete most of it; if that is right, accept it", "reason", p.reason, "delete", lost, "keys", total)
		accepted, err := s.accepted(ctx)
		if err != nil {
			return err
		}
		if accepted {
			return nil
		}
		if !sleep(ctx, holdEvery) {
			return ctx.Err()
		}
	}
}

// holdEvery is how often a held mirror is looked at again.
const holdEvery = 5 * time.Second

// wouldDelete counts the keys that only the peer has, and all that it has.
func (s *session) wouldDelete(ctx context.Context) (lost, total int, err error) {
	next, stop := iter.Pull2(keysOf(ctx, s.source, s, all, nil))
	defer stop()
	origin, err, more := next()
	for key, peerErr := range keysOf(ctx, s.client, s, all, nil) {
		if peerErr != nil {
			return 0, 0, fmt.Errorf("read keys of peer: %w", peerErr)
		}
		for more && err == nil && origin < key {
			origin, err, more = next()
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read keys of own etcd: %w", err)
		}
		total++
		if !more || origin != key {
			lost++
		}
	}
	return lost, total, nil
}

// accepted takes back the operator's word that a held mirror may be rebuilt.
func (s *session) accepted(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	resp, err := s.source.Delete(ctx, keyspace.AcceptKey(s.origin, s.peer.Region))
	if err != nil {
		return false, fmt.Errorf("look for an accepted repair: %w", err)
	}
	return resp.Deleted > 0, nil
}
