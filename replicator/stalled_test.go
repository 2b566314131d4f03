package replicator

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// hangingWatches are the watch streams of a client, which can be made to hang as
// they do behind a connection that was lost in one direction: nothing comes, and
// nothing says so.
type hangingWatches struct {
	generation, hung atomic.Int64
}

// hang makes the streams that there are, and no later ones, hang.
func (h *hangingWatches) hang() { h.hung.Store(h.generation.Load()) }

func (h *hangingWatches) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := stream(ctx, desc, cc, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/Watch") {
		return s, err
	}
	return &hangingStream{ClientStream: s, watches: h, number: h.generation.Add(1)}, nil
}

type hangingStream struct {
	grpc.ClientStream
	watches *hangingWatches
	number  int64
}

func (s *hangingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && s.number <= s.watches.hung.Load() {
		<-s.Context().Done()
		return s.Context().Err()
	}
	return err
}

// A watch of the origin that hangs, while the origin answers all else, is noticed
// and made anew.
func TestAWatchThatHangsIsNoticed(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	var watches hangingWatches
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{r.origin.Endpoint()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithStreamInterceptor(watches.intercept)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // its context's end is the only error
	r.via = client
	r.put(0, 100, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	watches.hang()
	r.put(50, 150, "w")
	r.waitMirrored()
	status := r.waitState(rep, StateLive)
	if !strings.Contains(status.LastError, "stands still") {
		t.Errorf("the last error is %q", status.LastError)
	}
}
