package replicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// repairEvery is how often a running mirror looks for a request to repair it.
	repairEvery = 2 * time.Second
	// requestTTLSeconds bounds for how long a request waits to be taken up: it must
	// not accept what the operator has not seen.
	requestTTLSeconds = 300
)

// errRepair ends a session so that the next one rebuilds the mirror.
var errRepair = errors.New("repair requested")

// RequestRepair asks, in the origin's own etcd, that its mirror at the peer of that
// name be rebuilt: compared with the origin as a whole, and what differs written.
// For a mirror that is held it accepts the deletes that it is held for. Whoever
// mirrors takes the request up within seconds; one that nobody takes up is void
// after five minutes. [RepairRequested] tells which.
func RequestRepair(ctx context.Context, source Source, peer string) error {
	origin, err := originOf(source.OwnPrefix())
	if err != nil {
		return err
	}
	lease, err := source.Client().Grant(ctx, requestTTLSeconds)
	if err != nil {
		return fmt.Errorf("request repair: %w", err)
	}
	key := keyspace.AcceptKey(origin, peer)
	if _, err := source.Client().Put(ctx, key, time.Now().UTC().Format(time.RFC3339), clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("request repair: %w", err)
	}
	return nil
}

// RepairRequested reports whether a request of RequestRepair still waits.
func RepairRequested(ctx context.Context, source Source, peer string) (bool, error) {
	origin, err := originOf(source.OwnPrefix())
	if err != nil {
		return false, err
	}
	got, err := source.Client().Get(ctx, keyspace.AcceptKey(origin, peer), clientv3.WithCountOnly())
	if err != nil {
		return false, fmt.Errorf("look for a requested repair: %w", err)
	}
	return got.Count > 0, nil
}

// repairAlways ends the session when an operator asked for a repair of a mirror
// that is complete. One that is being rebuilt needs none, and one that is held
// takes the request as its acceptance.
func (s *session) repairAlways(ctx context.Context) error {
	for sleep(ctx, repairEvery) {
		if s.rec.recorded() == 0 {
			continue
		}
		requested, err := s.requested(ctx)
		if err != nil {
			s.note("look for a requested repair", err) // an own etcd that is away is what renewAlways is about
			continue
		}
		if requested {
			s.mirror.repair = true
			return errRepair
		}
	}
	return ctx.Err()
}

// requested takes a request back if there is one; looking alone writes nothing.
func (s *session) requested(ctx context.Context) (bool, error) {
	waits, err := RepairRequested(ctx, s.Source, s.peer.Region)
	if err != nil || !waits {
		return false, err
	}
	return s.accepted(ctx)
}
