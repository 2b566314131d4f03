package replicator

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// checkHistory looks up, before a session begins, the last change that an earlier
// session of this process had seen. An origin that does not know it was restored
// from a backup, even if store ID, revision and raft term are as they could be: a
// restored etcd that was written to since looks like one that has just gone on.
func (m *mirror) checkHistory(ctx context.Context) error {
	if m.last == nil || m.restored != "" {
		return nil
	}
	same, err := m.remembers(ctx, m.last)
	if err != nil {
		return fmt.Errorf("look up the last change on own etcd: %w", err)
	}
	if !same {
		m.log.Warn("own etcd does not know a change that was mirrored", "key", string(m.last.Kv.Key), "revision", m.last.Kv.ModRevision)
		m.restored = reasonOriginRestored
	}
	return nil
}

// remembers reports whether the origin, at the revision of an event, had done what
// the event says. One that was compacted beyond it and has changed the key since
// can't tell, which is no.
func (m *mirror) remembers(ctx context.Context, e *clientv3.Event) (bool, error) {
	key := string(e.Kv.Key)
	now, err := m.source.Get(ctx, key)
	if err != nil {
		return false, err
	}
	if e.Type == mvccpb.PUT && len(now.Kvs) == 1 && sameChange(now.Kvs[0], e.Kv) {
		return true, nil
	}
	then, err := m.source.Get(ctx, key, clientv3.WithRev(e.Kv.ModRevision))
	if e.Type == mvccpb.PUT || err != nil {
		return err == nil && len(then.Kvs) == 1 && sameChange(then.Kvs[0], e.Kv), unlessGone(err)
	}
	before, err := m.source.Get(ctx, key, clientv3.WithRev(e.Kv.ModRevision-1))
	return err == nil && len(then.Kvs) == 0 && len(before.Kvs) == 1, unlessGone(err)
}

func sameChange(a, b *mvccpb.KeyValue) bool {
	return a.ModRevision == b.ModRevision && bytes.Equal(a.Value, b.Value)
}

// unlessGone returns nil for the errors which say that an etcd does not have, or
// no longer has, a revision.
func unlessGone(err error) error {
	if errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrFutureRev) {
		return nil
	}
	return err
}
