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
// session of this process had seen. An origin that did something else at that
// revision was restored from a backup, even if store ID, revision and raft term are
// as they could be: a restored etcd that was written to since looks like one that
// has just gone on. One that was compacted beyond it can't tell, and its mirror is
// compared as a whole.
func (m *mirror) checkHistory(ctx context.Context) error {
	if m.last == nil || m.restored != "" {
		return nil
	}
	said, err := m.remembers(ctx, m.last)
	if err != nil {
		return fmt.Errorf("look up the last change on own etcd: %w", err)
	}
	switch said {
	case denies, ahead:
		m.log.Warn("own etcd does not know a change that was mirrored", "key", string(m.last.Kv.Key), "revision", m.last.Kv.ModRevision)
		m.restored = reasonOriginRestored
	case forgotten:
		m.restored = reasonCompacted
	}
	return nil
}

// remembers asks the origin whether, at the revision of an event, it did what the
// event says.
func (m *mirror) remembers(ctx context.Context, e *clientv3.Event) (testimony, error) {
	key := string(e.Kv.Key)
	now, err := m.source.Get(ctx, key)
	if err != nil {
		return notAsked, err
	}
	if e.Type == mvccpb.PUT && len(now.Kvs) == 1 && sameChange(now.Kvs[0], e.Kv) {
		return confirmed, nil
	}
	then, err := m.source.Get(ctx, key, clientv3.WithRev(e.Kv.ModRevision))
	if err != nil {
		return absence(err)
	}
	if e.Type == mvccpb.PUT {
		return verdictOn(len(then.Kvs) == 1 && sameChange(then.Kvs[0], e.Kv)), nil
	}
	before, err := m.source.Get(ctx, key, clientv3.WithRev(e.Kv.ModRevision-1))
	if err != nil {
		return absence(err)
	}
	return verdictOn(len(then.Kvs) == 0 && len(before.Kvs) == 1), nil
}

func verdictOn(same bool) testimony {
	if same {
		return confirmed
	}
	return denies
}

// absence sorts the errors which say that an etcd does not have, or no longer has,
// a revision.
func absence(err error) (testimony, error) {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return forgotten, nil
	case errors.Is(err, rpctypes.ErrFutureRev):
		return ahead, nil
	default:
		return notAsked, err
	}
}

func sameChange(a, b *mvccpb.KeyValue) bool {
	return a.ModRevision == b.ModRevision && bytes.Equal(a.Value, b.Value)
}
