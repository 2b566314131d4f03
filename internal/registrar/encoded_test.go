package registrar

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
)

// TestEncodedListIsTheList: what is sent as it was encoded before is what would be
// encoded now.
func TestEncodedListIsTheList(t *testing.T) {
	v := newTestView(100, append(puts("own", 0, 20), puts("b", 0, 20)...))
	v.core.region("b").facts.shown = true
	for step, change := range []Update{{}, {Endpoints: puts("own", 20, 30)}, {Endpoints: deletes("own", 0, 5)}, {Endpoints: deletes("own", 0, 30)}} {
		tellView(v, change)
		for _, ages := range []map[string]time.Duration{nil, {"own": 0, "b": 1500 * time.Millisecond}, {"own": time.Second, "b": -1}} {
			s := v.Snapshot(registry.Query{Services: []string{"s0", "s1", "none"}})
			for range 2 { // the second is from memory
				answer, err := v.encodings.list(s, ages)
				if err != nil {
					t.Fatal(err)
				}
				b, err := proto.Marshal(answer)
				if err != nil {
					t.Fatal(err)
				}
				got := &registryv1.ListResponse{}
				if err := proto.Unmarshal(b, got); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(got, listAnswer(s, ages)) {
					t.Errorf("step %d, ages %v: got %v, want %v", step, ages, got, listAnswer(s, ages))
				}
			}
		}
	}
	if n := len(v.encodings.services); n != 0 {
		t.Errorf("%d services that are gone are remembered", n)
	}
}
