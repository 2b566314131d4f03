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
