// Package registrytest states the contract of [registry.Registry] as tests, which
// each implementation runs:
//
//	registrytest.Run(t, func(t *testing.T) registrytest.Fixture { … })
//
// The suite fits a store that reads its own writes and one whose reads follow
// its writes a little later: where it reads what was written, it waits.
package registrytest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/aether-federation/aether/registry"
)

// patience bounds each wait for a condition. It is long because the machine may
// be busy, not because an implementation may be slow.
const patience = 30 * time.Second

// Fixture is an empty registry for one test.
type Fixture struct {
	Registry registry.Registry
	// Origin is the partition that Registry writes.
	Origin registry.Origin
	// Neighbor writes another cluster of the same region, in the same store, and
	// NeighborOrigin is its partition. Nil: what needs one is skipped.
	Neighbor       registry.Registry
	NeighborOrigin registry.Origin
}

// Run runs the suite. It calls open once for each test; what open starts ends
// with the test that it was given.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	tests := []struct {
		name string
		run  func(*suite)
	}{
		{"RegisterStores", (*suite).registerStores},
		{"RegisterReplaces", (*suite).registerReplaces},
		{"RegisterAgainWritesNothing", (*suite).registerAgain},
		{"RegisterFillsOrigin", (*suite).registerFillsOrigin},
		{"RegisterNormalizesAddress", (*suite).registerNormalizes},
		{"RegisterNothing", (*suite).registerNothing},
		{"RegisterRefusesInvalid", (*suite).registerInvalid},
		{"RegisterRefusesOtherPartition", (*suite).registerForeign},
		{"RegisterRefusesDuplicate", (*suite).registerDuplicate},
		{"RegisterManyBatches", (*suite).registerMany},
		{"RegisterConflict", (*suite).registerConflict},
		{"UnregisterRemoves", (*suite).unregisterRemoves},
		{"UnregisterConflict", (*suite).unregisterConflict},
		{"UnregisterRefusesInvalid", (*suite).unregisterInvalid},
		{"ListOrdersAndFilters", (*suite).listOrders},
		{"ListRevision", (*suite).listRevision},
		{"ClustersAreApart", (*suite).clustersApart},
		{"InstancesAreApart", (*suite).instancesApart},
		{"WatchTellsSnapshotThenChanges", (*suite).watchChanges},
		{"WatchFilters", (*suite).watchFilters},
		{"WatchReturnsError", (*suite).watchError},
		{"WatchEndsWithContext", (*suite).watchContext},
		{"WatchersAreIndependent", (*suite).watchSeveral},
		{"WatchLeavesNothingOut", (*suite).watchConverges},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			tt.run(&suite{T: t, Fixture: open(t), ctx: ctx})
		})
	}
}

// suite is one test's registry and the steps that tests are made of.
type suite struct {
	*testing.T
	Fixture
	ctx context.Context
}

// endpoint returns a plain one in the own partition.
func (s *suite) endpoint(service, ip string) registry.Endpoint {
	return registry.Endpoint{
		Key: registry.Key{
			Origin: s.Origin, Service: service, Protocol: registry.HTTP, IP: netip.MustParseAddr(ip),
		},
		Ports:  []registry.Port{{Name: "http", Number: 8080}},
		Weight: 1,
		Health: registry.Healthy,
	}
}

// numbered returns n endpoints of one service at addresses in order.
func (s *suite) numbered(service string, n int) []registry.Endpoint {
	out := make([]registry.Endpoint, n)
	for i := range out {
		out[i] = s.endpoint(service, fmt.Sprintf("10.1.%d.%d", i/256, i%256))
	}
	return out
}

func (s *suite) register(endpoints ...registry.Endpoint) registry.Revision {
	s.Helper()
	rev, err := s.Registry.Register(s.ctx, endpoints)
	if err != nil {
		s.Fatalf("register: %v", err)
	}
	if rev == "" {
		s.Fatal("register returned no revision")
	}
	return rev
}

func (s *suite) unregister(want int, claims ...registry.Claim) {
	s.Helper()
	n, rev, err := s.Registry.Unregister(s.ctx, claims)
	if err != nil || n != want || rev == "" {
		s.Fatalf("unregister: %d removed, revision %q, %v, want %d", n, rev, err, want)
	}
}

func (s *suite) list(services ...string) registry.Snapshot {
	s.Helper()
	snapshot, err := s.Registry.List(s.ctx, registry.Query{Services: services})
	if err != nil {
		s.Fatalf("list: %v", err)
	}
	return snapshot
}

// wantList waits until List of services is want, in that order.
func (s *suite) wantList(want []registry.Endpoint, services ...string) {
	s.Helper()
	var diff string
	s.eventually(func() bool {
		diff = difference(want, s.list(services...).Endpoints)
		return diff == ""
	}, func() string { return "list differs (-want +got):\n" + diff })
}

// eventually asks again until ok, and fails with why once patience ends.
func (s *suite) eventually(ok func() bool, why func() string) {
	s.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatal(why())
		}
	}
}

// wantKind fails unless err is of kind.
func (s *suite) wantKind(err error, kind registry.Kind) {
	s.Helper()
	if err == nil || registry.KindOf(err) != kind {
		s.Errorf("got error %v, want one of kind %s", err, kind)
	}
}

// difference tells how two lists differ, by what Equal says of endpoints.
func difference(want, got []registry.Endpoint) string {
	if len(want) == 0 && len(got) == 0 {
		return ""
	}
	return cmp.Diff(want, got, cmp.Comparer(registry.Endpoint.Equal))
}

func claim(e registry.Endpoint, node string) registry.Claim {
	return registry.Claim{Key: e.Key, Node: node}
}
