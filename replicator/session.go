package replicator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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
	// liveLease is the lease of the live key.
	liveLease clientv3.LeaseID
	deleted   revisions
	poison    *poison
	// full: the peer has no space, so deletes go and puts wait.
	full atomic.Bool
	// lastPut is the key of the last put event seen, a witness for a checkpoint.
	lastPut atomic.Pointer[string]
	// valueSize is the average size of the values read, for the size of pages.
	valueSize atomic.Int64
	fills     atomic.Int64
	// seenOwn and seenTheirs are the highest revisions of either store seen.
	seenOwn, seenTheirs atomic.Int64
	rebuilt             atomic.Bool
	// background is for what ends by itself; its failure ends the session.
	background *errgroup.Group
	sendMu     sync.Mutex
	window     window
	inFlight   int
	lastSent   time.Time
}

func newSession(m *mirror, f found, held fence) *session {
	table := &leaseTable{perLease: minKeysPerLease}
	s := &session{
		mirror: m, found: f, fence: held, table: table,
		rec:       &recorder{mirror: m, fence: held, table: table},
		queue:     newQueue(),
		tasks:     newTasks(),
		liveLease: f.liveLease,
		poison:    newPoison(),
	}
	s.valueSize.Store(256)
	return s
}

// plan is what a session makes of what it found.
type plan struct {
	// reason says why the mirror is rebuilt: the label of the resync metric.
	// Empty: it is adopted as it is.
	reason string
	// broken: a store was restored, swapped or emptied, so that a rebuild may
	// delete much that should stay.
	broken bool
	// from is the origin revision after which the watch begins; 0 is now.
	from int64
}

// run mirrors until ctx ends or something unexpected happens, which is its error.
func (s *session) run(ctx context.Context) error {
	defer s.queue.close()
	begun := time.Now()
	s.status.enter(StateSyncing, nil)
	s.restoreTable()
	dead, err := s.renew(ctx)
	if err != nil {
		return err
	}
	s.forget(dead)
	p, err := s.decide(ctx, len(dead))
	if err != nil {
		return err
	}
	if err := s.ensureLive(ctx, dead); err != nil {
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

// remember keeps, for the next session, how far the stores were seen to be.
func (s *session) remember() {
	s.mirror.own.revision = max(s.own.revision, s.seenOwn.Load())
	s.mirror.theirs.revision = max(s.theirs.revision, s.seenTheirs.Load())
	if s.rebuilt.Load() {
		s.restored, s.mirror.repair = "", false
	}
}

// work runs everything that a session does at the same time.
func (s *session) work(ctx context.Context, p plan, begun time.Time) error {
	if p.reason == "" {
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
		s.mendAlways, s.renewAlways, s.sendAlways, s.watchPeer, s.recordAlways, s.probeAlways, s.auditAlways,
		s.credentialsAlways, s.repairAlways, s.inspect,
	} {
		g.Go(func() error { return job(ctx) })
	}
	return g.Wait()
}

// restoreTable takes over the ranges that a predecessor recorded.
func (s *session) restoreTable() {
	for _, l := range s.found.state.GetLeases() {
		s.table.ranges = append(s.table.ranges, leaseRange{
			start: l.GetStart(), id: clientv3.LeaseID(l.GetId()), incomplete: l.GetIncomplete(),
		})
	}
	if len(s.table.ranges) == 0 || s.table.ranges[0].start != "" {
		s.table.ranges = []leaseRange{{incomplete: true}}
	}
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
	var p plan
	state := s.found.state
	switch {
	case state.GetOriginStore() == "":
		p.reason = "first"
	case state.GetOriginStore() != s.own.id:
		p.reason, p.broken = "origin_changed", true
	case s.restored != "":
		p.reason, p.broken = s.restored, true
	case s.repair:
		p.reason = "repair"
	case state.GetPeerStore() != s.theirs.id:
		p.reason = "peer_changed"
	case state.GetPhase() != mirrorv1.Phase_PHASE_COMPLETE || state.GetCheckpoint() == 0:
		p.reason = "unfinished"
	case state.GetLeaseTtl() != s.ttlSeconds():
		p.reason = "ttl_changed"
		s.table.update(all, func(r *leaseRange) { r.id, r.incomplete = 0, true })
	case 2*dead > len(s.table.ranges):
		p.reason = "leases_lost"
	case state.GetCheckpoint() > head.Header.Revision:
		p.reason, p.broken = "origin_restored", true
	default:
		return s.decideByWitness(ctx, p)
	}
	return p, nil
}

func (s *session) decideByWitness(ctx context.Context, p plan) (plan, error) {
	same, err := s.confirms(ctx, s.found.state)
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		p.reason = "compacted"
	case errors.Is(err, rpctypes.ErrFutureRev):
		p.reason, p.broken = "origin_restored", true
	case err != nil:
		return plan{}, fmt.Errorf("read witness on own etcd: %w", err)
	case !same:
		p.reason, p.broken = "origin_restored", true
	default:
		p.from = s.found.state.GetCheckpoint()
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
