package registrytest

import (
	"slices"

	"github.com/aether-federation/aether/registry"
)

func (s *suite) listOrders() {
	udp := s.endpoint("a", "10.0.0.1")
	udp.Protocol = registry.UDP
	want := []registry.Endpoint{
		s.endpoint("a", "10.0.0.2"), s.endpoint("a", "10.0.0.10"), s.endpoint("a", "fd00::1"), udp,
		s.endpoint("a-b", "10.0.0.1"), s.endpoint("a.b", "10.0.0.1"), s.endpoint("b", "10.0.0.1"),
	}
	shuffled := slices.Clone(want)
	slices.Reverse(shuffled)
	s.register(shuffled...)
	s.wantList(want)
	s.wantList(want[:4], "a")
	s.wantList(want[5:6], "a.b")
	s.wantList([]registry.Endpoint{want[4], want[6]}, "b", "a-b", "none")
	s.wantList(nil, "none")
}

func (s *suite) listRevision() {
	e := s.endpoint("api", "10.0.0.1")
	s.register(e)
	s.wantList([]registry.Endpoint{e})
	before := s.list()
	if again := s.list(); again.Revision != before.Revision || before.Revision == "" {
		s.Errorf("revisions %q and %q with nothing changed between", before.Revision, again.Revision)
	}
	e.Weight = 2
	s.register(e)
	s.wantList([]registry.Endpoint{e})
	if after := s.list(); after.Revision == before.Revision {
		s.Errorf("revision is %q before and after a change", after.Revision)
	}
}

// Two clusters of one region share names and addresses and never meet.
func (s *suite) clustersApart() {
	if s.Neighbor == nil {
		s.Skip("this registry has no neighbor")
	}
	mine := s.endpoint("api", "10.0.0.1")
	mine.Node = "n1"
	theirs := mine
	theirs.Origin, theirs.Node = s.NeighborOrigin, "n2"
	s.register(mine)
	if _, err := s.Neighbor.Register(s.ctx, []registry.Endpoint{theirs}); err != nil {
		s.Fatalf("register at the neighbor: %v", err)
	}
	both := []registry.Endpoint{mine, theirs}
	slices.SortFunc(both, func(a, b registry.Endpoint) int { return a.Key.Compare(b.Key) })
	s.wantList(both)
	_, err := s.Registry.Register(s.ctx, []registry.Endpoint{theirs})
	s.wantKind(err, registry.Invalid)
	s.unregister(1, claim(mine, "n1"))
	s.wantList([]registry.Endpoint{theirs})
}

func (s *suite) instancesApart() {
	one, two, none := s.endpoint("api", "10.0.0.1"), s.endpoint("api", "10.0.0.1"), s.endpoint("api", "10.0.0.1")
	one.Instance, two.Instance = "i", "i-1"
	s.register(one, two, none)
	s.wantList([]registry.Endpoint{none, one, two})
	s.unregister(1, claim(none, ""))
	s.wantList([]registry.Endpoint{one, two})
}
