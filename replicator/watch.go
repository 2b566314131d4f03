package replicator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// askProgress is how often the origin is asked how far the watch is: on an idle
// prefix nothing else moves the checkpoint past a compaction.
const askProgress = 5 * time.Second

// follow watches the origin and pushes each change into the queue: those after a
// revision or, when that is 0, after now. opened is closed once the queue's
// position is where the watch begins.
//
// The watch is one gRPC stream and ends with it. etcd's client would resume it on
// another connection without a word, and an etcd that was restored from a backup
// and written to since would look as if it had just gone on. So a lost stream ends
// the session, and the next one makes sure that the history is the same.
func (s *session) follow(ctx context.Context, after int64, opened chan<- struct{}) error {
	g, ctx := errgroup.WithContext(ctx)
	stream, err := pb.NewWatchClient(s.source.ActiveConnection()).Watch(clientv3.WithRequireLeader(ctx), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return fmt.Errorf("open watch of own etcd: %w", err)
	}
	create := &pb.WatchCreateRequest{
		Key: []byte(s.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(s.prefix)), ProgressNotify: true,
	}
	if after > 0 {
		s.queue.advance(after)
		create.StartRevision = after + 1
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return fmt.Errorf("watch own etcd: %w", err)
	}
	g.Go(func() error { return s.receive(ctx, stream, after, opened) })
	g.Go(func() error { return s.askAlways(ctx, stream) })
	return g.Wait()
}

// receive applies what a watch delivers. It never waits for the peer.
func (s *session) receive(ctx context.Context, stream pb.Watch_WatchClient, after int64, opened chan<- struct{}) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("watch own etcd: %w", clientv3.ContextError(ctx, err))
		}
		switch {
		case resp.CompactRevision > 0:
			return fmt.Errorf("watch own etcd: %w", rpctypes.ErrCompacted)
		case resp.Canceled:
			return fmt.Errorf("watch own etcd: %w", errors.New(resp.CancelReason))
		case resp.Created:
			// One without a start begins behind this revision, so that no compaction
			// can come between the two.
			if after == 0 {
				s.queue.advance(resp.Header.Revision)
			}
			close(opened)
		default:
			s.apply(resp)
		}
	}
}

// askAlways asks for progress from time to time, and whenever somebody wants it.
func (s *session) askAlways(ctx context.Context, stream pb.Watch_WatchClient) error {
	ticker := time.NewTicker(askProgress)
	defer ticker.Stop()
	ask := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
	for {
		select {
		case <-ticker.C:
		case <-s.asked:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := stream.Send(ask); err != nil {
			return fmt.Errorf("request progress of own etcd's watch: %w", err)
		}
	}
}

// requestProgress has the origin say how far the watch is.
func (s *session) requestProgress() {
	select {
	case s.asked <- struct{}{}:
	default: // it is about to be asked
	}
}

func (s *session) apply(resp *pb.WatchResponse) {
	// The header's revision is the store's head, which in a catch-up is ahead of
	// what was delivered; without events it is how far the watch is.
	position := int64(0)
	if len(resp.Events) == 0 {
		position = resp.Header.Revision
	}
	for _, e := range resp.Events {
		event := (*clientv3.Event)(e)
		position = max(position, event.Kv.ModRevision)
		s.applyEvent(event)
		s.last.Store(event)
	}
	s.queue.advance(position)
	raise(&s.seenOwn, position)
}

// reach waits until every origin change up to rev was pushed and, if settled,
// acknowledged by the peer.
func (s *session) reach(ctx context.Context, rev int64, settled bool) error {
	// Progress is asked for until it comes: an idle watch says nothing by itself.
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	if s.queue.depth().position < rev {
		s.requestProgress()
	}
	for {
		changed := s.queue.changes()
		d := s.queue.depth()
		if d.position >= rev && (!settled || d.checkpoint >= rev) {
			return nil
		}
		select {
		case <-changed:
		case <-ticker.C:
			if d.position < rev {
				s.requestProgress()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
