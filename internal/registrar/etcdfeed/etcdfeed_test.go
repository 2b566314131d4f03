package etcdfeed

import (
	"testing"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
)

func TestMirror(t *testing.T) {
	state := func(phase mirrorv1.Phase) etcd.MirrorChange {
		return etcd.MirrorChange{Origin: "b", Leaf: keyspace.State, State: &mirrorv1.State{Phase: phase, Checkpoint: 7}}
	}
	tests := map[string]struct {
		in   etcd.MirrorChange
		want registrar.MirrorChange
		skip bool
	}{
		"complete":               {in: state(mirrorv1.Phase_PHASE_COMPLETE), want: registrar.MirrorChange{Origin: "b", Leaf: registrar.LeafState, Complete: true, Checkpoint: 7}},
		"syncing":                {in: state(mirrorv1.Phase_PHASE_SYNCING), want: registrar.MirrorChange{Origin: "b", Leaf: registrar.LeafState, Checkpoint: 7}},
		"does not parse":         {in: etcd.MirrorChange{Origin: "b", Leaf: keyspace.State}, want: registrar.MirrorChange{Origin: "b", Leaf: registrar.LeafState}},
		"state deleted":          {in: etcd.MirrorChange{Origin: "b", Leaf: keyspace.State, Deleted: true}, want: registrar.MirrorChange{Origin: "b", Leaf: registrar.LeafState, Deleted: true}},
		"live":                   {in: etcd.MirrorChange{Origin: "b", Leaf: keyspace.Live, LeaseID: 5}, want: registrar.MirrorChange{Origin: "b", Leaf: registrar.LeafLive, Lease: 5}},
		"live deleted":           {in: etcd.MirrorChange{Origin: "b", Leaf: keyspace.Live, Deleted: true}, want: registrar.MirrorChange{Origin: "b", Leaf: registrar.LeafLive, Deleted: true}},
		"the fence is no matter": {in: etcd.MirrorChange{Origin: "b", Leaf: keyspace.Owner}, skip: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := mirror(tt.in)
			if ok == tt.skip || ok && got != tt.want {
				t.Errorf("got %+v, %v; want %+v, %v", got, ok, tt.want, !tt.skip)
			}
		})
	}
}
