package replicator

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	clientv3 "go.etcd.io/etcd/client/v3"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/keyspace"
)

// A peer that is set back under a session that goes on never says of the changes
// that it has lost that it holds them.
func TestAPeerSetBackGetsNoCheckpointOfWhatItLost(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 300, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	before := r.found().revision
	backup := etcdtest.Backup(t, r.peer)
	r.put(0, 300, "w")
	r.waitMirrored()
	origin, err := r.from.Get(t.Context(), r.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	// The state that covers them is written within seconds: now, to the old peer, or
	// to what it is set back to.
	backup.Restore(r.peer)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for resp := range r.to.Watch(ctx, keyspace.StateKey("a"), clientv3.WithRev(before+1)) {
		for _, e := range resp.Events {
			state := &mirrorv1.State{}
			if err := proto.Unmarshal(e.Kv.Value, state); err != nil {
				t.Fatal(err)
			}
			if state.GetPhase() != mirrorv1.Phase_PHASE_COMPLETE || state.GetCheckpoint() < origin.Header.Revision {
				continue
			}
			if old := r.countValues("v", e.Kv.ModRevision); old > 0 {
				t.Fatalf("it was called complete up to %d with %d keys as they were before", state.GetCheckpoint(), old)
			}
			r.waitMirrored()
			return
		}
	}
	t.Fatal("the mirror never became complete again")
}

// countValues counts the keys of the mirror that had a value at a revision of the
// peer.
func (r *rig) countValues(value string, rev int64) (n int) {
	r.t.Helper()
	got, err := r.to.Get(r.t.Context(), r.prefix, clientv3.WithPrefix(), clientv3.WithRev(rev))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, kv := range got.Kvs {
		if string(kv.Value) == value {
			n++
		}
	}
	return n
}
