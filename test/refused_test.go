package test

import (
	"slices"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/keyspace"
)

// awaitRefused waits until the registrar refuses a peer and says why.
func (p *registrar) awaitRefused(peer, why string) {
	p.t.Helper()
	p.awaitState("/v1/peers", peer, "refused")
	if got := p.standing("/v1/peers", peer).LastError; !strings.Contains(got, why) {
		p.t.Errorf("peer %s was refused because %q, want a word on %q", peer, got, why)
	}
}

// TestPeerIsTheOwnEtcd: such a peer is refused, and the registrar lives on.
func TestPeerIsTheOwnEtcd(t *testing.T) {
	r := fleet(t, "a")[0]
	r.peers = []string{"b=" + r.etcd.Endpoint()}
	a := r.registrar(t, "a1")
	a.register("hello", "10.0.0.1", 1001)
	a.awaitRefused("b", "own region's etcd")
	a.awaitEndpoints("hello", "a/a1 10.0.0.1:1001")
	for _, k := range keys(t, r.etcd.Client(t), keyspace.RegionsPrefix) {
		if k.lease != 0 {
			t.Errorf("%s was put on a lease", k.key)
		}
	}
}

// TestTwoPeersAreOneEtcd: one of the two is mirrored to, the other refused.
func TestTwoPeersAreOneEtcd(t *testing.T) {
	regions := fleet(t, "a", "b")
	_, port, _ := strings.Cut(regions[1].etcd.Endpoint(), ":")
	regions[0].peers = append(regions[0].peers, "c=localhost:"+port)
	a := regions[0].registrar(t, "a1")
	eventually(t, "one is live and one refused", func() bool {
		states := []string{a.standing("/v1/peers", "b").State, a.standing("/v1/peers", "c").State}
		slices.Sort(states)
		return slices.Equal(states, []string{"live", "refused"})
	})
}

// TestTwoEtcdsClaimOneRegion: the first keeps the mirror, and the second is told.
func TestTwoEtcdsClaimOneRegion(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	a.register("hello", "10.0.0.1", 1001)
	b.awaitEndpoints("hello", "a/a1 10.0.0.1:1001")
	peer := regions[1].etcd.Client(t)
	before := keys(t, peer, keyspace.RegionPrefix("a"))

	rival := &region{name: "a", etcd: etcdtest.StartProcess(t), peers: regions[0].peers}
	second := rival.registrar(t, "a1")
	second.register("hello", "10.0.0.9", 9009)
	second.awaitRefused("b", "claim region a")
	if after := keys(t, peer, keyspace.RegionPrefix("a")); !slices.Equal(before, after) {
		t.Errorf("the peer held\n%v\nand now\n%v", before, after)
	}
	a.register("bye", "10.0.0.1", 1002)
	b.awaitEndpoints("bye", "a/a1 10.0.0.1:1002")
}
