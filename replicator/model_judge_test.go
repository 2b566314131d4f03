package replicator

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

// What the model test would find wrong, and what not: a model that finds nothing
// proves nothing.
func TestTheCheckerFindsWhatIsWrong(t *testing.T) {
	start := time.Now()
	k, state := keyspace.RegionPrefix("a")+"k", keyspace.StateKey("a")
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	put := func(seconds float64, rev int64, value string) sighting {
		return sighting{at: at(seconds), rev: rev, key: k, value: value, lease: 7}
	}
	gone := func(seconds float64, rev int64) sighting {
		return sighting{at: at(seconds), rev: rev, key: k, deleted: true, lease: 7}
	}
	told := func(rev, checkpoint int64, lease *mirrorv1.Lease) sighting {
		value, err := proto.Marshal(&mirrorv1.State{Phase: mirrorv1.Phase_PHASE_COMPLETE, Checkpoint: checkpoint, PeerRevision: 80, Leases: []*mirrorv1.Lease{lease}})
		if err != nil {
			t.Fatal(err)
		}
		return sighting{at: at(1), rev: rev, key: state, value: string(value)}
	}
	for _, c := range []struct {
		name  string
		seen  []sighting
		wrong bool
	}{
		{"in order", []sighting{put(1, 1, "v1"), gone(2, 2), put(3, 3, "v2")}, false},
		{"one left out", []sighting{put(1, 1, "v1"), put(3, 3, "v2")}, false},
		{"older after newer", []sighting{put(1, 1, "v2"), put(2, 2, "v1")}, true},
		{"older after a delete", []sighting{put(1, 1, "v1"), gone(2, 2), put(3, 3, "v1")}, true},
		{"older after an expiry", []sighting{put(1, 1, "v2"), gone(30, 2), put(31, 3, "v1")}, true},
		{"the same after an expiry", []sighting{put(1, 1, "v2"), gone(30, 2), put(31, 3, "v2")}, false},
		{"nobody's value", []sighting{put(1, 1, "v9")}, true},
		{"nobody's delete", []sighting{put(1, 1, "v2"), gone(2, 2)}, true},
		{"deleted by hand", []sighting{put(1, 1, "v2"), gone(2, 77)}, false},
		{"lease revoked", []sighting{put(1, 1, "v2"), {at: at(2), rev: 2, key: k, deleted: true, lease: 8}}, false},
		{"expired too early", []sighting{put(1, 1, "v2"), gone(24, 2)}, true},
		{"no lease", []sighting{{at: at(1), rev: 1, key: k, value: "v1"}}, true},
		{"unrecorded lease", []sighting{told(1, 0, &mirrorv1.Lease{Id: 9}), put(1, 2, "v1")}, true},
		{"recorded lease", []sighting{told(1, 0, &mirrorv1.Lease{Id: 7}), put(1, 2, "v1")}, false},
		{"outside", []sighting{{at: at(1), rev: 1, key: keyspace.RegionPrefix("b") + "k", value: "v1", lease: 7}}, true},
		{"behind its checkpoint", []sighting{put(1, 1, "v1"), told(2, 3, &mirrorv1.Lease{Id: 7})}, true},
		{"behind, and recorded so", []sighting{put(1, 1, "v1"), told(2, 3, &mirrorv1.Lease{Id: 7, Incomplete: true})}, false},
		{"taken, and seen so", []sighting{put(1, 1, "v2"), gone(2, 77), told(78, 3, &mirrorv1.Lease{Id: 7})}, true},
		{"taken, and not yet seen", []sighting{put(1, 1, "v2"), {at: at(2), rev: 90, key: k, deleted: true, lease: 8}, told(91, 3, &mirrorv1.Lease{Id: 7})}, false},
		{"at its checkpoint", []sighting{put(1, 1, "v1"), told(2, 1, &mirrorv1.Lease{Id: 7})}, false},
		{"older once the peer was restored", []sighting{put(1, 1, "v1"), put(2, 2, "v2"), {at: at(3), rev: 1}, put(4, 2, "v1")}, false},
		{"older than what was restored", []sighting{put(1, 1, "v2"), put(2, 2, "v2"), {at: at(3), rev: 1}, put(4, 2, "v1")}, true},
	} {
		h := newTruth()
		h.put(k, "v1", 1)
		h.remove(k, 2)
		h.put(k, "v2", 3)
		e := &excuses{
			ttl: 10 * time.Second, revs: map[int64]bool{77: true}, leases: map[int64]bool{8: true}, keys: map[string]time.Time{},
			troubles: []interval{{at(20), at(27)}},
		}
		checker, why := newChecker(h, e, "a"), ""
		for _, s := range c.seen {
			if why == "" {
				why = checker.see(s)
			}
		}
		if (why != "") != c.wrong {
			t.Errorf("%s: found %q", c.name, why)
		}
	}
}

// The versions of a restored origin come after those that it lost.
func TestTheCheckerKnowsRestores(t *testing.T) {
	k, restored := keyspace.RegionPrefix("a")+"k", time.Now()
	h := newTruth()
	h.put(k, "v1", 1)
	h.put(k, "v2", 3)
	h.restored(map[string]string{k: "v1"}, 2, restored)
	checker := newChecker(h, &excuses{}, "a")
	show := func(value string, at time.Time) string {
		return checker.see(sighting{at: at, rev: 1, key: k, value: value, lease: 7})
	}
	if why := show("v2", restored.Add(-time.Second)); why != "" {
		t.Error(why)
	}
	if why := show("v1", restored.Add(-time.Millisecond)); why == "" {
		t.Error("v1 came back before the restore, and nothing was found")
	}
	if why := show("v1", restored.Add(time.Second)); why != "" {
		t.Error(why)
	}
	if why := show("v2", restored.Add(2*time.Second)); why == "" {
		t.Error("v2, which the restore has lost, came back, and nothing was found")
	}
}
