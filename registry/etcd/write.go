package etcd

import (
	"context"
	"strconv"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
)

// Register implements [registry.Registry]. A batch is one transaction of at most
// [registry.MaxBatch] endpoints and 1 MiB, guarded by the revisions that were
// read, and tried again while others change the same keys, until ctx ends.
func (s *Store) Register(ctx context.Context, endpoints []registry.Endpoint) (registry.Revision, error) {
	prepared, err := registry.Prepare(s.origin, endpoints)
	if err != nil {
		return "", err
	}
	writes, err := puts(prepared)
	if err != nil {
		return "", err
	}
	_, rev, err := s.write(ctx, writes)
	return rev, translate("register endpoints", s.client, err)
}

// Unregister implements [registry.Registry], in batches as Register does. With
// an error it returns how many had been removed before.
func (s *Store) Unregister(ctx context.Context, claims []registry.Claim) (int, registry.Revision, error) {
	prepared, err := registry.PrepareClaims(s.origin, claims)
	if err != nil {
		return 0, "", err
	}
	removed, rev, err := s.write(ctx, removals(prepared))
	return removed, rev, translate("unregister endpoints", s.client, err)
}

// write commits all writes and returns how many keys were written or removed and
// the revision at which all are durable.
func (s *Store) write(ctx context.Context, writes []write) (int, registry.Revision, error) {
	if len(writes) == 0 {
		rev, err := s.head(ctx)
		return 0, rev, err
	}
	done := 0
	var rev registry.Revision
	for batch := range batches(writes) {
		n, at, err := s.commit(ctx, batch)
		if err != nil {
			return done, "", err
		}
		done += n
		rev = revision(at)
	}
	return done, rev, nil
}

// commit writes one batch, whole or not at all.
func (s *Store) commit(ctx context.Context, batch []write) (int, int64, error) {
	read, err := s.txn(ctx, nil, gets(batch), nil)
	for err == nil {
		var steps []step
		steps, err = plan(batch, existing(read), s.present)
		if err != nil || len(steps) == 0 {
			return 0, read.Header.Revision, err
		}
		guards, ops := guarded(steps)
		read, err = s.txn(ctx, guards, ops, gets(batch))
		if err == nil && read.Succeeded {
			return len(steps), read.Header.Revision, nil
		}
	}
	return 0, 0, err
}

func (s *Store) txn(ctx context.Context, guards []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.client.Txn(ctx).If(guards...).Then(then...).Else(otherwise...).Commit()
}

func (s *Store) head(ctx context.Context) (registry.Revision, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	resp, err := s.client.Get(ctx, s.OwnPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return "", err
	}
	return revision(resp.Header.Revision), nil
}

func gets(batch []write) []clientv3.Op {
	ops := make([]clientv3.Op, len(batch))
	for i, w := range batch {
		ops[i] = clientv3.OpGet(w.key)
	}
	return ops
}

// existing returns what gets found, aligned with the batch.
func existing(resp *clientv3.TxnResponse) []*mvccpb.KeyValue {
	out := make([]*mvccpb.KeyValue, len(resp.Responses))
	for i, r := range resp.Responses {
		out[i] = first(r.GetResponseRange())
	}
	return out
}

func first(r *etcdserverpb.RangeResponse) *mvccpb.KeyValue {
	if len(r.GetKvs()) == 0 {
		return nil
	}
	return r.Kvs[0]
}

func guarded(steps []step) ([]clientv3.Cmp, []clientv3.Op) {
	guards := make([]clientv3.Cmp, len(steps))
	ops := make([]clientv3.Op, len(steps))
	for i, s := range steps {
		guards[i] = clientv3.Compare(clientv3.ModRevision(s.key), "=", s.modRevision)
		if s.endpoint == nil {
			ops[i] = clientv3.OpDelete(s.key)
		} else {
			ops[i] = clientv3.OpPut(s.key, string(s.value))
		}
	}
	return guards, ops
}

func revision(rev int64) registry.Revision {
	return registry.Revision(strconv.FormatInt(rev, 10))
}
