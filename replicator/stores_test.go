package replicator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/wantest"
	"github.com/aether-federation/aether/registry/keyspace"
)

// Failure case 21: a peer's address that reaches the own etcd, or another peer's.
func TestRefusesAPeerThatIsTheOwnEtcd(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 100, "v")
	r.endpoint = r.origin.Endpoint()
	rep := r.start()
	s := r.waitState(rep, StateRefused)
	if !strings.Contains(s.LastError, "own region's etcd") {
		t.Errorf("the reason is %q", s.LastError)
	}
	got, err := content(t.Context(), r.from, "/aether/v1/regions/")
	if err != nil {
		t.Fatal(err)
	}
	for key, kv := range got {
		if kv.Lease != 0 {
			t.Fatalf("%s is on a lease", key)
		}
	}
	if len(got) != 100 {
		t.Fatalf("%d of 100 keys are left", len(got))
	}
}

func TestRefusesTwoPeersWithOneEtcd(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.put(0, 100, "v")
	// Another address of the same etcd.
	alias := wantest.New(t, r.peer.Endpoint(), 0)
	rep := r.start(r.peerConfig(), Peer{Region: "c", Endpoints: []string{alias.Address()}})
	eventually(t, "one is refused and one is live", func() string {
		states := map[State]int{}
		for _, s := range rep.Status() {
			states[s.State]++
		}
		if states[StateRefused] != 1 || states[StateLive] != 1 {
			return fmt.Sprint(states)
		}
		return ""
	})
	r.waitMirrored()
}

// Failure case 21: two etcds that claim one region.
func TestRefusesARegionThatTwoEtcdsClaim(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 5
	r.put(0, 100, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)

	other := newRig(t)
	other.ttl, other.endpoint, other.to = r.ttl, r.endpoint, r.to
	second := other.start()
	s := other.waitState(second, StateRefused)
	if !strings.Contains(s.LastError, "two etcds claim region a") {
		t.Errorf("the reason is %q", s.LastError)
	}
	r.put(0, 10, "still the first's")
	r.waitMirrored()
}

// Failure case 22: the origin's etcd is replaced by an empty one.
func TestAnEmptiedOriginIsHeldUntilAccepted(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 5
	r.put(0, 400, "v")
	first := r.start()
	r.waitMirrored()
	r.waitState(first, StateLive)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	empty := etcdtest.Start(t)
	r.from = empty.Client(t)
	second := r.start()
	s := r.waitState(second, StateHeld)
	if !strings.Contains(s.LastError, "400 of the mirror's 400 keys") {
		t.Errorf("the reason is %q", s.LastError)
	}
	if keys, _ := keysAndLeases(t, r); keys != 400 {
		t.Fatalf("%d of 400 keys are left", keys)
	}
	if _, err := r.from.Put(t.Context(), keyspace.AcceptKey("a", "b"), "by an operator"); err != nil {
		t.Fatal(err)
	}
	r.waitState(second, StateLive)
	r.waitMirrored()
}

// An origin that is restored from a backup and overtaken by new writes before
// anybody looks: no number gives it away, and the mirror is made equal all the
// same.
func TestARestoredOriginThatIsAheadAgain(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 30
	r.put(0, 500, "v")
	backup := etcdtest.Backup(t, r.origin)
	link := wantest.New(t, r.origin.Endpoint(), 0)
	r.via = etcdtest.NewClient(t, link.Address())
	rep := r.start()
	r.put(0, 100, "lost")
	r.put(500, 520, "lost")
	r.waitMirrored()
	r.waitState(rep, StateLive)
	r.remove(300, 310) // above the checkpoint that is recorded
	r.waitMirrored()
	link.Down()
	backup.Restore(r.origin)
	r.put(100, 200, "w")
	r.put(520, 540, "w")
	r.put(100, 200, "x")
	link.Up()
	r.waitMirrored()
	r.waitState(rep, StateLive)
}

// An election at the origin by itself costs the mirror nothing.
func TestARestartedOriginCostsNoWrites(t *testing.T) {
	noLeaks(t)
	r := newRig(t)
	r.ttl = 30
	r.put(0, 500, "v")
	rep := r.start()
	r.waitMirrored()
	r.waitState(rep, StateLive)
	r.put(0, 10, "w")
	r.waitMirrored()
	watched := r.recordChanges()
	r.origin.Restart()
	r.put(10, 20, "w")
	r.waitMirrored()
	if puts, deletes := watched.stop(); puts != 10 || deletes != 0 {
		t.Errorf("%d puts and %d deletes, want 10 and 0", puts, deletes)
	}
}
