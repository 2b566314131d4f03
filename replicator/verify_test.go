package replicator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func (r *rig) verify(pause time.Duration) (Verification, error) {
	return Verify(r.t.Context(), source{r.from, r.prefix}, r.peerConfig(), VerifyOptions{Pause: pause})
}

// revisions of both stores: what only reads does not move them.
func (r *rig) revisions() string {
	r.t.Helper()
	out := ""
	for _, c := range []*clientv3.Client{r.from, r.to} {
		got, err := c.Get(r.t.Context(), "k", clientv3.WithCountOnly())
		if err != nil {
			r.t.Fatal(err)
		}
		out += fmt.Sprint(got.Header.Revision, " ")
	}
	return out
}

func TestVerifyTellsEachKindOfDifference(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 120
	r.put(0, 500, "v")
	rep := r.start()
	r.waitState(rep, StateLive)
	r.waitMirrored()
	if err := rep.stop(); err != nil {
		t.Fatal(err)
	}
	before := r.revisions()
	v, err := r.verify(time.Millisecond)
	if err != nil || !v.Equal() || v.Keys != 500 || v.PeerKeys != 500 || !v.Complete || v.Leases == 0 {
		t.Errorf("of a mirror that is equal: %+v, %v", v, err)
	}
	if now := r.revisions(); now != before {
		t.Errorf("verify moved the revisions from %s to %s", before, now)
	}

	stray, err := r.to.Grant(t.Context(), 120)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []clientv3.Op{
		clientv3.OpDelete(r.key(1)),
		clientv3.OpPut(r.key(2), "other", clientv3.WithIgnoreLease()),
		clientv3.OpPut(r.key(3), "v"),
		clientv3.OpPut(r.key(4), "v", clientv3.WithLease(stray.ID)),
		clientv3.OpPut(r.prefix+"zzz", "v"),
	} {
		if _, err := r.to.Do(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	v, err = r.verify(time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if v.Missing != 1 || v.Value != 1 || v.Lease != 2 || v.Extra != 1 || len(v.Differences) != 5 {
		t.Errorf("found %+v", v)
	}
}

// TestVerifyToleratesChanges: keys that are written all the time are behind at
// each look, and no differences.
func TestVerifyToleratesChanges(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 300, "v")
	rep := r.start()
	r.waitState(rep, StateLive)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := r.from.Put(ctx, r.key(i%20), fmt.Sprint(i)); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	v, err := r.verify(500 * time.Millisecond)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err != nil || !v.Equal() {
		t.Errorf("found %+v, %v", v, err)
	}
}

func TestVerifySaysWhenItCannotTell(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	if _, err := identify(t.Context(), r.from); err != nil {
		t.Fatal(err)
	}
	own := Peer{Region: "b", Endpoints: []string{r.origin.Endpoint()}}
	if _, err := Verify(t.Context(), source{r.from, r.prefix}, own, VerifyOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("compared with itself: %v, want ErrRefused", err)
	}
	r.peer.Stop()
	if _, err := Verify(t.Context(), source{r.from, r.prefix}, r.peerConfig(), VerifyOptions{Timeout: time.Second}); err == nil {
		t.Error("compared with nobody: no error")
	}
}

// TestARepairMendsALiveMirror: what was overwritten by hand is found at once, and
// what was right is not written again.
func TestARepairMendsALiveMirror(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 300, "v")
	rep := r.start()
	r.waitState(rep, StateLive)
	r.waitMirrored()
	if _, err := r.to.Put(t.Context(), r.key(7), "other", clientv3.WithIgnoreLease()); err != nil {
		t.Fatal(err)
	}
	watched := r.recordChanges()
	src := source{r.from, r.prefix}
	if err := RequestRepair(t.Context(), src, "b"); err != nil {
		t.Fatal(err)
	}
	r.waitMirrored()
	r.waitState(rep, StateLive)
	if puts, deletes := watched.stop(); puts != 1 || deletes != 0 {
		t.Errorf("the repair made %d puts and %d deletes, want one put", puts, deletes)
	}
	if waits, err := RepairRequested(t.Context(), src, "b"); waits || err != nil {
		t.Errorf("the request still waits: %v, %v", waits, err)
	}
}
