package replicator

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

func TestMirrorsWhatWasThereAndWhatChanges(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 2500, "before")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)

	r.put(0, 300, "after")
	r.put(2500, 2600, "new")
	r.remove(1000, 1200)
	r.waitMirrored()

	f := r.found()
	if f.state.GetPhase() != mirrorv1.Phase_PHASE_COMPLETE {
		t.Errorf("phase is %v, want complete", f.state.GetPhase())
	}
	if f.liveLease == 0 {
		t.Error("there is no live key")
	}
}

func TestMirrorsAnEmptyOriginAndItsFirstKey(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	rep := r.start()
	r.waitState(rep, StateLive)
	r.put(0, 1, "v")
	r.waitMirrored()
	r.remove(0, 1)
	r.waitMirrored()
}

// The value is opaque, and keys that no registry would write are mirrored too.
func TestMirrorsVerbatim(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.start()
	for _, key := range []string{"nonsense", "clusters/c1", "\xff\xfe", "a//b", "clusters/c1/"} {
		if _, err := r.from.Put(t.Context(), r.prefix+key, "\x00\xff not an endpoint"); err != nil {
			t.Fatal(err)
		}
	}
	r.waitMirrored()
}

func TestRemovesWhatTheOriginDoesNotHaveAndLeavesTheRest(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 10, "v")
	others := []string{"/aether/v1/regions/ab/x", "/aether/v1/regions/b/x", "/aether/v1/regions/a", "/other"}
	for _, key := range append(others, r.prefix+"stale") {
		if _, err := r.to.Put(t.Context(), key, "theirs"); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	r.waitMirrored()
	for _, key := range others {
		got, err := r.to.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "theirs" || got.Kvs[0].ModRevision != got.Kvs[0].CreateRevision {
			t.Errorf("%s was touched: %v", key, got.Kvs)
		}
	}
}

// Failure case 3: a stop and a start within the TTL change nothing on the peer.
func TestHandoverWritesNothing(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 5000, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	watched := r.recordChanges()
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := r.start()
	r.waitState(second, StateLive)
	r.put(0, 1, "after the handover")
	r.waitMirrored()
	if puts, deletes := watched.stop(); puts != 1 || deletes != 0 {
		t.Errorf("a handover with one change made %d puts and %d deletes", puts, deletes)
	}
}

// Failure case 5: what was deleted while nobody mirrored, before a compaction.
func TestDeletesMadeMeanwhileAndCompactedAreReplayed(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 10000, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	r.remove(3000, 3500)
	head, err := r.from.Get(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.from.Compact(t.Context(), head.Header.Revision); err != nil {
		t.Fatal(err)
	}
	watched := r.recordChanges()
	second := r.start()
	r.waitState(second, StateLive)
	r.waitMirrored()
	if puts, deletes := watched.stop(); puts != 0 || deletes != 500 {
		t.Errorf("%d puts and %d deletes, want 0 and 500", puts, deletes)
	}
}

// Failure case 7: equal values on leases that nobody keeps alive.
func TestEqualValuesAreMovedToLiveLeases(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 250, "v")
	abandoned, err := r.to.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	write(t, r.to, 0, 200, func(i int) clientv3.Op { return clientv3.OpPut(r.key(i), "v", clientv3.WithLease(abandoned.ID)) })
	write(t, r.to, 200, 250, func(i int) clientv3.Op { return clientv3.OpPut(r.key(i), "v") })
	watched := r.recordChanges()
	rep := r.start()
	r.waitState(rep, StateLive)
	r.waitMirrored()
	if left, err := r.to.TimeToLive(t.Context(), abandoned.ID, clientv3.WithAttachedKeys()); err != nil || len(left.Keys) != 0 {
		t.Errorf("the abandoned lease still has %d keys (%v)", len(left.Keys), err)
	}
	if puts, deletes := watched.stop(); puts != 250 || deletes != 0 {
		t.Errorf("%d puts and %d deletes, want 250 and 0", puts, deletes)
	}
}

// The record of the mirror is lost: what differs is written, and nothing else.
func TestALostRecordCostsOnlyWhatDiffers(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 3000, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.to.Delete(t.Context(), keyspace.StateKey("a")); err != nil {
		t.Fatal(err)
	}
	r.put(0, 10, "w")
	r.remove(2000, 2020)
	watched := r.recordChanges()
	second := r.start()
	r.waitState(second, StateLive)
	r.waitMirrored()
	if puts, deletes := watched.stop(); puts != 10 || deletes != 20 {
		t.Errorf("%d puts and %d deletes, want 10 and 20", puts, deletes)
	}
}

// Failure case 4: a lease revoked under a mirror, idle or busy.
func TestARevokedLeaseIsMendedAlone(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 1000, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	before, err := content(t.Context(), r.to, r.prefix)
	if err != nil {
		t.Fatal(err)
	}
	lost := before[r.key(0)].Lease
	if _, err := r.to.Revoke(t.Context(), clientv3.LeaseID(lost)); err != nil {
		t.Fatal(err)
	}
	r.waitMirrored()
	after, err := content(t.Context(), r.to, r.prefix)
	if err != nil {
		t.Fatal(err)
	}
	for key, kv := range before {
		if kv.Lease != lost && after[key].ModRevision != kv.ModRevision {
			t.Fatalf("%s was on another lease and was written", key)
		}
	}
	r.put(0, 1000, "busy")
	r.waitMirrored()
}

func TestKeysRemovedOnThePeerComeBack(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 500, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	if _, err := r.to.Delete(t.Context(), r.key(7)); err != nil {
		t.Fatal(err)
	}
	r.waitMirrored()
}

// Failure case 11, its first half: one revision with many deletes.
func TestOneRevisionWithManyDeletes(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 20000, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	if _, err := r.from.Delete(t.Context(), r.prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	r.waitMirrored()
}

// A mirror that grows far beyond what its leases were laid out for.
func TestLeasesAreSplitWhenTheMirrorGrows(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 100, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	r.put(100, 6000, "v")
	r.waitMirrored()
	eventually(t, "leases are split", func() string {
		if _, leases := keysAndLeases(t, r); leases < 15 {
			return "too few leases"
		}
		return ""
	})
	r.waitMirrored()
	watched := r.recordChanges()
	r.put(6000, 6001, "one more")
	r.waitMirrored()
	if puts, _ := watched.stop(); puts > 300 {
		t.Errorf("one more key made %d puts", puts)
	}
}

// A mirror that shrinks gives its leases up, without a write below its prefix.
func TestLeasesAreGivenUpWhenTheMirrorShrinks(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 3
	r.put(0, 5000, "v")
	rep := r.start()
	r.waitMirrored()
	if s := r.waitState(rep, StateLive); len(r.found().state.GetLeases()) != 50 {
		t.Fatalf("it is on %d leases", s.Leases)
	}
	watched := r.recordChanges()
	r.remove(100, 5000)
	r.waitMirrored()
	eventually(t, "the leases are given up", func() string {
		if n := len(r.found().state.GetLeases()); n > 2 {
			return fmt.Sprint(n, " are left")
		}
		return ""
	})
	r.put(100, 150, "again")
	r.waitMirrored()
	if puts, deletes := watched.stop(); puts != 50 || deletes != 4900 {
		t.Errorf("%d puts and %d deletes, want 50 and 4900", puts, deletes)
	}
}

func keysAndLeases(t *testing.T, r *rig) (keys, leases int) {
	t.Helper()
	all, err := content(t.Context(), r.to, r.prefix)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[int64]bool{}
	for _, kv := range all {
		ids[kv.Lease] = true
	}
	return len(all), len(ids)
}
