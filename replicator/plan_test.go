package replicator

import (
	"fmt"
	"slices"
	"sort"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"
)

func sortedKeys(t *rapid.T, label string, most int) []string {
	set := rapid.MapOf(rapid.StringMatching(`[a-d]{1,3}/[0-9]{1,4}`), rapid.Just(true)).
		Filter(func(m map[string]bool) bool { return len(m) <= most }).Draw(t, label)
	keys := make([]string, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// checkLayout checks what a layout of keys promises, whatever it was made from.
func checkLayout(t *rapid.T, ranges []leaseRange, keys []string, start string, perLease int) {
	if len(ranges) == 0 || ranges[0].start != start {
		t.Fatalf("layout begins with %+v, want start %q", ranges, start)
	}
	table := leaseTable{ranges: ranges}
	counted := make([]int, len(ranges))
	for _, k := range keys {
		counted[table.find(k)]++
	}
	for i, r := range ranges {
		if i > 0 && ranges[i-1].start >= r.start {
			t.Fatalf("ranges are not sorted: %q, %q", ranges[i-1].start, r.start)
		}
		if counted[i] != r.keys {
			t.Fatalf("range %q says %d keys and has %d", r.start, r.keys, counted[i])
		}
		if counted[i] > splitAbove(perLease) {
			t.Fatalf("range %q has %d keys, split above %d", r.start, counted[i], splitAbove(perLease))
		}
	}
}

func TestPlaceKeepsWhatFitsAndSplitsWhatDoesNot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perLease := rapid.IntRange(1, 8).Draw(t, "per lease")
		first := sortedKeys(t, "first", 300)
		ranges := place(nil, slices.Values(first), perLease)
		checkLayout(t, ranges, first, "", perLease)
		for i := range ranges {
			ranges[i].id = clientv3.LeaseID(i + 1)
		}
		// The same keys again change nothing.
		again := place(ranges, slices.Values(first), perLease)
		if !slices.Equal(again, ranges) && len(first) > 0 {
			t.Fatalf("placed again, %+v became %+v", ranges, again)
		}
		// Other keys keep the leases of ranges that still fit.
		second := sortedKeys(t, "second", 300)
		moved := place(ranges, slices.Values(second), perLease)
		checkLayout(t, moved, second, "", perLease)
		for _, r := range moved {
			if r.id != 0 && ranges[r.id-1].start != r.start {
				t.Fatalf("lease %d moved from %q to %q", r.id, ranges[r.id-1].start, r.start)
			}
		}
	})
}

func TestPlaceWithinASpan(t *testing.T) {
	old := []leaseRange{{start: "m", id: 7}}
	keys := []string{"m1", "m2", "m3", "n1", "n2"}
	ranges := place(old, slices.Values(keys), 1)
	if ranges[0].start != "m" || ranges[0].id != 7 || len(ranges) != 5 {
		t.Errorf("placed %+v", ranges)
	}
}

func TestPlaceManyKeysInOneOldRange(t *testing.T) {
	keys := func(yield func(string) bool) {
		for i := range 3 * maxMarks {
			if !yield(fmt.Sprintf("%08d", i)) {
				return
			}
		}
	}
	ranges := place(nil, keys, fillKeysPerLease)
	total := 0
	for _, r := range ranges {
		if r.keys > maxKeysPerLease {
			t.Fatalf("range %q has %d keys", r.start, r.keys)
		}
		total += r.keys
	}
	if total != 3*maxMarks {
		t.Errorf("placed %d keys, want %d", total, 3*maxMarks)
	}
}

func TestKeysPerLeaseStaysWithinItsBounds(t *testing.T) {
	for total, want := range map[int]int{0: 100, 1: 100, 50_000: 100, 50_001: 101, 100_000: 200, 400_000: 800, 1_000_000: 800} {
		if got := keysPerLease(total); got != want {
			t.Errorf("%d keys: %d a lease, want %d", total, got, want)
		}
	}
}

