package etcd

import (
	"context"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
)

// A lease that ran out before its transaction keeps back its own batch alone.
func TestLostLeaseKeepsBackItsOwnBatch(t *testing.T) {
	s, err := New(Config{Client: etcdtest.Start(t).Client(t), Origin: registry.Origin{Region: "a", Cluster: "c1"}})
	if err != nil {
		t.Fatal(err)
	}
	var members []*pending
	for i := range 3 {
		members = append(members, &pending{ctx: t.Context(), batch: []write{put(t, testEndpoint(i, ""))}, done: make(chan result, 1)})
	}
	members[1].batch[0].lease = 12345
	s.transact(members)
	for i, p := range members {
		if r := <-p.done; (r.err != nil) != (i == 1) || i == 1 && registry.KindOf(r.err) != registry.Unavailable {
			t.Errorf("batch %d: %v", i, r.err)
		}
	}
	snapshot, err := s.List(context.Background(), registry.Query{})
	if err != nil || len(snapshot.Endpoints) != 2 {
		t.Errorf("%d endpoints: %v", len(snapshot.Endpoints), err)
	}
}
