package replicator

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
)

// session is one uninterrupted hold of a mirror: from the fence to the first
// surprise.
type session struct {
	*mirror
	found found
	fence fence
	rec   *recorder
	table *leaseTable
	queue *queue
	tasks *tasks
	// doubts are what may have to be mended.
	doubts *doubts
	// streams names the session's watch streams.
	streams string
	// liveLease is the lease of the live key.
	liveLease clientv3.LeaseID
	// liveWanted is the lease of the live key that is, or is about to be, there.
	liveWanted atomic.Int64
	deleted    revisions
	poison     *poison
	// full: the peer has no space, so deletes go and puts wait.
	full atomic.Bool
	// last is the last change seen: a witness for a checkpoint, and for the next
	// session.
	last atomic.Pointer[clientv3.Event]
	// asked has somebody ask the origin how far the watch is.
	asked chan struct{}
	// valueSize is the average size of the values read, for the size of pages.
	valueSize atomic.Int64
	fills     atomic.Int64
	// seenOwn and seenTheirs are the highest revisions of either store seen.
	seenOwn, seenTheirs atomic.Int64
	// peerWatched is the revision of the peer up to which deletes of others are
	// known, and their ranges blocked.
	peerWatched atomic.Int64
	rebuilt     atomic.Bool
	// background is for what ends by itself; its failure ends the session.
	background *errgroup.Group
	sendMu     sync.Mutex
	window     window
	inFlight   int
	lastSent   time.Time
}

// firstValueSize is what values are taken for before any was read.
const firstValueSize = 8 << 10

func newSession(m *mirror, f found, held fence) *session {
	table := &leaseTable{perLease: minKeysPerLease}
	s := &session{
		mirror: m, found: f, fence: held, table: table,
		queue:     newQueue(),
		tasks:     newTasks(),
		doubts:    newDoubts(),
		asked:     make(chan struct{}, 1),
		liveLease: f.liveLease,
		poison:    newPoison(),
		streams:   hex.EncodeToString(newToken()),
	}
	s.rec = &recorder{mirror: m, fence: held, table: table, seen: &s.seenTheirs, watched: &s.peerWatched}
	s.seenTheirs.Store(f.revision)
	s.peerWatched.Store(f.revision)
	s.liveWanted.Store(int64(f.liveLease))
	s.valueSize.Store(firstValueSize)
	return s
}

// run mirrors until ctx ends or something unexpected happens, which is its error.
func (s *session) run(ctx context.Context) error {
	defer s.queue.close()
	begun := time.Now()
	s.status.enter(StateSyncing, nil)
	if err := s.restoreTable(ctx); err != nil {
		return err
	}
	dead, err := s.renew(ctx)
	if err != nil {
		return err
	}
	s.forget(dead)
	p, err := s.decide(ctx, len(dead))
	if err != nil {
		return err
	}
	if err := s.announce(ctx, p, dead); err != nil {
		return err
	}
	err = s.work(ctx, p, begun)
	s.remember()
	if ctx.Err() == nil {
		return err
	}
	s.leaveInOrder(ctx)
	return ctx.Err()
}

// announce makes the live key. Where a mirror that called itself complete is to be
// rebuilt, it is called syncing before: a reader must not take what is left of it
// for the whole. Only a mirror that may have to be held stays as it is.
func (s *session) announce(ctx context.Context, p plan, dead map[clientv3.LeaseID]bool) error {
	if p.reason != "" && !p.broken && s.found.state.GetPhase() == mirrorv1.Phase_PHASE_COMPLETE {
		if err := s.rec.syncing(ctx); err != nil {
			return err
		}
	}
	return s.ensureLive(ctx, dead)
}

// remember keeps, for the next session, how far the stores were seen to be.
func (s *session) remember() {
	s.mirror.own.revision = max(s.own.revision, s.seenOwn.Load())
	s.mirror.theirs.revision = max(s.theirs.revision, s.seenTheirs.Load())
	last := s.last.Load()
	if last != nil || s.rebuilt.Load() {
		s.mirror.last = last // what was seen before a rebuild may be another history's
	}
	if s.rebuilt.Load() {
		s.restored, s.mirror.repair, s.mirror.lost = "", false, false
	}
}

// work runs everything that a session does at the same time.
func (s *session) work(ctx context.Context, p plan, begun time.Time) error {
	if p.reason == "" {
		if watched := s.found.state.GetPeerRevision(); watched > 0 {
			s.peerWatched.Store(min(watched, s.found.revision))
		}
		s.queue.pause(true)
	} else {
		s.table.update(all, func(r *leaseRange) { r.blocked = true })
	}
	opened := make(chan struct{})
	g, ctx := errgroup.WithContext(ctx)
	s.background = g
	defer context.AfterFunc(ctx, s.queue.close)()
	for _, job := range []func(context.Context) error{
		func(ctx context.Context) error { return s.follow(ctx, p.from, opened) },
		func(ctx context.Context) error { return s.converge(ctx, p, begun, opened) },
		s.mendAlways, s.renewAlways, s.sendAlways, s.watchPeer, s.recordAlways, s.probeAlways, s.auditAlways, s.dispelAlways,
		s.credentialsAlways, s.repairAlways, s.inspect, s.watchRecords,
	} {
		g.Go(func() error { return job(ctx) })
	}
	return g.Wait()
}

