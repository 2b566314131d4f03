package view

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
	v := newOwner(100, append(puts("own", 0, 20), puts("b", 0, 20)...))
	for step, change := range [][]Change{nil, puts("own", 20, 30), deletes("own", 0, 5), append(deletes("own", 0, 30), deletes("b", 0, 20)...)} {
		v.tell(change)
		for _, ages := range []map[string]time.Duration{nil, {"own": 0, "b": 1500 * time.Millisecond}, {"own": time.Second, "b": -1}} {
			s := v.Snapshot(registry.Query{Services: []string{"s0", "s1", "none"}})
			for range 2 { // the second is from memory
				answer, err := v.Encoded(s, ages)
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
				if !proto.Equal(got, s.List(ages)) {
					t.Errorf("step %d, ages %v: got %v, want %v", step, ages, got, s.List(ages))
				}
			}
		}
	}
	if n := len(v.encodings.services); n != 0 {
		t.Errorf("%d services that are gone are remembered", n)
	}
}
