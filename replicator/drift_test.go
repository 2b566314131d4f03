package replicator

import (
	"context"
	"fmt"
	"log/slog"
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

// Keys that are deleted on the peer while nobody mirrors come back with the next
// session, on a mirror that never rests too, and where the peer has forgotten that
// they were deleted.
func TestKeysRemovedWhileNobodyMirrorsComeBack(t *testing.T) {
	for name, compact := range map[string]bool{"known": false, "compacted": true} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			r := newRig(t)
			r.put(0, 500, "v")
			first := r.start()
			r.waitMirrored()
			r.waitState(first, StateLive)
			if err := first.stop(); err != nil {
				t.Fatal(err)
			}
			deleted, err := r.to.Delete(t.Context(), r.key(100), clientv3.WithRange(r.key(120)))
			if err != nil {
				t.Fatal(err)
			}
			if compact {
				if _, err := r.to.Compact(t.Context(), deleted.Header.Revision); err != nil {
					t.Fatal(err)
				}
			}
			stop := r.keepChanging(400)
			second := r.start()
			r.waitState(second, StateLive)
			eventually(t, "the keys are back", func() string {
				got, err := r.to.Get(t.Context(), r.key(100), clientv3.WithRange(r.key(120)), clientv3.WithCountOnly())
				if err != nil || got.Count != 20 {
					return fmt.Sprint(got, err)
				}
				return ""
			})
			stop()
			r.waitMirrored()
		})
	}
}

// keepChanging changes a key of the origin without a pause, until stop is called.
func (r *rig) keepChanging(i int) (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ctx.Err() == nil; n++ {
			if _, err := r.from.Put(ctx, r.key(i), fmt.Sprint(n)); err != nil && ctx.Err() == nil {
				r.t.Error(err)
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// Most keys deleted by hand under a live mirror: it is rebuilt, once, and not found
// broken again and again.
func TestMostKeysRemovedComeBack(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 3000, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	if _, err := r.to.Delete(t.Context(), r.key(100), clientv3.WithRange(r.key(2900))); err != nil {
		t.Fatal(err)
	}
	r.waitMirrored()
	r.waitState(rep, StateLive)
}

// A delete on the peer that may be anybody's is in doubt, and not told to a successor
// as known, until it was looked into; any other blocks its range, which is recorded as
// incomplete.
func TestDeletesThatMayBeAnybodysAreInDoubt(t *testing.T) {
	const prefix = "/aether/v1/regions/a/"
	fresh := func() *session {
		s := newSession(&mirror{Replicator: &Replicator{}, prefix: prefix, meter: newMetrics(nil).of("b"), log: slog.New(slog.DiscardHandler)}, found{}, fence{since: 10})
		s.table.ranges = []leaseRange{{id: 1}}
		return s
	}
	blocked := func(s *session) bool {
		is := s.table.within(all)[0].blocked
		if recorded := s.rec.state().GetLeases()[0].GetIncomplete(); recorded != is {
			t.Errorf("a range that is blocked: %v, is recorded as incomplete: %v", is, recorded)
		}
		return is
	}

	s := fresh()
	s.noticeDelete(prefix+"k", 11)
	if !blocked(s) || !s.doubts.none() {
		t.Error("a delete that is nobody's of this session does not block its range")
	}
	s.noticeDelete(prefix+"l", 12) // while the range is mended
	if s.doubts.none() {
		t.Error("a delete in a range that is being mended is forgotten")
	}
	s = fresh()
	s.noticeDelete(prefix+"k", 10) // a predecessor's, perhaps
	if blocked(s) || s.doubts.none() {
		t.Error("a delete from before the session is not in doubt")
	}
	s = fresh()
	s.queue.push(prefix+"k", op{kind: opDelete, rev: 5}, 5)
	s.noticeDelete(prefix+"k", 11) // beside an own one
	if blocked(s) || s.doubts.none() {
		t.Error("a delete beside an own one is not in doubt")
	}
	s = fresh()
	s.deleted.add(11)
	s.noticeDelete(prefix+"k", 11)
	if blocked(s) || !s.doubts.none() {
		t.Error("an own delete is taken for somebody else's")
	}
}
