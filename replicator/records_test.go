package replicator

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// Somebody writes over or removes the mirror's records: they are put right soon,
// on an idle mirror too, and nothing below the region's prefix is written for it.
func TestRecordsThatSomebodyChangesArePutRight(t *testing.T) {
	for _, key := range []string{keyspace.LiveKey("a"), keyspace.StateKey("a"), keyspace.OwnerKey("a")} {
		for name, change := range map[string]clientv3.Op{"junk": clientv3.OpPut(key, "junk"), "deleted": clientv3.OpDelete(key)} {
			t.Run(fmt.Sprint(key[len(keyspace.MirrorPrefix("a")):], " ", name), func(t *testing.T) {
				noLeaks(t)
				r := newRig(t)
				r.ttl = 3
				r.put(0, 300, "v")
				rep := r.start()
				r.waitMirrored()
				r.waitState(rep, StateLive)
				watched := r.recordChanges()
				if _, err := r.to.Do(t.Context(), change); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the records are right", r.recordsAreRight)
				r.waitState(rep, StateLive)
				r.put(0, 1, "w")
				r.waitMirrored()
				if puts, deletes := watched.stop(); puts != 1 || deletes != 0 {
					t.Errorf("%d puts and %d deletes, want 1 and 0", puts, deletes)
				}
			})
		}
	}
}

// recordsAreRight says what is wrong with the records, "" if nothing is.
func (r *rig) recordsAreRight() string {
	f := r.found()
	switch {
	case f.owner.GetPeer() != "b":
		return fmt.Sprint("the owner is ", f.owner)
	case f.state.GetCheckpoint() == 0 || len(f.state.GetLeases()) == 0:
		return fmt.Sprint("the state is ", f.state)
	case f.live.GetLeaseTtl() != r.ttl || f.liveLease == 0:
		return fmt.Sprint("the live key is ", f.live, " on lease ", f.liveLease)
	}
	return ""
}
