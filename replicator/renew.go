package replicator

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// renewalsPerTTL is how many rounds of keepalives fall into a TTL.
	renewalsPerTTL = 10
	// provenPerTTL: an origin that has not answered for this part of a TTL counts
	// as gone, and its mirrors are no longer kept alive.
	provenPerTTL = 3
	// grantsInFlight leases are granted at a time.
	grantsInFlight = 128
)

// renewAlways keeps the leases alive, all in one round, as long as the origin
// proves that it is there. A round that fails ends the session only when too
// little of the TTL would be left for another attempt by the next one.
func (s *session) renewAlways(ctx context.Context) error {
	renewed, proven := time.Now(), time.Now()
	ticker := time.NewTicker(s.ttl() / renewalsPerTTL)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.proveOrigin(ctx); err == nil {
			proven = time.Now()
		} else if ctx.Err() == nil {
			s.log.Warn("own etcd does not answer", "error", err, "for", time.Since(proven).Round(time.Millisecond))
		}
		if time.Since(proven) > s.ttl()/provenPerTTL {
			s.status.enter(StateStale, fmt.Errorf("own etcd has not answered for %v: mirrors are not kept alive", time.Since(proven).Round(time.Second)))
			continue
		}
		s.status.leave(StateStale, s.restingState())
		dead, err := s.renew(ctx)
		switch {
		case err == nil:
			renewed = time.Now()
			s.mendLeases(dead)
			if err := s.ensureLive(ctx, dead); err != nil && !isFull(err) {
				return err
			}
		case time.Since(renewed) > s.ttl()/2:
			return fmt.Errorf("renew leases: %w", err)
		case ctx.Err() == nil:
			s.log.Warn("leases were not renewed, trying again", "error", err, "left", (s.ttl() - time.Since(renewed)).Round(time.Millisecond))
			s.avoidSilent(ctx) // another round must not hang as this one did
		}
	}
}

// restingState is the state when nothing is wrong.
func (s *session) restingState() State {
	if s.rec.recorded() == 0 {
		return StateSyncing
	}
	return StateLive
}

// proveOrigin makes a linearizable read of the origin: one without a quorum, or
// cut off, can't answer it.
func (s *session) proveOrigin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(time.Second/2, s.ttl()/renewalsPerTTL))
	defer cancel()
	_, err := s.source.Get(clientv3.WithRequireLeader(ctx), keyspace.StoreKey)
	return err
}

// mendLeases has the ranges of dead leases filled anew, each by itself.
func (s *session) mendLeases(dead map[clientv3.LeaseID]bool) {
	var lost []span
	for _, r := range s.table.within(all) {
		// A blocked range is being filled: its lease may be about to be granted.
		if dead[r.id] && !r.blocked {
			if span, fresh := s.table.block(r.start); fresh {
				lost = append(lost, span)
			}
		}
	}
	if len(lost) > 0 {
		s.log.Warn("leases of the mirror are gone, mending", "leases", len(lost))
		s.tasks.add(lost...)
	}
}

// renew sends one keepalive for each lease over one stream, the live key's last:
// when a round is cut short, the live key is not what has been renewed alone. It
// returns the leases that the peer says do not exist.
func (s *session) renew(ctx context.Context) (dead map[clientv3.LeaseID]bool, err error) {
	var ids []clientv3.LeaseID
	for _, r := range s.table.within(all) {
		if r.id != 0 {
			ids = append(ids, r.id)
		}
	}
	if s.liveLease != 0 {
		ids = append(ids, s.liveLease)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, max(time.Second, s.ttl()/provenPerTTL))
	defer cancel()
	left, err := keepAliveOnce(ctx, s.client, ids)
	if err == nil {
		s.status.renewed(time.Now())
	}
	return deadOf(left), err
}

// deadOf returns the leases that have no time left: those that do not exist.
func deadOf(left map[clientv3.LeaseID]int64) map[clientv3.LeaseID]bool {
	dead := map[clientv3.LeaseID]bool{}
	for id, seconds := range left {
		if seconds <= 0 {
			dead[id] = true
		}
	}
	return dead
}

// keepAliveOnce renews leases over one new stream; with passwords a stream for
// each would cost the peer 75 ms a lease. It returns the seconds that each has
// left, which is the TTL that it was granted with, or 0 if it does not exist.
func keepAliveOnce(ctx context.Context, c *clientv3.Client, ids []clientv3.LeaseID) (map[clientv3.LeaseID]int64, error) {
	stream, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return nil, fmt.Errorf("open keepalive stream: %w", err)
	}
	var g errgroup.Group
	g.Go(func() error {
		for _, id := range ids {
			if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
				return fmt.Errorf("send keepalive: %w", err)
			}
		}
		return stream.CloseSend()
	})
	left := make(map[clientv3.LeaseID]int64, len(ids))
	for range ids {
		resp, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("receive keepalive: %w", err)
		}
		left[clientv3.LeaseID(resp.ID)] = resp.TTL
	}
	return left, g.Wait()
}

// ensureLive makes the live key, on a lease of its own, unless it is there.
func (s *session) ensureLive(ctx context.Context, dead map[clientv3.LeaseID]bool) error {
	live := s.found.live
	if s.liveLease != 0 && !dead[s.liveLease] && live.GetOriginStore() == s.own.id && live.GetLeaseTtl() == s.ttlSeconds() {
		return nil
	}
	live = &mirrorv1.Live{OriginStore: s.own.id, LeaseTtl: s.ttlSeconds()}
	value, err := proto.Marshal(live)
	if err != nil {
		return fmt.Errorf("encode live key: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	granted, err := s.client.Grant(ctx, s.ttlSeconds())
	if isFull(err) {
		return fmt.Errorf("grant lease of live key: %w", errFull)
	}
	if err != nil {
		return fmt.Errorf("grant lease of live key: %w", err)
	}
	s.liveWanted.Store(int64(granted.ID))
	resp, err := s.client.Txn(ctx).If(s.fence.compare()).
		Then(clientv3.OpPut(keyspace.LiveKey(s.origin), string(value), clientv3.WithLease(granted.ID))).Commit()
	switch {
	case isFull(err):
		return fmt.Errorf("write live key: %w", errFull)
	case err != nil:
		return fmt.Errorf("write live key: %w", err)
	case !resp.Succeeded:
		return fmt.Errorf("write live key: %w", ErrFenced)
	}
	s.liveLease, s.found.live = granted.ID, live
	return nil
}

// grant grants the leases of new ranges, under the IDs that the table has, many
// at a time.
func (s *session) grant(ctx context.Context, ids map[clientv3.LeaseID]bool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(grantsInFlight)
	for id := range ids {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
			defer cancel()
			_, err := pb.NewLeaseClient(s.client.ActiveConnection()).
				LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: s.ttlSeconds()})
			// The raw call's error is not yet one of rpctypes'.
			if err = clientv3.ContextError(ctx, err); isFull(err) {
				return fmt.Errorf("grant lease: %w", errFull)
			}
			if err != nil {
				return fmt.Errorf("grant lease: %w", err)
			}
			return nil
		})
	}
	return g.Wait()
}
