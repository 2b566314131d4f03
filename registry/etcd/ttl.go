package etcd

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
)

// maxLeases that one batch of endpoints is kept on. Where it is on more, because it
// was registered in other portions before, it moves to one.
const maxLeases = 4

// errLapsed: etcd took longer than the TTL.
var errLapsed = registry.Errorf(registry.Unavailable, "the lease of the endpoints ran out before they were written: try again")

// RegisterFor is Register of endpoints that go when they are not registered again
// within ttl, which [registry.ValidateTTL] limits. Each batch is on a lease of its
// own, and a lease never gets a key later: so what was registered together, and is
// again, or what is left of it, costs a keepalive and no write. What is registered
// apart from the others of its lease moves to a new one, which leaves the others
// their time. Register takes an endpoint off its lease. The time counts from when
// etcd granted or renewed the lease, shortly before RegisterFor returns.
func (s *Store) RegisterFor(ctx context.Context, ttl time.Duration, endpoints []registry.Endpoint) (registry.Revision, error) {
	prepared, err := registry.Prepare(s.origin, endpoints)
	if err != nil {
		return "", err
	}
	if err := registry.ValidateTTL(ttl, prepared); err != nil {
		return "", err
	}
	writes, err := puts(prepared)
	if err != nil {
		return "", err
	}
	if len(writes) == 0 {
		rev, err := s.head(ctx)
		return rev, translate("register endpoints", s.client, err)
	}
	var rev int64
	for batch := range batches(writes) {
		if rev, err = s.keep(ctx, batch, ttl); err != nil {
			return "", translate("register endpoints with a ttl", s.client, err)
		}
	}
	return revision(rev), nil
}

// keep makes batch stay for ttl: by the leases that it is on or, where something has
// to be written, by one more.
func (s *Store) keep(ctx context.Context, batch []write, ttl time.Duration) (int64, error) {
	t := &transaction{store: s, open: []*pending{{ctx: ctx, batch: batch}}, seen: map[string]bool{}}
	if err := t.read(ctx); err != nil {
		return 0, err
	}
	kept, err := s.renew(ctx, t.found, ttl)
	if err != nil {
		return 0, err
	}
	for i := range batch {
		batch[i].mayStay = kept
	}
	if d := t.plan(t.open[0]); d.result.err != nil || len(d.steps) == 0 {
		return t.revision, d.result.err
	}
	lease, err := s.grant(ctx, ttl)
	if err != nil {
		return 0, err
	}
	for i := range batch {
		batch[i].lease = lease
	}
	r, err := s.group.submit(ctx, batch, false)
	return r.revision, err
}

// renew keeps the leases of found alive that hold nothing else and were granted for
// ttl, and returns them; none if there are too many.
func (s *Store) renew(ctx context.Context, found map[string]*mvccpb.KeyValue, ttl time.Duration) (map[clientv3.LeaseID]bool, error) {
	kept := map[clientv3.LeaseID]bool{}
	for _, id := range leasesOf(found) {
		alive, err := s.renewOne(ctx, id, found, ttl)
		if err != nil {
			return nil, err
		}
		if alive {
			kept[id] = true
		}
	}
	return kept, nil
}

// leasesOf returns the leases that the keys are on; none if there are too many.
func leasesOf(found map[string]*mvccpb.KeyValue) []clientv3.LeaseID {
	var ids []clientv3.LeaseID
	for _, kv := range found {
		if id := clientv3.LeaseID(kv.Lease); id != clientv3.NoLease && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) > maxLeases {
		return nil
	}
	return ids
}

// renewOne reports whether the lease lives on and holds nothing but what was found.
func (s *Store) renewOne(ctx context.Context, id clientv3.LeaseID, found map[string]*mvccpb.KeyValue, ttl time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	lease, err := s.client.TimeToLive(ctx, id, clientv3.WithAttachedKeys())
	if err != nil {
		return false, err
	}
	others := slices.ContainsFunc(lease.Keys, func(key []byte) bool { return found[string(key)] == nil })
	if lease.TTL <= 0 || others || time.Duration(lease.GrantedTTL)*time.Second != ttl {
		return false, nil
	}
	_, err = s.client.KeepAliveOnce(ctx, id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, nil
	}
	return err == nil, err
}

// grant gets a lease. It is never revoked: whether something is on it may not be
// known, and what nothing is on is gone after ttl.
func (s *Store) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	lease, err := s.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return clientv3.NoLease, err
	}
	return lease.ID, nil
}
