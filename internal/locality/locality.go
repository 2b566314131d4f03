// Package locality says how near an endpoint is to a client, and by which address
// the client reaches it: the order of traffic that DNS and xDS share. It is pure.
package locality

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/aether-federation/aether/registry"
)

// Client is where a client runs.
type Client struct {
	registry.Locality
	// Network whose addresses mean to it what they say. Empty: the flat network.
	Network string
	// Order of the other regions, the nearest first. Those that are not listed
	// are behind them, all equally far.
	Order []string
}

// Distance to a client; the smaller, the nearer. Same zone, same region, and from
// OtherRegion on the other regions in the client's order.
type Distance int

// The distances that have a name. Lapsed is behind every region: an endpoint that
// is not proven to live is a last resort.
const (
	SameZone Distance = iota
	SameRegion
	OtherRegion
	Lapsed Distance = math.MaxInt
)

// To returns how far e is from c. A client that names no zone has none: all of
// its region is equally near.
func (c Client) To(e *registry.Endpoint) Distance {
	switch {
	case e.Lapsed:
		return Lapsed
	case e.Region == c.Region && e.Zone == c.Zone && c.Zone != "":
		return SameZone
	case e.Region == c.Region:
		return SameRegion
	}
	if n := slices.Index(c.Order, e.Region); n >= 0 {
		return OtherRegion + Distance(n)
	}
	return OtherRegion + Distance(len(c.Order))
}

// Target is one address that traffic may be sent to.
type Target struct {
	// Endpoint that is there; behind a gateway, the first of them by its key,
	// with the health and the weight that they have together.
	Endpoint *registry.Endpoint
	// Addr to send to. Its port is 0 if no port was asked for.
	Addr netip.AddrPort
	// Gateway: Addr belongs to a gateway into the endpoints' network. Health is
	// serving if one of those behind it is. Weight is the sum of those that
	// count, at least 1.
	Gateway bool
	Health  registry.Health
	Weight  uint32
}

// Tier is what is equally far from a client: never empty.
type Tier struct {
	Distance Distance
	// Targets in the order of their endpoints' keys.
	Targets []Target
}

// Serving returns the targets that new work may be sent to.
func (t Tier) Serving() []Target {
	var serving []Target
	for _, target := range t.Targets {
		if target.Health.Serving() {
			serving = append(serving, target)
		}
	}
	return serving
}

// Tiers returns by which addresses c reaches the port of that name of a service's
// endpoints, the nearest tier first. An empty name asks for addresses alone.
// Endpoints without such a port are left out, and so are those of another network
// without a gateway to it, which unreachable counts: their addresses may be
// somebody else's here. No address is there twice: the nearer has it.
func (c Client) Tiers(endpoints []*registry.Endpoint, port string) (tiers []Tier, unreachable int) {
	near := slices.Clone(endpoints)
	slices.SortStableFunc(near, func(a, b *registry.Endpoint) int {
		return cmp.Or(cmp.Compare(c.To(a), c.To(b)), a.Key.Compare(b.Key))
	})
	seen := map[netip.AddrPort]place{}
	for _, e := range near {
		addr, has, reachable := c.reach(e, port)
		switch {
		case !has:
			continue
		case !reachable:
			unreachable++
			continue
		}
		t := Target{Endpoint: e, Addr: addr, Gateway: e.Network != c.Network, Health: e.Health, Weight: max(e.Weight, 1)}
		if at, taken := seen[addr]; taken {
			tiers[at.tier].join(at.target, t, c.To(e))
			continue
		}
		if n := len(tiers); n == 0 || tiers[n-1].Distance != c.To(e) {
			tiers = append(tiers, Tier{Distance: c.To(e)})
		}
		last := &tiers[len(tiers)-1]
		seen[addr] = place{len(tiers) - 1, len(last.Targets)}
		last.Targets = append(last.Targets, t)
	}
	return tiers, unreachable
}

// place is where a target is.
type place struct{ tier, target int }

// reach returns the address of a port of e, whether e has that port, and whether
// c has a way to it.
func (c Client) reach(e *registry.Endpoint, port string) (addr netip.AddrPort, has, reachable bool) {
	if port == "" {
		ip, ok := c.address(e)
		return netip.AddrPortFrom(ip, 0), true, ok
	}
	n := slices.IndexFunc(e.Ports, func(p registry.Port) bool { return p.Name == port })
	if n < 0 {
		return addr, false, false
	}
	if e.Network == c.Network {
		return netip.AddrPortFrom(e.IP, e.Ports[n].Number), true, true
	}
	addr, reachable = e.Gateways[port]
	return addr, true, reachable
}

// address returns the IP by which c reaches e, whatever the port: of several
// gateways, the first one's by the name of its port.
func (c Client) address(e *registry.Endpoint) (ip netip.Addr, ok bool) {
	if e.Network == c.Network {
		return e.IP, true
	}
	first := ""
	for name, gateway := range e.Gateways {
		if !ok || name < first {
			ip, ok, first = gateway.Addr(), true, name
		}
	}
	return ip, ok
}

// join adds t to a target of the same address, if both are behind one gateway and
// equally far. What cannot serve adds nothing to what can.
func (t *Tier) join(n int, o Target, d Distance) {
	have := &t.Targets[n]
	if !have.Gateway || !o.Gateway || d != t.Distance || have.Endpoint.Region != o.Endpoint.Region {
		return
	}
	switch {
	case have.Health.Serving() == o.Health.Serving():
		have.Weight = saturated(have.Weight, o.Weight)
		have.Health = max(have.Health, o.Health)
	case o.Health.Serving():
		have.Weight, have.Health = o.Weight, o.Health
	}
}

func saturated(a, b uint32) uint32 {
	return uint32(min(uint64(a)+uint64(b), math.MaxUint32))
}
