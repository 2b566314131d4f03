package replicator

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
)

// One member of three hangs for longer than a TTL, while keys change all the time:
// the other two are a peer that is well, and no key may expire there.
func TestAHungMemberCostsNoLease(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	cluster := etcdtest.StartCluster(t, 3)
	r.to = cluster.Client(t)
	r.put(0, 300, "v")
	rep := r.start(Peer{Region: "b", Endpoints: cluster.Endpoints()})
	r.waitMirrored()
	r.waitState(rep, StateLive)
	watched := r.recordChanges()
	cluster.Member((cluster.Leader() + 1) % 3).Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2*r.ttl)*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		r.put(0, 100, time.Now().String())
		sleep(ctx, 50*time.Millisecond)
	}
	cluster.Signal(syscall.SIGCONT)
	r.waitMirrored()
	if _, deletes := watched.stop(); deletes > 0 {
		t.Errorf("%d deletes on the peer", deletes)
	}
}
