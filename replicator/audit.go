package replicator

import (
	"context"
	"fmt"
	"slices"
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
	return s.mendSuspects(ctx, suspects)
}

func (s *session) mendSuspects(ctx context.Context, suspects []string) error {
	for some := range slices.Chunk(suspects, maxTxnOps) {
		if err := s.mendDrift(ctx, some); err != nil {
			return err
		}
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

// auditAll audits the whole mirror, without a pause.
func (s *session) auditAll(ctx context.Context) error {
	for _, part := range units(s.table.within(all), "", unitKeys) {
		if err := s.audit(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// mendDrift looks at suspects again, on both sides, and has the ranges of those
// that still differ mended.
func (s *session) mendDrift(ctx context.Context, suspects []string) error {
	theirs, err := s.lookUp(ctx, s.client, "peer", suspects)
	if err != nil {
		return err
	}
	ours, err := s.lookUp(ctx, s.source, "own etcd", suspects)
	if err != nil {
		return err
	}
	for i, key := range suspects {
		o := op{kind: opDelete}
		if ours[i] != nil {
			o = op{kind: opPut, value: ours[i].Value}
		}
		if s.holds(key, o, theirs[i]) || s.queue.has(key) || s.poison.is(key) {
			continue
		}
		lease := clientv3.LeaseID(0)
		if theirs[i] != nil {
			lease = clientv3.LeaseID(theirs[i].Lease)
		}
		span, fresh := s.table.block(s.relative(key))
		if !fresh {
			s.doubts.add(key, 0) // being mended: whether this key is, shows once it is done
			continue
		}
		s.meter.drift()
		s.log.Warn("mirror had drifted from its origin, mending", "key", key, "on_peer", theirs[i] != nil, "lease", fmt.Sprintf("%x", int64(lease)))
		s.tasks.add(span)
	}
	return nil
}