func TestRunsBecomeRanges(t *testing.T) {
	var r runs
	for _, kv := range []struct {
		key string
		id  clientv3.LeaseID
	}{{"a1", 1}, {"a2", 1}, {"b1", 0}, {"b2", 9}, {"c1", 2}, {"c2", 1}, {"d1", 3}} {
		r.add(kv.key, kv.id)
	}
	got := r.ranges(func(id clientv3.LeaseID) bool { return id == 1 || id == 2 || id == 3 })
	want := []leaseRange{{start: "", id: 1}, {start: "b", id: 0}, {start: "c", id: 2}, {start: "c2", id: 0}, {start: "d", id: 3}}
	for i := range want {
		want[i].incomplete = true
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if empty := (&runs{}).ranges(nil); len(empty) != 1 || empty[0].start != "" || empty[0].id != 0 {
		t.Errorf("of no keys: %+v", empty)
	}
}

func TestSwapReplacesASpanAndNothingElse(t *testing.T) {
	table := leaseTable{ranges: []leaseRange{{start: "", id: 1}, {start: "d", id: 2}, {start: "m", id: 3}}}
	table.swap(span{"d", "m"}, []leaseRange{{start: "d", id: 2}, {start: "f", id: 4}})
	want := []leaseRange{{start: "", id: 1}, {start: "d", id: 2}, {start: "f", id: 4}, {start: "m", id: 3}}
	if !slices.Equal(table.ranges, want) {
		t.Errorf("%+v", table.ranges)
	}
	table.swap(all, []leaseRange{{start: "", id: 9}})
	if len(table.ranges) != 1 || table.ranges[0].id != 9 {
		t.Errorf("%+v", table.ranges)
	}
}

func TestUnitsCoverTheirSpan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := sortedKeys(t, "keys", 200)
		ranges := place(nil, slices.Values(keys), 3)
		parts := units(ranges, "end", rapid.IntRange(1, 50).Draw(t, "limit"))
		at := ranges[0].start
		for _, p := range parts {
			if p.start != at {
				t.Fatalf("a part begins at %q, want %q", p.start, at)
			}
			at = p.end
		}
		if at != "end" {
			t.Fatalf("the last part ends at %q", at)
		}
	})
}

func TestDifference(t *testing.T) {
	for _, test := range []struct {
		name string
		pair pair
		want string
	}{
		{"nowhere", pair{}, "nothing"},
		{"on the origin alone", pair{origin: true, value: []byte("v")}, "put"},
		{"on the peer alone", pair{peer: true, lease: 1}, "delete"},
		{"equal", pair{origin: true, peer: true, value: []byte("v"), peerValue: []byte("v"), lease: 1, wanted: 1}, "nothing"},
		{"other value", pair{origin: true, peer: true, value: []byte("v"), peerValue: []byte("w"), lease: 1, wanted: 1}, "put"},
		{"other lease", pair{origin: true, peer: true, value: []byte("v"), peerValue: []byte("v"), lease: 2, wanted: 1}, "attach"},
		{"no lease", pair{origin: true, peer: true, wanted: 1}, "attach"},
	} {
		got := "nothing"
		if o, differs := difference(test.pair); differs {
			got = map[opKind]string{opPut: "put", opDelete: "delete", opAttach: "attach"}[o.kind]
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func nowhere(string) (clientv3.LeaseID, bool) { return 0, false }

// The queue against a model: whatever is pushed, taken, acknowledged and retried,
// a key is in one batch at most, its revisions never go back, the last pushed is
// the last sent, and the checkpoint never passes what is not acknowledged.
func TestQueueKeepsOrderPerKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue()
		rev := int64(0)
		newest, acked := map[string]int64{}, map[string]int64{}
		var flight [][]*entry
		take := func(n int) {
			batch := q.take(limits{ops: n, enough: n, bytes: 1 << 20}, nowhere)
			seen := map[string]bool{}
			for _, b := range append(flight, batch) {
				for _, e := range b {
					if seen[e.key] {
						t.Fatalf("%s is in flight twice", e.key)
					}
					seen[e.key] = true
				}
			}
			if len(batch) > 0 {
				flight = append(flight, batch)
			}
		}
		ack := func(i int) {
			for _, e := range flight[i] {
				if e.op.rev < acked[e.key] {
					t.Fatalf("%s went back from %d to %d", e.key, acked[e.key], e.op.rev)
				}
				acked[e.key] = e.op.rev
			}
			q.acknowledge(flight[i])
			flight = slices.Delete(flight, i, i+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				rev++
				key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
				q.push(key, op{kind: opKind(rapid.IntRange(0, 1).Draw(t, "kind")), rev: rev}, rev)
				q.advance(rev)
				newest[key] = rev
			},
			"push what was read": func(t *rapid.T) {
				key := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "key")
				if newest[key] > acked[key] { // the reading is as new as the last event
					q.pushRead([]keyOp{{key, op{rev: newest[key]}}})
				}
			},
			"take": func(t *rapid.T) { take(rapid.IntRange(1, 4).Draw(t, "ops")) },
			"acknowledge": func(t *rapid.T) {
				if len(flight) > 0 {
					ack(rapid.IntRange(0, len(flight)-1).Draw(t, "batch"))
				}
			},
			"retry": func(t *rapid.T) {
				if len(flight) > 0 {
					i := rapid.IntRange(0, len(flight)-1).Draw(t, "batch")
					q.retry(flight[i])
					flight = slices.Delete(flight, i, i+1)
				}
			},
			"": func(t *rapid.T) {
				checkpoint := q.depth().checkpoint
				for key, rev := range newest {
					if acked[key] < rev && checkpoint >= rev {
						t.Fatalf("checkpoint %d, but %s is acknowledged up to %d of %d", checkpoint, key, acked[key], rev)
					}
				}
			},
		})
		for range 100 {
			take(2)
			if len(flight) > 0 {
				ack(0)
			}
		}
		for key, rev := range newest {
			if acked[key] != rev {
				t.Fatalf("%s ended at %d, want %d", key, acked[key], rev)
			}
		}
		if d := q.depth(); d.entries != 0 || d.bytes != 0 || d.checkpoint != rev {
			t.Fatalf("drained, the queue is %+v at revision %d", d, rev)
		}
	})
}

