package xds

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
)

// show writes an assignment as "priority region/zone×weight: address×weight…", with
// ! for what does not serve and ~ for what drains.
func show(a Assignment) string {
	var out []string
	for _, g := range a.Groups {
		line := fmt.Sprintf("%d %s/%s×%d:", g.Priority, g.Region, strings.Trim(g.Zone+"/"+g.SubZone, "/"), g.Weight)
		for _, t := range g.Targets {
			line += fmt.Sprintf(" %s×%d%s", t.Addr, t.Weight, map[registry.Health]string{registry.Unhealthy: "!", registry.Draining: "~"}[t.Health])
		}
		out = append(out, line)
	}
	if a.Unreachable > 0 {
		out = append(out, fmt.Sprintf("%d left out", a.Unreachable))
	}
	return strings.Join(out, "\n")
}

func network(name, gateway string) func(*registry.Endpoint) {
	return func(e *registry.Endpoint) {
		if e.Network = name; gateway != "" {
			e.Gateways = map[string]netip.AddrPort{"grpc": netip.MustParseAddrPort(gateway)}
		}
	}
}

func lapsed(e *registry.Endpoint) { e.Lapsed = true }

func TestAssign(t *testing.T) {
	ill, draining := health(registry.Unhealthy), health(registry.Draining)
	grpc := Client{Locality: registry.Locality{Region: "a", Zone: "a1"}}
	envoy := grpc
	envoy.Spreads = true
	ordered := Translation{RegionOrder: []string{"a", "c", "b"}}
	tests := []struct {
		name      string
		t         Translation
		client    Client
		endpoints []registry.Endpoint
		want      string
	}{
		{name: "nothing", client: grpc},
		{
			name: "no zone, no gap", client: grpc,
			endpoints: []registry.Endpoint{at("b", "b1", "10.0.0.1", 80), at("a", "a2", "10.0.0.2", 80)},
			want:      "0 a/a2×1: 10.0.0.2:80×1\n1 b/b1×1: 10.0.0.1:80×1",
		},
		{
			name: "zone, region, regions in order", t: ordered, client: grpc,
			endpoints: []registry.Endpoint{at("b", "b1", "10.0.0.1", 80), at("c", "c1", "10.0.0.2", 80), at("a", "a2", "10.0.0.3", 80), at("a", "a1", "10.0.0.4", 80)},
			want:      "0 a/a1×1: 10.0.0.4:80×1\n1 a/a2×1: 10.0.0.3:80×1\n2 c/c1×1: 10.0.0.2:80×1\n3 b/b1×1: 10.0.0.1:80×1",
		},
		{
			name: "a client of the other end", t: ordered, client: Client{Locality: registry.Locality{Region: "b"}},
			endpoints: []registry.Endpoint{at("b", "b1", "10.0.0.1", 80), at("c", "c1", "10.0.0.2", 80), at("a", "a2", "10.0.0.3", 80)},
			want:      "0 b/b1×1: 10.0.0.1:80×1\n1 a/a2×1: 10.0.0.3:80×1\n2 c/c1×1: 10.0.0.2:80×1",
		},
		{
			name: "all of a zone drains: it keeps its place", client: grpc,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80, draining), at("a", "a2", "10.0.0.2", 80)},
			want:      "0 a/a1×1: 10.0.0.1:80×1~\n1 a/a2×1: 10.0.0.2:80×1",
		},
		{
			name: "half of a zone is ill: part of its traffic leaves", client: grpc,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80, ill), at("a", "a1", "10.0.0.2", 80), at("a", "a2", "10.0.0.3", 80), at("b", "b1", "10.0.0.4", 80)},
			want:      "0 a/a1×700000: 10.0.0.1:80×1! 10.0.0.2:80×1\n0 a/a2×300000: 10.0.0.3:80×1\n1 b/b1×1: 10.0.0.4:80×1",
		},
		{
			name: "Envoy does that itself", client: envoy,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80, ill), at("a", "a1", "10.0.0.2", 80), at("a", "a2", "10.0.0.3", 80)},
			want:      "0 a/a1×2: 10.0.0.1:80×1! 10.0.0.2:80×1\n1 a/a2×1: 10.0.0.3:80×1",
		},
		{
			name: "the ceiling", t: Translation{Spill: Spill{Ceiling: 0.5}}, client: grpc,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80, ill), at("b", "b1", "10.0.0.2", 80), at("b", "b2", "10.0.0.3", 80, weight(8)), at("c", "c1", "10.0.0.4", 80)},
			want:      "0 a/a1×1: 10.0.0.1:80×1!\n1 b/b1×55555: 10.0.0.2:80×1\n1 b/b2×444444: 10.0.0.3:80×8\n1 c/c1×500000: 10.0.0.4:80×1",
		},
		{
			name: "weights of one locality, for clients that weigh localities alone", client: grpc,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80, weight(9)), at("a", "a1", "10.0.0.2", 80), at("a", "a1", "10.0.0.3", 80, weight(9))},
			want:      "0 a/a1/weight-1×1: 10.0.0.2:80×1\n0 a/a1/weight-9×18: 10.0.0.1:80×9 10.0.0.3:80×9",
		},
		{
			name: "weights of one locality, for Envoy", client: envoy,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80, weight(9)), at("a", "a1", "10.0.0.2", 80)},
			want:      "0 a/a1×10: 10.0.0.1:80×9 10.0.0.2:80×1",
		},
		{
			name: "one address in two regions of a flat network goes to the nearer", client: grpc,
			endpoints: []registry.Endpoint{at("b", "b1", "10.0.0.1", 80, weight(7)), at("a", "a1", "10.0.0.1", 80)},
			want:      "0 a/a1×1: 10.0.0.1:80×1",
		},
		{
			name: "one address in two networks: the other by its gateway", client: grpc,
			endpoints: []registry.Endpoint{
				at("a", "a1", "10.0.0.1", 80), at("b", "b1", "10.0.0.1", 80, network("n2", "192.0.2.1:443"), weight(2)),
				at("b", "b1", "10.0.0.2", 80, network("n2", "192.0.2.1:443"), weight(3)),
			},
			want: "0 a/a1×1: 10.0.0.1:80×1\n1 b/b1×5: 192.0.2.1:443×5",
		},
		{
			name: "or not at all", client: grpc,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80), at("b", "b1", "10.0.0.1", 80, network("n2", ""))},
			want:      "0 a/a1×1: 10.0.0.1:80×1\n1 left out",
		},
		{
			name: "what lapsed is last and takes no share", client: grpc,
			endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80, ill), at("b", "b1", "10.0.0.2", 80, lapsed), at("b", "b1", "10.0.0.3", 80, ill)},
			want:      "0 a/a1×1: 10.0.0.1:80×1!\n1 b/b1×1: 10.0.0.3:80×1!\n2 b/b1×1: 10.0.0.2:80×1",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := show(tt.t.Assign(tt.client, pointers(tt.endpoints), "grpc")); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func pointers(endpoints []registry.Endpoint) []*registry.Endpoint {
	out := make([]*registry.Endpoint, len(endpoints))
	for i := range endpoints {
		out[i] = &endpoints[i]
	}
	return out
}

