package remote

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

func keyOf(n byte) registry.Key {
	return registry.Key{
		Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: "api", Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, 0, n}),
	}
}

func putOf(n byte) *registryv1.Change {
	return &registryv1.Change{Change: &registryv1.Change_Put{Put: wire.ToProto(registry.Endpoint{Key: keyOf(n)})}}
}

func deleteOf(n byte) *registryv1.Change {
	return &registryv1.Change{Change: &registryv1.Change_Delete{Delete: wire.KeyToProto(keyOf(n))}}
}

// told is a keeper whose steps are noted, and remembered.
func told(t *testing.T) (k *keeper, take func(...*registryv1.WatchResponse) []string) {
	m := &memory{fn: func(registry.Event) error { return nil }, services: map[string]staged{}}
	var steps []string
	k = &keeper{Following: Following{Held: m, Tell: func(s Step) error {
		text := string(s.Revision)
		slices.SortFunc(s.Changes, func(a, b Change) int { return a.Endpoint.Key.Compare(b.Endpoint.Key) })
		for _, c := range s.Changes {
			text += fmt.Sprintf(" %v:%d", c.Kind, c.Endpoint.IP.As4()[3])
		}
		if s.Synced {
			text += " synced"
		}
		steps = append(steps, text)
		return m.tell(s)
	}}}
	k.begin(time.Unix(1000, 0))
	return k, func(messages ...*registryv1.WatchResponse) []string {
		t.Helper()
		steps = nil
		for _, m := range messages {
			if err := k.take(m); err != nil {
				t.Fatal(err)
			}
		}
		return steps
	}
}

// TestStepsAreWhole: what a registrar's view changed at once is told at once, in
// however many messages it came, and what was broken off is not told at all.
func TestStepsAreWhole(t *testing.T) {
	type messages = []*registryv1.WatchResponse
	k, take := told(t)
	for _, step := range []struct {
		name string
		sent messages
		want []string
	}{
		{"a snapshot", messages{
			{Reset_: true, Changes: []*registryv1.Change{putOf(1)}},
			{Changes: []*registryv1.Change{putOf(2), putOf(3)}, Synced: true, Revision: "r1"},
		}, []string{"r1 put:1 put:2 put:3 synced"}},
		{"a large step", messages{
			{Changes: []*registryv1.Change{deleteOf(1)}},
			{Changes: []*registryv1.Change{deleteOf(2)}},
			{Changes: []*registryv1.Change{putOf(4)}, Revision: "r2"},
		}, []string{"r2 delete:1 delete:2 put:4"}},
		{"a proof", messages{{Synced: true, Revision: "r2"}}, nil},
		{"a step that is broken off", messages{{Changes: []*registryv1.Change{deleteOf(3)}}}, nil},
	} {
		if got := take(step.sent...); !slices.Equal(got, step.want) {
			t.Errorf("%s: told %q, want %q", step.name, got, step.want)
		}
	}
	req := k.begin(time.Unix(1100, 0))
	want := wire.Digest(registry.Endpoint{Key: keyOf(3)}) + wire.Digest(registry.Endpoint{Key: keyOf(4)})
	if req.GetHeld().GetRevision() != "r2" || req.GetHeld().GetDigests()["api"] != want {
		t.Errorf("the next stream says %v", req.GetHeld())
	}
	if got := take(&registryv1.WatchResponse{Synced: true, Revision: "r3"}); !slices.Equal(got, []string{"r3 synced"}) {
		t.Errorf("nothing has changed: told %q", got)
	}
	k.begin(time.Unix(1200, 0))
	got := take(&registryv1.WatchResponse{Replaced: []string{"api"}, Changes: []*registryv1.Change{putOf(4), putOf(5)}, Synced: true, Revision: "r4"})
	if !slices.Equal(got, []string{"r4 delete:3 put:5 synced"}) {
		t.Errorf("a service that differs: told %q", got)
	}
}

func TestRegistrarThatIsSilent(t *testing.T) {
	start := time.Unix(1000, 0)
	k := &keeper{asked: start, heard: start}
	if k.silent(start.Add(answerTimeout)) || !k.silent(start.Add(answerTimeout+time.Second)) {
		t.Error("it has its time, and no more")
	}
	k.heard = start.Add(answerTimeout)
	if k.silent(start.Add(answerTimeout + time.Second)) {
		t.Error("one that sends a long snapshot is not silent")
	}
}
