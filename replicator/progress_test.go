package replicator

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// A watch that an earlier session left behind on the server, at a revision that a
// restored origin has yet to reach, keeps its stream from being told any progress.
// The next session does not wait for it.
func TestAWatchLeftBehindHoldsNoSessionUp(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 300, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(t.Context()), "aether-watch", "origin-b")
	left := r.from.Watch(ctx, r.prefix, clientv3.WithRev(1_000_000), clientv3.WithCreatedNotify())
	if resp := <-left; resp.Err() != nil {
		t.Fatal(resp.Err())
	}
	// The origin's revision moves without an event below its prefix.
	if _, err := r.from.Put(t.Context(), "/elsewhere", "v"); err != nil {
		t.Fatal(err)
	}
	second := r.start()
	r.waitState(second, StateLive)
	r.waitMirrored()
}
