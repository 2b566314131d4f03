package locality

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
)

// at returns an endpoint of a region and zone, such as "a/a1", at 10.0.0.n:80.
func at(place string, n byte, change ...func(*registry.Endpoint)) *registry.Endpoint {
	region, zone, _ := strings.Cut(place, "/")
	e := &registry.Endpoint{
		Key: registry.Key{
			Origin:  registry.Origin{Region: region, Cluster: "c1"},
			Service: "api", Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, 0, n}),
		},
		Zone: zone, Ports: []registry.Port{{Name: "http", Number: 80}},
	}
	for _, f := range change {
		f(e)
	}
	return e
}

func weight(n uint32) func(*registry.Endpoint) { return func(e *registry.Endpoint) { e.Weight = n } }

func health(h registry.Health) func(*registry.Endpoint) {
	return func(e *registry.Endpoint) { e.Health = h }
}

func lapsed(e *registry.Endpoint) { e.Lapsed = true }

// behind puts an endpoint into network n, with a gateway if it has an address.
func behind(network, gateway string) func(*registry.Endpoint) {
	return func(e *registry.Endpoint) {
		if e.Network = network; gateway != "" {
			e.Gateways = map[string]netip.AddrPort{"http": netip.MustParseAddrPort(gateway)}
		}
	}
}

// show writes tiers as "distance: address*weight…", with ! for what cannot serve.
func show(tiers []Tier) string {
	var all []string
	for _, t := range tiers {
		line := fmt.Sprintf("%d:", t.Distance)
		if t.Distance == Lapsed {
			line = "lapsed:"
		}
		for _, target := range t.Targets {
			line += fmt.Sprintf(" %s*%d", target.Addr, target.Weight)
			if !target.Health.Serving() {
				line += "!"
			}
		}
		all = append(all, line)
	}
	return strings.Join(all, "; ")
}

func TestTiers(t *testing.T) {
	home := Client{Locality: registry.Locality{Region: "a", Zone: "a1"}}
	ordered := home
	ordered.Order = []string{"c", "b"}
	tests := map[string]struct {
		client      Client
		endpoints   []*registry.Endpoint
		port, want  string
		unreachable int
	}{
		"nothing": {client: home, port: "http"},
		"by distance": {
			client: home, port: "http",
			endpoints: []*registry.Endpoint{at("b/b1", 1), at("c/c1", 2), at("a/a2", 3), at("a/a1", 4), at("a/a1", 5, weight(3)), at("b/b1", 6, lapsed)},
			want:      "0: 10.0.0.4:80*1 10.0.0.5:80*3; 1: 10.0.0.3:80*1; 2: 10.0.0.1:80*1 10.0.0.2:80*1; lapsed: 10.0.0.6:80*1",
		},
		"regions in an order": {
			client: ordered, port: "http",
			endpoints: []*registry.Endpoint{at("b/", 1), at("c/", 2), at("d/", 3), at("e/", 4)},
			want:      "2: 10.0.0.2:80*1; 3: 10.0.0.1:80*1; 4: 10.0.0.3:80*1 10.0.0.4:80*1",
		},
		"a client without a zone": {
			client:    Client{Locality: registry.Locality{Region: "a"}},
			endpoints: []*registry.Endpoint{at("a/", 1), at("a/a1", 2)}, port: "http",
			want: "1: 10.0.0.1:80*1 10.0.0.2:80*1",
		},
		"no such port": {client: home, endpoints: []*registry.Endpoint{at("a/a1", 1)}, port: "admin"},
		"no port asked for": {
			client: home, endpoints: []*registry.Endpoint{at("a/a1", 1), at("b/", 2, behind("n2", "192.0.2.1:8443"))},
			want: "0: 10.0.0.1:0*1; 2: 192.0.2.1:0*1",
		},
		"one address in two regions": {
			client: home, endpoints: []*registry.Endpoint{at("b/", 1, weight(9)), at("a/a1", 1)}, port: "http",
			want: "0: 10.0.0.1:80*1",
		},
		"another network behind its gateway": {
			client: home, port: "http",
			endpoints: []*registry.Endpoint{
				at("a/a1", 1), at("b/", 1, behind("n2", "192.0.2.1:8443"), weight(2)), at("b/", 2, behind("n2", "192.0.2.1:8443"), weight(3)),
				at("b/", 3, behind("n2", "192.0.2.1:8443"), weight(7), health(registry.Draining)),
			},
			want: "0: 10.0.0.1:80*1; 2: 192.0.2.1:8443*5",
		},
		"a gateway whose first endpoint does not serve": {
			client: home, port: "http",
			endpoints: []*registry.Endpoint{at("b/", 1, behind("n2", "192.0.2.1:8443"), health(registry.Unhealthy)), at("b/", 2, behind("n2", "192.0.2.1:8443"), weight(4))},
			want:      "2: 192.0.2.1:8443*4",
		},
		"another network without a gateway": {
			client: home, port: "http", unreachable: 2,
			endpoints: []*registry.Endpoint{at("a/a1", 1), at("b/", 2, behind("n2", "")), at("c/", 3, behind("n3", ""))},
			want:      "0: 10.0.0.1:80*1",
		},
		"what does not serve stays in its tier": {
			client: home, endpoints: []*registry.Endpoint{at("a/a1", 1, health(registry.Unhealthy)), at("a/a1", 2)}, port: "http",
			want: "0: 10.0.0.1:80*1! 10.0.0.2:80*1",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, unreachable := tt.client.Tiers(tt.endpoints, tt.port)
			if show(got) != tt.want || unreachable != tt.unreachable {
				t.Errorf("got  %s\nwant %s\nunreachable %d, want %d", show(got), tt.want, unreachable, tt.unreachable)
			}
		})
	}
}

