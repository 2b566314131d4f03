package replicator

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/aether-federation/aether/registry/keyspace"
)

// hold keeps a mirror as it is, its leases alive, when a rebuild after a break
// would delete more than half of it: an emptied origin must not empty the world.
// It returns when the rebuild may go on.
func (s *session) hold(ctx context.Context, p plan) error {
	type share struct{ lost, total int }
	var told share // it is logged when it changes, not at each look
	for {
		lost, total, err := s.wouldDelete(ctx)
		if err != nil {
			return err
		}
		if 2*lost <= total {
			return nil
		}
		s.status.enter(StateHeld, fmt.Errorf("%s: a rebuild would delete %d of the mirror's %d keys: see what it would delete with `aether mirror repair`, and accept it with --accept", p.reason, lost, total))
		if now := (share{lost, total}); now != told {
			s.log.Error("mirror held: a rebuild would delete most of it; if that is right, accept it", "reason", p.reason, "delete", lost, "keys", total)
			told = now
		}
		accepted, err := s.accepted(ctx)
		if err != nil {
			return err
		}
		if accepted {
			return nil
		}
		if !sleep(ctx, holdEvery) {
			return ctx.Err()
		}
	}
}

// holdEvery is how often a held mirror is looked at again.
const holdEvery = 5 * time.Second

// wouldDelete counts the keys that only the peer has, and all that it has.
func (s *session) wouldDelete(ctx context.Context) (lost, total int, err error) {
	next, stop := iter.Pull2(keysOf(ctx, s.source, s, all, nil))
	defer stop()
	origin, err, more := next()
	for key, peerErr := range keysOf(ctx, s.client, s, all, nil) {
		if peerErr != nil {
			return 0, 0, fmt.Errorf("read keys of peer: %w", peerErr)
		}
		for more && err == nil && origin < key {
			origin, err, more = next()
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read keys of own etcd: %w", err)
		}
		total++
		if !more || origin != key {
			lost++
		}
	}
	return lost, total, nil
}

// accepted takes back the operator's word that a held mirror may be rebuilt.
func (s *session) accepted(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	resp, err := s.source.Delete(ctx, keyspace.AcceptKey(s.origin, s.peer.Region))
	if err != nil {
		return false, fmt.Errorf("look for an accepted repair: %w", err)
	}
	return resp.Deleted > 0, nil
}
