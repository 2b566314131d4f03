package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

// transaction is one under way, for the batches of one or more calls.
type transaction struct {
	store *Store
	// open are the batches that have no result yet.
	open []*pending
	// found is what was read, by key.
	found    map[string]*mvccpb.KeyValue
	revision int64
	// seen are nodes whose presence was read, whatever the hook says.
	seen map[string]bool
}

// transact commits the batches of members, each whole or not at all, and tells
// each its result. The end of one caller's context gives up that caller's batch
// alone, and none that is being sent.
func (s *Store) transact(members []*pending) {
	t := &transaction{store: s, open: members, seen: map[string]bool{}}
	ctx := context.WithoutCancel(members[0].ctx)
	var err error
	if !t.fresh() {
		err = t.read(ctx)
	}
	for err == nil && len(t.open) > 0 {
		err = t.attempt(ctx)
	}
	t.finish(err)
}

// finish tells err to every batch that is open.
func (t *transaction) finish(err error) {
	for _, p := range t.open {
		p.done <- result{err: err}
	}
	t.open = nil
}

// fresh reports whether all writes are to store what is not known: then it is not
// worth reading first.
func (t *transaction) fresh() bool {
	for w := range t.writes() {
		if w.endpoint == nil || t.store.known(w.id) {
			return false
		}
	}
	return true
}

// read reads the keys of the open batches.
func (t *transaction) read(ctx context.Context) error {
	var ops []clientv3.Op
	for w := range t.writes() {
		ops = append(ops, clientv3.OpGet(w.key))
	}
	resp, err := t.store.txn(ctx, nil, ops)
	if err != nil {
		return err
	}
	t.revision = resp.Header.Revision
	t.found = make(map[string]*mvccpb.KeyValue, len(resp.Responses))
	for _, r := range resp.Responses {
		if kv := first(r.GetResponseRange()); kv != nil {
			t.found[string(kv.Key)] = kv
		}
	}
	return nil
}

func (t *transaction) writes() func(yield func(write) bool) {
	return func(yield func(write) bool) {
		for _, p := range t.open {
			for _, w := range p.batch {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// decided is a batch with what it has to do.
type decided struct {
	*pending
	result result
	steps  []step
}

// attempt plans every open batch and sends what is to be done. Those that are
// refused, or have nothing to do, have their result then; after a transaction
// that went through, all have.
func (t *transaction) attempt(ctx context.Context) error {
	var batches []decided
	var steps []step
	for _, p := range t.open {
		d := t.plan(p)
		if d.result.err != nil || len(d.steps) == 0 {
			d.result.revision = t.revision
			p.done <- d.result
			continue
		}
		batches = append(batches, d)
		steps = append(steps, d.steps...)
	}
	t.open = t.open[:0:0]
	for _, d := range batches {
		t.open = append(t.open, d.pending)
	}
	if len(batches) == 0 {
		return nil
	}
	req, absent := request(t.store.origin, steps)
	switch {
	case len(req.Compare) > registry.MaxBatch && len(batches) > 1:
		t.apart()
		return nil
	case len(req.Compare) > registry.MaxBatch:
		return registry.Errorf(registry.Invalid, "the endpoints are held by too many nodes that left: send fewer at a time")
	}
	resp, err := t.store.send(ctx, req)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound) && len(batches) > 1:
		t.apart()
		return nil
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return errLapsed
	case err != nil:
		return err
	}
	if !resp.Succeeded {
		if err := t.readPresence(ctx, absent); err != nil {
			return err
		}
		return t.read(ctx)
	}
	for _, d := range batches {
		d.result.revision = resp.Header.Revision
		d.done <- d.result
	}
	t.open = nil
	return nil
}

// apart commits each open batch by itself: one of them keeps back the others.
func (t *transaction) apart() {
	for _, p := range t.open {
		t.store.transact([]*pending{p})
	}
	t.open = nil
}

// plan decides what p has to do. A conflict refuses all of it, or only its own
// write if p is partial.
func (t *transaction) plan(p *pending) decided {
	d := decided{pending: p, result: result{conflicts: map[int]error{}, err: p.ctx.Err()}}
	for i, w := range p.batch {
		s, needed, err := decide(w, t.found[w.key], t.present)
		switch {
		case err != nil && p.partial && registry.KindOf(err) == registry.Conflict:
			d.result.conflicts[i] = err
		case err != nil:
			d.result = result{err: err}
			return d
		case needed && s.removes():
			d.result.removed++
			d.steps = append(d.steps, s)
		case needed:
			d.result.written++
			d.steps = append(d.steps, s)
		}
	}
	return d
}

func (t *transaction) present(node string) bool { return t.seen[node] || t.store.present(node) }

// readPresence notes which of the nodes that were taken to be absent are there.
func (t *transaction) readPresence(ctx context.Context, nodes []string) error {
	if len(nodes) == 0 {
		return nil
	}
	ops := make([]clientv3.Op, len(nodes))
	for i, n := range nodes {
		ops[i] = clientv3.OpGet(keyspace.PresenceKey(t.store.origin, n), clientv3.WithCountOnly())
	}
	resp, err := t.store.txn(ctx, nil, ops)
	if err != nil {
		return err
	}
	for i, r := range resp.Responses {
		if r.GetResponseRange().GetCount() > 0 {
			t.seen[nodes[i]] = true
		}
	}
	return nil
}

// isAbsent is true where node has no presence key.
func isAbsent(own registry.Origin, node string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(keyspace.PresenceKey(own, node)), "=", 0)
}