// TestTiersOfAnything: whatever the endpoints, tiers come by distance, none is
// empty, no address is there twice, and every address is one that its client may
// use.
func TestTiersOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Client{Locality: registry.Locality{Region: "a", Zone: "a1"}, Order: []string{"b"}}
		endpoints := rapid.SliceOfN(rapid.Custom(someEndpoint), 0, 20).Draw(t, "endpoints")
		port := rapid.SampledFrom([]string{"", "http"}).Draw(t, "port")
		tiers, unreachable := c.Tiers(endpoints, port)
		seen, last := map[netip.AddrPort]bool{}, Distance(-1)
		for _, tier := range tiers {
			if tier.Distance <= last || len(tier.Targets) == 0 {
				t.Fatalf("tiers: %s", show(tiers))
			}
			last = tier.Distance
			for _, target := range tier.Targets {
				if seen[target.Addr] || target.Weight == 0 || target.Gateway != (target.Endpoint.Network != "") {
					t.Fatalf("target %+v of %s", target, show(tiers))
				}
				seen[target.Addr] = true
			}
		}
		if len(seen)+unreachable > len(endpoints) || len(endpoints) > 0 && len(seen)+unreachable == 0 {
			t.Fatalf("%d endpoints became %d targets, %d are unreachable", len(endpoints), len(seen), unreachable)
		}
	})
}

func someEndpoint(t *rapid.T) *registry.Endpoint {
	e := at(rapid.SampledFrom([]string{"a/a1", "a/a2", "b/b1", "c/"}).Draw(t, "place"), rapid.ByteRange(1, 4).Draw(t, "ip"))
	e.Health = registry.Health(rapid.Uint8Range(0, 3).Draw(t, "health"))
	e.Weight = rapid.Uint32().Draw(t, "weight")
	e.Lapsed = rapid.Bool().Draw(t, "lapsed")
	if rapid.Bool().Draw(t, "elsewhere") {
		behind("n2", rapid.SampledFrom([]string{"", "192.0.2.1:80", "192.0.2.2:80"}).Draw(t, "gateway"))(e)
	}
	return e
}