// TestAnyAssignmentIsTaken: whatever the endpoints, what is sent keeps the rules on
// which the gRPC clients insist, and those of the messages themselves.
func TestAnyAssignmentIsTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		endpoints := rapid.SliceOfN(rapid.Custom(anyEndpoint), 0, 30).Draw(t, "endpoints")
		c := Client{
			Locality: registry.Locality{Region: rapid.SampledFrom([]string{"a", "b", "d"}).Draw(t, "client"), Zone: rapid.SampledFrom([]string{"", "z1"}).Draw(t, "zone")},
			Network:  rapid.SampledFrom([]string{"", "n2"}).Draw(t, "network"), Spreads: rapid.Bool().Draw(t, "envoy"),
		}
		tr := Translation{
			RegionOrder: rapid.SampledFrom([][]string{nil, {"b"}, {"b", "a", "c"}}).Draw(t, "order"),
			Spill:       Spill{Ceiling: rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(t, "ceiling")},
		}
		s := newSnapshot("api", pointers(endpoints))
		r, err := s.make(assignments, Name{"api", "grpc"}, c, tr)
		if err != nil {
			t.Fatal(err)
		}
		m := &endpointv3.ClusterLoadAssignment{}
		if err := r.body.UnmarshalTo(m); err != nil {
			t.Fatal(err)
		}
		checkTaken(t, m)
	})
}

func anyEndpoint(t *rapid.T) registry.Endpoint {
	e := at(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "region"), rapid.SampledFrom([]string{"", "z1", "z2"}).Draw(t, "zone"),
		fmt.Sprintf("10.0.0.%d", rapid.IntRange(1, 6).Draw(t, "ip")), rapid.Uint16Range(80, 81).Draw(t, "port"))
	e.Cluster = rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "cluster")
	e.Health = registry.Health(rapid.Uint8Range(0, 3).Draw(t, "health"))
	e.Weight = rapid.OneOf(rapid.Uint32Range(0, 12), rapid.Just(uint32(math.MaxUint32)), rapid.Uint32()).Draw(t, "weight")
	e.Lapsed = rapid.IntRange(0, 5).Draw(t, "lapsed") == 0
	if rapid.Bool().Draw(t, "elsewhere") {
		network("n2", rapid.SampledFrom([]string{"", "192.0.2.1:80", "10.0.0.1:80"}).Draw(t, "gateway"))(&e)
	}
	return e
}

