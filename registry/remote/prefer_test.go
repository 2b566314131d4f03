package remote_test

import (
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// TestOneRegistrarUntilItFails: all calls of a client go to one registrar, and once
// that one does not answer all to another, which keeps the client when the first is
// back.
func TestOneRegistrarUntilItFails(t *testing.T) {
	server := etcdtest.Start(t)
	replicas := map[string]*replica{}
	target := ""
	for range 3 {
		r := newReplica(t, server)
		replicas[r.address] = r
		target += "," + r.address
	}
	client := connect(t, target[1:])
	first := asked(t, client)
	stays(t, client, first)
	replicas[first].stop()
	second := asked(t, client)
	if second == first {
		t.Fatalf("%s is asked though it has stopped", first)
	}
	stays(t, client, second)
	replicas[first].start()
	stays(t, client, second)
}

// TestClientsSpread: clients of one list do not all ask the same registrar.
func TestClientsSpread(t *testing.T) {
	server := etcdtest.Start(t)
	one, two := newReplica(t, server), newReplica(t, server)
	found := map[string]int{}
	for n := 0; len(found) < 2; n++ {
		if n == 100 {
			t.Fatalf("a hundred clients: %v", found)
		}
		client := connect(t, one.address+","+two.address)
		found[asked(t, client)]++
	}
}

// asked reports and returns who took it; the call is tried again while a registrar
// is on its way out.
func asked(t *testing.T, client *remote.Registry) string {
	t.Helper()
	for {
		got, err := client.Report(t.Context(), remote.Report{Node: "n1", PresenceOnly: true})
		if registry.KindOf(err) == registry.Unavailable && t.Context().Err() == nil {
			continue
		}
		fatal(t, err)
		return got.Registrar
	}
}

func stays(t *testing.T, client *remote.Registry, want string) {
	t.Helper()
	for range 20 {
		if got := asked(t, client); got != want {
			t.Fatalf("%s was asked, then %s", want, got)
		}
	}
}
