package replicator

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// defaultAuditPeriod is how long one look at the whole mirror takes.
	defaultAuditPeriod = 15 * time.Minute
	// auditUnitsPerPass spreads a pass over so many steps, at least.
	auditUnitsPerPass = 20
)

// auditAlways compares the mirror with its origin, one part after the other,
// slowly, and has what differs mended: what no event told of, such as a key that
// was overwritten on the peer by hand, or lost its lease there.
func (s *session) auditAlways(ctx context.Context) error {
	if err := s.auditIfCountsDiffer(ctx); err != nil {
		return err
	}
	for {
		parts := units(s.table.within(all), "", unitKeys)
		pause := s.auditPeriod() / time.Duration(max(len(parts), auditUnitsPerPass))
		for _, part := range parts {
			if !sleep(ctx, pause) {
				return ctx.Err()
			}
			if s.rec.recorded() == 0 {
				continue // being filled
			}
			if err := s.audit(ctx, part); err != nil {
				return err
			}
		}
	}
}

const (
	// countTries are made, countPause apart, to find a moment without changes.
	countTries = 10
	countPause = time.Second
)

// auditIfCountsDiffer audits the whole mirror at once when, at the beginning of a
// session, the two sides have not the same number of keys although nothing is under
// way: somebody removed or added keys on the peer while nobody mirrored. On a mirror
// that changes all the time it finds no such moment, and leaves it to the next audit.
func (s *session) auditIfCountsDiffer(ctx context.Context) error {
	for range countTries {
		if !sleep(ctx, countPause) {
			return ctx.Err()
		}
		if s.rec.recorded() == 0 || s.full.Load() {
			continue
		}
		quiet, differ, err := s.compareCounts(ctx)
		if err != nil {
			return err
		}
		if !quiet {
			continue
		}
		if !differ {
			return nil
		}
		s.log.Warn("mirror and origin have not the same number of keys, auditing")
		for _, part := range units(s.table.within(all), "", unitKeys) {
			if err := s.audit(ctx, part); err != nil {
				return err
			}
		}
		return nil
	}
	return nil
}

// compareCounts counts the keys of both sides. quiet says that nothing changed and
// nothing was under way meanwhile; without that, differ means nothing.
func (s *session) compareCounts(ctx context.Context) (quiet, differ bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	before := s.queue.depth()
	ours, err := s.source.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return false, false, fmt.Errorf("count keys of own etcd: %w", err)
	}
	theirs, err := s.client.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return false, false, fmt.Errorf("count keys of peer: %w", err)
	}
	head, err := s.head(ctx)
	if err != nil {
		return false, false, err
	}
	if err := s.reach(ctx, head, false); err != nil {
		return false, false, nil // not within the time: it is not quiet
	}
	after := s.queue.depth()
	quiet = before.entries == 0 && after.entries == 0 && s.lastRevision() <= before.position
	return quiet, ours.Count != theirs.Count, nil
}

// lastRevision is that of the last change seen, 0 before the first.
func (s *session) lastRevision() int64 {
	if last := s.last.Load(); last != nil {
		return last.Kv.ModRevision
	}
	return 0
}

func (r *Replicator) auditPeriod() time.Duration {
	if r.AuditPeriod > 0 {
		return r.AuditPeriod
	}
	return defaultAuditPeriod
}

// audit compares one part. What changes meanwhile is not drift: a difference
// counts if it is still there once everything up to the reading is acknowledged.
func (s *session) audit(ctx context.Context, in span) error {
	suspects, err := s.suspects(ctx, in)
	if err != nil || len(suspects) == 0 {
		return err
	}
	head, err := s.head(ctx)
	if err != nil {
		return err
	}
	if err := s.reach(ctx, head, true); err != nil {
		return err
	}
	for len(suspects) > 0 {
		n := min(len(suspects), maxTxnOps)
		if err := s.mendDrift(ctx, suspects[:n]); err != nil {
			return err
		}
		suspects = suspects[n:]
	}
	return nil
}

// suspects returns the keys of a part that differ and that nothing is under way
// for.
func (s *session) suspects(ctx context.Context, in span) ([]string, error) {
	var keys []string
	origin, peer := newPager(s.source, s, in, "own etcd"), newPager(s.client, s, in, "peer")
	for {
		p, ok, err := mergeNext(ctx, origin, peer)
		if err != nil || !ok {
			return keys, err
		}
		p.wanted, _ = s.table.lookup(s.relative(p.key))
		if _, differs := difference(p); differs && !s.queue.has(p.key) && !s.poison.is(p.key) {
			keys = append(keys, p.key)
		}
	}
}

// mendDrift looks at suspects again, on both sides, and has the ranges of those
// that still differ mended.
func (s *session) mendDrift(ctx context.Context, suspects []string) error {
	theirs, err := s.lookUp(ctx, suspects)
	if err != nil {
		return err
	}
	for i, key := range suspects {
		call, cancel := context.WithTimeout(ctx, s.callTimeout())
		got, err := s.source.Get(call, key)
		cancel()
		if err != nil {
			return fmt.Errorf("read own etcd: %w", err)
		}
		o := op{kind: opDelete}
		if len(got.Kvs) > 0 {
			o = op{kind: opPut, value: got.Kvs[0].Value}
		}
		if s.holds(key, o, theirs[i]) || s.queue.has(key) {
			continue
		}
		lease := clientv3.LeaseID(0)
		if theirs[i] != nil {
			lease = clientv3.LeaseID(theirs[i].Lease)
		}
		s.meter.drift()
		s.log.Warn("mirror had drifted from its origin, mending", "key", key, "on_peer", theirs[i] != nil, "lease", fmt.Sprintf("%x", int64(lease)))
		if span, fresh := s.table.block(s.relative(key)); fresh {
			s.tasks.add(span)
		}
	}
	return nil
}
