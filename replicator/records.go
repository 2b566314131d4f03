package replicator

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// watchRecords watches the mirror's own three keys on the peer. A successor's
// fence shows at once, on an idle mirror too; a record that somebody else changed
// or removed ends the session, and the next one puts it right.
func (s *session) watchRecords(ctx context.Context) error {
	ctx = s.ownStream(ctx, "records")
	watch := s.client.Watch(ctx, keyspace.MirrorPrefix(s.origin), clientv3.WithPrefix(), clientv3.WithRev(s.fence.since+1))
	for resp := range watch {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("watch mirror's records on peer: %w", err)
		}
		for _, event := range resp.Events {
			if err := s.checkRecord(event); err != nil {
				return err
			}
		}
	}
	return watchEnded(ctx, "mirror's records on peer")
}

// checkRecord returns an error if an event is not of this session's making.
func (s *session) checkRecord(event *clientv3.Event) error {
	put := event.Type == clientv3.EventTypePut
	switch key := string(event.Kv.Key); key {
	case keyspace.OwnerKey(s.origin):
		if put && string(event.Kv.Value) != string(s.fence.owner) {
			return fmt.Errorf("%s: %w", key, ErrFenced)
		}
		if put == (s.fence.owner == nil) {
			return fmt.Errorf("%s: %w", key, errRecords)
		}
	case keyspace.StateKey(s.origin):
		if !put || !s.rec.written.has(event.Kv.Value) {
			return fmt.Errorf("%s: %w", key, errRecords)
		}
	case keyspace.LiveKey(s.origin):
		if !put || event.Kv.Lease != s.liveWanted.Load() {
			return fmt.Errorf("%s: %w", key, errRecords)
		}
	}
	return nil
}

// sums remembers the last values that were added. It is safe for concurrent use.
type sums struct {
	mu   sync.Mutex
	ring [64][sha256.Size]byte
	next int
}

func (s *sums) add(value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring[s.next%len(s.ring)] = sha256.Sum256(value)
	s.next++
}

func (s *sums) has(value []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.ring[:min(s.next, len(s.ring))], sha256.Sum256(value))
}
