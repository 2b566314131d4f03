package replicator

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// What somebody else writes into a mirror tells no one: the audit finds it.
func TestAnAuditMendsDrift(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.change = func(rep *Replicator) { rep.AuditPeriod = 2 * time.Second }
	r.put(0, 500, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	for _, foreign := range []clientv3.Op{
		clientv3.OpPut(r.key(3), "overwritten"), // and off its lease
		clientv3.OpPut(r.key(4), "v"),           // off its lease alone
		clientv3.OpPut(r.prefix+"x", "added"),
	} {
		if _, err := r.to.Do(t.Context(), foreign); err != nil {
			t.Fatal(err)
		}
	}
	r.waitMirrored()
}

// Keys that are deleted on the peer while nobody mirrors tell no one either: the
// next session counts.
func TestKeysRemovedWhileNobodyMirrorsComeBack(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 500, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.to.Delete(t.Context(), r.key(100), clientv3.WithRange(r.key(120))); err != nil {
		t.Fatal(err)
	}
	second := r.start()
	r.waitState(second, StateLive)
	r.waitMirrored()
}
