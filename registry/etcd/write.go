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
// Batches of several calls at once share a transaction; one that is refused does
// not touch the others. Where too much waits already, it is Unavailable.
func (s *Store) Register(ctx context.Context, endpoints []registry.Endpoint) (registry.Revision, error) {
	prepared, err := registry.Prepare(s.origin, endpoints)
	if err != nil {
		return "", err
	}
	writes, err := puts(prepared)
	if err != nil {
		return "", err
	}
	out, err := s.write(ctx, writes, false)
	return out.Revision, translate("register endpoints", s.client, err)
}

// Unregister implements [registry.Registry], in batches as Register does. With
// an error it returns how many had been removed before.
func (s *Store) Unregister(ctx context.Context, claims []registry.Claim) (int, registry.Revision, error) {
	prepared, err := registry.PrepareClaims(s.origin, claims)
	if err != nil {
		return 0, "", err
	}
	out, err := s.write(ctx, removals(prepared), false)
	return out.Removed, out.Revision, translate("unregister endpoints", s.client, err)
}

// SetHealth changes the health of endpoints that exist, and nothing else of
// them, in batches as Register does. One that does not exist is NotFound, and
// one that the node which the claim names does not hold, because another node or
// nobody does, is a Conflict; then nothing of its batch is changed.
func (s *Store) SetHealth(ctx context.Context, claims []registry.Claim, health registry.Health) (registry.Revision, error) {
	prepared, err := registry.PrepareClaims(s.origin, claims)
	if err != nil {
		return "", err
	}
	if health > registry.Draining {
		return "", registry.Invalidf("health", "%d is unknown: use unspecified, healthy, unhealthy or draining", health)
	}
	writes := removals(prepared)
	for i := range writes {
		writes[i].change = toHealth(prepared[i], health)
	}
	out, err := s.write(ctx, writes, false)
	return out.Revision, translate("set health", s.client, err)
}

func toHealth(c registry.Claim, health registry.Health) func(*registry.Endpoint) (registry.Endpoint, error) {
	return func(stored *registry.Endpoint) (registry.Endpoint, error) {
		if stored == nil {
			return registry.Endpoint{}, registry.Errorf(registry.NotFound,
				"there is no endpoint %s %s %s: register it first", c.Service, c.Protocol, address(c.Key))
		}
		if c.Node != "" && stored.Node != c.Node {
			return registry.Endpoint{}, registry.Errorf(registry.Conflict,
				"no node holds endpoint %s %s %s: name none to change it", c.Service, c.Protocol, address(c.Key))
		}
		e := *stored
		e.Health = health
		return e, nil
	}
}

// Reconcile stores what a node reported and removes what it no longer has, and
// writes only what differs. A stored health of draining stays. Unlike with
// Register, a conflict keeps back its own endpoint alone, and an endpoint to
// remove that another node holds by now is left alone. Conflicts are told by the
// index in store, whose endpoints [registry.Prepare] returned for the store's
// partition.
func (s *Store) Reconcile(ctx context.Context, store []registry.Endpoint, remove []registry.Claim) (registry.Outcome, error) {
	for i := range store {
		if store[i].Origin != s.origin {
			return registry.Outcome{}, registry.Errorf(registry.Internal, "endpoints[%d] is not of the partition that is written here", i)
		}
	}
	claims, err := registry.PrepareClaims(s.origin, remove)
	if err != nil {
		return registry.Outcome{}, err
	}
	writes, err := puts(store)
	if err != nil {
		return registry.Outcome{}, err
	}
	for i := range writes {
		writes[i].reported = true
	}
	out, err := s.write(ctx, append(writes, removals(claims)...), true)
	for i := range out.Conflicts {
		if i >= len(store) {
			delete(out.Conflicts, i)
		}
	}
	return out, translate("reconcile a node's endpoints", s.client, err)
}

// write commits all writes, a batch at a time. With partial, one that is refused
// does not keep back the rest of its batch.
func (s *Store) write(ctx context.Context, writes []write, partial bool) (registry.Outcome, error) {
	out := registry.Outcome{Conflicts: map[int]error{}}
	if len(writes) == 0 {
		rev, err := s.head(ctx)
		out.Revision = rev
		return out, err
	}
	base := 0
	for batch := range batches(writes) {
		r, err := s.group.submit(ctx, batch, partial)
		if err != nil {
			return out, err
		}
		out.Written += r.written
		out.Removed += r.removed
		for i, err := range r.conflicts {
			out.Conflicts[base+i] = err
		}
		out.Revision = revision(r.revision)
		base += len(batch)
	}
	return out, nil
}

func (s *Store) txn(ctx context.Context, guards []clientv3.Cmp, then []clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.client.Txn(ctx).If(guards...).Then(then...).Commit()
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

func first(r *etcdserverpb.RangeResponse) *mvccpb.KeyValue {
	if len(r.GetKvs()) == 0 {
		return nil
	}
	return r.Kvs[0]
}

func revision(rev int64) registry.Revision {
	return registry.Revision(strconv.FormatInt(rev, 10))
}