// restoreTable takes over the ranges that a predecessor recorded. Where the record
// is lost, they are what the keys on the peer are on.
func (s *session) restoreTable(ctx context.Context) error {
	for _, l := range s.found.state.GetLeases() {
		s.table.ranges = append(s.table.ranges, leaseRange{
			start: l.GetStart(), id: clientv3.LeaseID(l.GetId()), incomplete: l.GetIncomplete(),
		})
	}
	if len(s.table.ranges) > 0 && s.table.ranges[0].start == "" {
		return nil
	}
	ranges, err := s.recoverRanges(ctx)
	s.table.ranges = ranges
	return err
}

// recoverRanges reads, from the mirror's keys, the ranges of the leases that they
// are on, as far as those were granted with this mirror's TTL.
func (s *session) recoverRanges(ctx context.Context) ([]leaseRange, error) {
	var runs runs
	for p := newPager(s.client, s, all, "peer"); ; p.next() {
		kv, err := p.peek(ctx)
		if err != nil {
			return nil, err
		}
		if kv == nil {
			break
		}
		runs.add(s.relative(string(kv.Key)), clientv3.LeaseID(kv.Lease))
	}
	left, err := keepAliveOnce(ctx, s.client, runs.leases())
	if err != nil {
		return nil, fmt.Errorf("ask for leases: %w", err)
	}
	return runs.ranges(func(id clientv3.LeaseID) bool { return left[id] == s.ttlSeconds() }), nil
}

// forget marks the ranges whose lease is dead: they are filled anew.
func (s *session) forget(dead map[clientv3.LeaseID]bool) {
	s.table.update(all, func(r *leaseRange) {
		if r.id == 0 || dead[r.id] {
			r.id, r.incomplete = 0, true
		}
	})
}

// decide finds out whether the mirror can be adopted from its checkpoint or must
// be rebuilt.
func (s *session) decide(ctx context.Context, dead int) (plan, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	head, err := s.source.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return plan{}, fmt.Errorf("read own etcd's revision: %w", err)
	}
	s.table.perLease = keysPerLease(int(head.Count))
	c := circumstances{
		owner: s.found.owner, state: s.found.state, own: s.own.id, theirs: s.theirs.id, restored: s.restored, repair: s.repair, lost: s.lost,
		ttl: s.ttlSeconds(), ranges: len(s.table.ranges), dead: dead, head: head.Header.Revision,
	}
	if s.found.state.GetCheckpoint() > 0 {
		if c.witness, err = s.confirms(ctx, s.found.state); err != nil {
			return plan{}, fmt.Errorf("read witness on own etcd: %w", err)
		}
	}
	p := choose(c)
	if p.reason == reasonTTL {
		s.table.update(all, func(r *leaseRange) { r.id, r.incomplete = 0, true })
	}
	return p, nil
}

// converge makes the mirror equal to the origin, from where the other jobs keep
// it so.
func (s *session) converge(ctx context.Context, p plan, begun time.Time, opened <-chan struct{}) error {
	select {
	case <-opened:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.reason == "" {
		if err := s.adopt(ctx); err != nil {
			return err
		}
		s.meter.takeover("adopted")
		s.log.Info("mirror adopted", "checkpoint", p.from, "took", time.Since(begun))
	} else {
		if err := s.rebuild(ctx, p); err != nil {
			return err
		}
		s.rebuilt.Store(true)
		s.meter.takeover("rebuilt")
		s.meter.resync(p.reason, time.Since(begun))
		keys, leases := s.table.total()
		s.log.Info("mirror rebuilt", "reason", p.reason, "keys", keys, "leases", leases, "took", time.Since(begun))
	}
	s.status.enter(StateLive, nil)
	return nil
}

// leaveInOrder renews the leases a last time and records the checkpoint, so that
// a successor has nearly the whole TTL, but only if the origin proves to be
// there: one that has lost its quorum must not prolong its mirrors.
func (s *session) leaveInOrder(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := s.proveOrigin(ctx); err != nil {
		s.log.Info("left without a last keepalive", "error", err)
		return
	}
	if _, err := s.renew(ctx); err != nil {
		s.log.Info("left without a last keepalive", "error", err)
	}
}

// tasks are the spans of keys that wait to be mended.
type tasks struct {
	mu    sync.Mutex
	spans []span
	more  chan struct{}
}

func newTasks() *tasks { return &tasks{more: make(chan struct{}, 1)} }

// add enters spans. A range is blocked before its span is added, and not added
// again while it is: so there are at most as many as ranges.
func (t *tasks) add(spans ...span) {
	if len(spans) == 0 {
		return
	}
	t.mu.Lock()
	t.spans = append(t.spans, spans...)
	t.mu.Unlock()
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// take waits for spans and returns all that wait.
func (t *tasks) take(ctx context.Context) ([]span, error) {
	for {
		t.mu.Lock()
		spans := t.spans
		t.spans = nil
		t.mu.Unlock()
		if len(spans) > 0 {
			return spans, nil
		}
		select {
		case <-t.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
