package replicator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// lookupsInFlight transactions read keys on the peer at a time.
const lookupsInFlight = 16

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
		n := min(len(keys), maxTxnOps)
		some := keys[:n]
		keys = keys[n:]
		g.Go(func() error {
			found, err := s.lookUp(ctx, s.client, "peer", some)
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

// lookUp reads keys of what c reaches; the result has nil for one that is not there.
func (s *session) lookUp(ctx context.Context, c *clientv3.Client, what string, keys []string) ([]*mvccpb.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key)
	}
	resp, err := c.Txn(ctx).Then(gets...).Commit()
	if errors.Is(err, rpctypes.ErrTooManyOps) && len(keys) > 1 {
		return s.lookUpHalves(ctx, c, what, keys)
	}
	if err != nil {
		return nil, fmt.Errorf("read %d keys of %s: %w", len(keys), what, err)
	}
	found := make([]*mvccpb.KeyValue, len(keys))
	for i, r := range resp.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			found[i] = kvs[0]
		}
	}
	return found, nil
}

// lookUpHalves is lookUp for an etcd that allows fewer operations a transaction.
func (s *session) lookUpHalves(ctx context.Context, c *clientv3.Client, what string, keys []string) ([]*mvccpb.KeyValue, error) {
	first, err := s.lookUp(ctx, c, what, keys[:len(keys)/2])
	if err != nil {
		return nil, err
	}
	second, err := s.lookUp(ctx, c, what, keys[len(keys)/2:])
	return append(first, second...), err
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