func TestQueuePutsBlockedKeysAside(t *testing.T) {
	q := newQueue()
	q.push("a", op{rev: 1}, 1)
	q.push("b", op{rev: 2}, 2)
	isA := func(key string) (clientv3.LeaseID, bool) { return 0, key == "a" }
	if batch := q.take(limits{ops: 10, enough: 10, bytes: 100}, isA); len(batch) != 1 || batch[0].key != "b" {
		t.Fatalf("took %v", batch)
	}
	q.release()
	if batch := q.take(limits{ops: 10, enough: 10, bytes: 100}, nowhere); len(batch) != 1 || batch[0].key != "a" {
		t.Fatalf("took %v", batch)
	}
}

func TestQueueTakesDeletesAlone(t *testing.T) {
	q := newQueue()
	q.push("a", op{rev: 1}, 1)
	q.push("b", op{kind: opDelete, rev: 2}, 2)
	if batch := q.take(limits{ops: 10, enough: 10, bytes: 100, deletesOnly: true}, nowhere); len(batch) != 1 || batch[0].key != "b" {
		t.Fatalf("took %v", batch)
	}
}

func TestQueueLimitsBatches(t *testing.T) {
	q := newQueue()
	for i := range 10 {
		q.push(fmt.Sprint(i), op{value: make([]byte, 100), rev: int64(i)}, int64(i))
	}
	if batch := q.take(limits{ops: 3, enough: 3, bytes: 1 << 20}, nowhere); len(batch) != 3 {
		t.Errorf("took %d of 3 operations", len(batch))
	}
	if batch := q.take(limits{ops: 128, enough: 128, bytes: 2 * (100 + 1 + entryOverhead)}, nowhere); len(batch) != 2 {
		t.Errorf("took %d operations into room for 2", len(batch))
	}
	if batch := q.take(limits{ops: 128, enough: 128, bytes: 1}, nowhere); len(batch) != 1 {
		t.Errorf("took %d operations, want the one that is too large by itself", len(batch))
	}
}

func TestQueueEndsABatchWithItsLease(t *testing.T) {
	q := newQueue()
	for i := range 9 {
		q.push(fmt.Sprint(i), op{rev: int64(i)}, int64(i))
	}
	three := func(key string) (clientv3.LeaseID, bool) { return clientv3.LeaseID(key[0]-'0') / 3, false }
	for _, want := range []int{6, 3} {
		if batch := q.take(limits{ops: 8, enough: 4, bytes: 1 << 20}, three); len(batch) != want {
			t.Errorf("took %d operations, want %d", len(batch), want)
		}
	}
}

func TestWindowGrowsWhileThePeerAnswersAndShrinksWhenItQueues(t *testing.T) {
	var w window
	now := time.Unix(0, 0)
	for range 100 {
		now = now.Add(10 * time.Millisecond)
		w.observe(now, 80*time.Millisecond, true)
	}
	if w.limit() != windowMax {
		t.Errorf("after fast answers the window is %d", w.limit())
	}
	for range 100 {
		now = now.Add(200 * time.Millisecond)
		w.observe(now, 150*time.Millisecond, true)
	}
	if w.limit() >= windowMax/2 {
		t.Errorf("after slow answers the window is %d", w.limit())
	}
	if w.limit() < windowMin {
		t.Errorf("the window is %d", w.limit())
	}
	was := w.limit()
	w.observe(now, 80*time.Millisecond, false)
	if w.limit() != was {
		t.Error("an idle sender changed the window")
	}
}