// checkTaken fails for what one of the gRPC clients refuses or ignores.
func checkTaken(t *rapid.T, m *endpointv3.ClusterLoadAssignment) {
	addresses := map[string]bool{}
	localities := map[string]bool{}
	sums := map[uint32]uint64{}
	var last uint32
	for _, l := range m.GetEndpoints() {
		p := l.GetPriority()
		if p > last+1 || p < last || len(sums) == 0 && p != 0 {
			t.Fatalf("priority %d after %d", p, last)
		}
		last = p
		sums[p] += uint64(l.GetLoadBalancingWeight().GetValue())
		if l.GetLoadBalancingWeight().GetValue() == 0 || sums[p] > math.MaxUint32 {
			t.Fatalf("weight %d, sum %d", l.GetLoadBalancingWeight().GetValue(), sums[p])
		}
		if name := fmt.Sprint(p, l.GetLocality()); localities[name] {
			t.Fatalf("locality %s twice", name)
		} else {
			localities[name] = true
		}
		var sum uint64
		for _, e := range l.GetLbEndpoints() {
			address := e.GetEndpoint().GetAddress().String()
			if sum += uint64(e.GetLoadBalancingWeight().GetValue()); addresses[address] || sum > math.MaxUint32 || e.GetLoadBalancingWeight().GetValue() == 0 {
				t.Fatalf("endpoint %v", e)
			}
			addresses[address] = true
		}
	}
}

func TestNames(t *testing.T) {
	for text, want := range map[string]Name{
		"api": {"api", ""}, "api.shop:grpc": {"api.shop", "grpc"},
	} {
		if got, err := ParseName(text); err != nil || got != want || got.String() != text {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":grpc", "api:", "api:GRPC", "api:a:b", "api/x", "xdstp://a/b"} {
		if n, err := ParseName(text); registry.KindOf(err) != registry.Invalid {
			t.Errorf("%q: %v, %v", text, n, err)
		}
	}
}

// TestResourcesOfNames: what each name means as endpoints come and go.
func TestResourcesOfNames(t *testing.T) {
	two := at("a", "a1", "10.0.0.2", 80)
	two.Ports = append(two.Ports, registry.Port{Name: "admin", Number: 81})
	udp := at("a", "a1", "10.0.0.3", 53)
	udp.Protocol, udp.Ports[0].Name = registry.UDP, "dns"
	tests := []struct {
		name, ask string
		endpoints []registry.Endpoint
		to        string
		err       string
	}{
		{name: "no endpoint", ask: "api", to: "api"},
		{name: "one port", ask: "api", endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80)}, to: "api:grpc"},
		{name: "two ports", ask: "api", endpoints: []registry.Endpoint{two}, err: "ask for one of api:admin, api:grpc"},
		{name: "two ports, one named", ask: "api:admin", endpoints: []registry.Endpoint{two}, to: "api:admin"},
		{name: "another port", ask: "api:http", endpoints: []registry.Endpoint{two}, to: "api:http"},
		{name: "UDP does not count", ask: "api", endpoints: []registry.Endpoint{at("a", "a1", "10.0.0.1", 80), udp}, to: "api:grpc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, err := ParseName(tt.ask)
			fatal(t, err)
			s := newSnapshot("api", pointers(tt.endpoints))
			for k := range kinds {
				r, err := s.make(k, n, Client{}, Translation{})
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) {
						t.Errorf("%s: %v, want %s", k, err, tt.err)
					}
					continue
				}
				fatal(t, err)
				if k == listeners && !strings.Contains(string(r.body.Value), tt.to) {
					t.Errorf("the listener does not lead to %s: %q", tt.to, r.body.Value)
				}
			}
		})
	}
}

func TestClustersSpeakWhatTheirEndpointsDo(t *testing.T) {
	for protocol, http2 := range map[registry.Protocol]int{registry.GRPC: 1, registry.HTTP: 0, registry.TCP: 0} {
		e := at("a", "a1", "10.0.0.1", 80)
		e.Protocol = protocol
		r, err := newSnapshot("api", pointers([]registry.Endpoint{e})).make(clusters, Name{"api", "grpc"}, Client{}, Translation{})
		fatal(t, err)
		c := &clusterv3.Cluster{}
		fatal(t, r.body.UnmarshalTo(c))
		if len(c.GetTypedExtensionProtocolOptions()) != http2 {
			t.Errorf("%s: %v", protocol, c)
		}
	}
}
