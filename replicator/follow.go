package replicator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// ownStream gives a watch a gRPC stream of its own: watches of one client share
// one otherwise, and are told their progress only when all of them have caught up.
// The stream is this session's alone: a watch of an earlier one may have been left
// behind on the server, at a revision that a restored origin has yet to reach.
func (s *session) ownStream(ctx context.Context, name string) context.Context {
	return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), "aether-watch", name+"-"+s.peer.Region+"-"+s.streams)
}

func watchEnded(ctx context.Context, of string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watch of %s ended", of)
}

func (s *session) applyEvent(event *clientv3.Event) {
	key, rev := string(event.Kv.Key), event.Kv.ModRevision
	if event.Type == mvccpb.DELETE {
		s.count(key, rev, -1)
		s.queue.push(key, op{kind: opDelete, rev: rev}, rev)
		return
	}
	if event.IsCreate() {
		s.count(key, rev, +1)
	}
	s.queue.push(key, op{kind: opPut, value: event.Kv.Value, rev: rev}, rev)
}

func (s *session) count(key string, rev int64, more int) {
	if span, split := s.table.count(s.relative(key), rev, more); split {
		s.tasks.add(span)
	}
}

// watchPeer watches the mirror on the peer for deletes that this session did not
// make: a lease revoked, keys removed by hand. Their ranges are mended. It begins
// where whoever recorded the mirror's state had seen them all, so that it finds
// what was deleted while nobody mirrored.
func (s *session) watchPeer(ctx context.Context) error {
	ctx = s.ownStream(ctx, peerStream)
	compacted, err := s.noticeDeletes(ctx, s.peerWatched.Load())
	if !compacted {
		return err
	}
	s.doubts.addAll()
	_, err = s.noticeDeletes(ctx, s.found.revision)
	return err
}

const peerStream = "peer"

// noticeDeletes watches from the peer's revision after from.
func (s *session) noticeDeletes(ctx context.Context, from int64) (compacted bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range s.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(from+1)) {
		if err := resp.Err(); err != nil {
			return resp.CompactRevision > 0 && from < s.found.revision, fmt.Errorf("watch peer: %w", err)
		}
		rev := int64(0)
		for _, event := range resp.Events {
			rev = event.Kv.ModRevision
			s.noticeDelete(string(event.Kv.Key), rev)
		}
		if resp.IsProgressNotify() {
			rev = resp.Header.Revision
		}
		if s.doubts.none() {
			raise(&s.peerWatched, rev)
		}
	}
	return false, watchEnded(ctx, "peer")
}

// noticeDelete takes a delete on the peer. One that may be a predecessor's, or this
// session's own, is looked into when that can be told; any other is mended at once.
func (s *session) noticeDelete(key string, rev int64) {
	underway := s.queue.has(key)
	if s.deleted.has(rev) || !strings.HasPrefix(key, s.prefix) {
		return
	}
	if underway || rev <= s.fence.since {
		s.doubts.add(key, rev)
		return
	}
	span, fresh := s.table.block(s.relative(key))
	if !fresh {
		s.doubts.add(key, rev)
		return
	}
	s.meter.foreignDelete()
	s.log.Warn("keys of the mirror were deleted on the peer, mending", "key", key, "peer_revision", rev)
	s.tasks.add(span)
}

// askPeer has the peer say how far the watch of it is.
func (s *session) askPeer(ctx context.Context) {
	if err := s.client.RequestProgress(s.ownStream(ctx, peerStream)); err != nil {
		s.log.Debug("ask for progress of the peer's watch", "error", err)
	}
}

// revisions remembers the last of the peer's revisions in which this session
// deleted keys.
type revisions struct {
	mu   sync.Mutex
	ring [4096]int64
	next int
}

func (r *revisions) add(rev int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.next%len(r.ring)] = rev
	r.next++
}

func (r *revisions) has(rev int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range r.ring[:min(r.next, len(r.ring))] {
		if known == rev {
			return true
		}
	}
	return false
}

// probeEvery is how often both stores are asked whether they still are what they
// were.
const probeEvery = 5 * time.Second

// probeAlways ends the session when a store was replaced or set back, or when the
// watch of the origin stands still: a restored etcd does not say so, a watch from a
// revision that it has yet to reach waits in silence, and so does one on a
// connection that hangs.
func (s *session) probeAlways(ctx context.Context) error {
	head, position := int64(0), int64(0)
	for sleep(ctx, probeEvery) {
		if now := s.queue.depth().position; now == position && now < head {
			return fmt.Errorf("watch of own etcd stands still at revision %d, which was at %d %v ago: %w", now, head, probeEvery, errStalled)
		}
		position = s.queue.depth().position
		if err := s.probe(ctx, &head); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// probe asks both stores; head becomes the origin's revision.
func (s *session) probe(ctx context.Context, head *int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout())
	defer cancel()
	last := s.own
	last.revision = max(last.revision, s.seenOwn.Load())
	own, err := identify(ctx, s.source)
	if err == nil {
		if err := follows("own etcd", last, own); err != nil {
			return err
		}
		*head = own.revision
		s.requestProgress() // by the next probe the watch is there
	} else {
		// An origin without quorum is what renewAlways is about.
		s.log.Debug("probe own etcd", "error", err)
	}
	last = s.theirs
	last.revision = max(last.revision, s.seenTheirs.Load())
	theirs, err := identify(ctx, s.client)
	if err != nil {
		return fmt.Errorf("probe peer: %w", err)
	}
	return follows("peer's etcd", last, theirs)
}

// raise makes v at least n.
func raise(v *atomic.Int64, n int64) {
	for was := v.Load(); n > was && !v.CompareAndSwap(was, n); was = v.Load() {
	}
}

// follows returns an error when now can't be a later state of last.
func follows(what string, last, now store) error {
	switch {
	case last.id != "" && now.id != last.id:
		return fmt.Errorf("%s is store %s and was %s: %w", what, now.id, last.id, errBroken)
	case now.revision != 0 && now.revision < last.revision:
		return fmt.Errorf("%s is at revision %d and was at %d: %w", what, now.revision, last.revision, errBroken)
	case now.term < last.term:
		return fmt.Errorf("%s is in raft term %d and was in %d: %w", what, now.term, last.term, errBroken)
	}
	return nil
}
