package wire_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

var key = registry.Key{
	Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: "api.shop",
	Protocol: registry.GRPC, IP: netip.MustParseAddr("10.0.0.1"), Instance: "web-0",
}

func full() registry.Endpoint {
	return registry.Endpoint{
		Key: key, Ports: []registry.Port{{Name: "grpc", Number: 65535}, {Name: "admin", Number: 1}},
		Weight: 3, Health: registry.Unhealthy, Zone: "a1", Node: "n1", Network: "pods",
		Gateways: map[string]netip.AddrPort{"grpc": netip.MustParseAddrPort("[2001:db8::1]:15443")},
		Metadata: map[string]string{"a": "1", "b": "2", "c": "ü"},
	}
}

func TestValueRoundTrip(t *testing.T) {
	for name, e := range map[string]registry.Endpoint{"full": full(), "bare": {Key: key}} {
		b, err := wire.Value(e)
		if err != nil {
			t.Fatal(name, err)
		}
		got, disagreements, err := wire.ParseValue(e.Key, b)
		if err != nil || len(disagreements) != 0 || !got.Equal(e) {
			t.Errorf("%s: got %+v, %v, %v, want %+v", name, got, disagreements, err, e)
		}
		for range 20 {
			if again, err := wire.Value(e.Clone()); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%s: equal endpoints have values %q and %q", name, b, again)
			}
		}
	}
}

func TestValueStoresNoRequestFields(t *testing.T) {
	b, err := wire.Value(full())
	if err != nil {
		t.Fatal(err)
	}
	m := &registryv1.Endpoint{}
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	if m.GetService() != "" || m.GetProtocol() != "" || m.GetInstance() != "" || m.GetAge() != nil {
		t.Errorf("stored: %v", m)
	}
}

func TestProtoRoundTrip(t *testing.T) {
	e := full()
	if got, err := wire.FromProto(wire.ToProto(e)); err != nil || !got.Equal(e) {
		t.Errorf("got %+v, %v, want %+v", got, err, e)
	}
	if got, err := wire.KeyFromProto(wire.KeyToProto(key)); err != nil || got != key {
		t.Errorf("got %+v, %v, want %+v", got, err, key)
	}
	c := registry.Claim{Key: key, Node: "n1"}
	if got, err := wire.ClaimFromProto(wire.ClaimToProto(c)); err != nil || got != c {
		t.Errorf("got %+v, %v, want %+v", got, err, c)
	}
}

func TestKeyWins(t *testing.T) {
	value, err := wire.Value(full())
	if err != nil {
		t.Fatal(err)
	}
	other := key
	other.Region, other.IP = "b", netip.MustParseAddr("10.0.0.2")
	e, disagreements, err := wire.ParseValue(other, value)
	if err != nil || e.Key != other {
		t.Errorf("got %v, %v, want key %v", e.Key, err, other)
	}
	want := `region is "b" in the key and "a" in the value; ip is "10.0.0.2" in the key and "10.0.0.1" in the value`
	if got := strings.Join(disagreements, "; "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUnparsable(t *testing.T) {
	port := func(name string, n uint32) *registryv1.Port { return &registryv1.Port{Name: name, Number: n} }
	gateway := func(ip string, n uint32) map[string]*registryv1.Gateway {
		return map[string]*registryv1.Gateway{"x": {Ip: ip, Port: n}}
	}
	for _, m := range []*registryv1.Endpoint{
		{Health: 4},
		{Health: -1},
		{Ports: []*registryv1.Port{port("a", 0)}},
		{Ports: []*registryv1.Port{port("a", 65536)}},
		{Ports: []*registryv1.Port{port("a", 1), port("a", 2)}},
		{Gateways: gateway("", 1)},
		{Gateways: gateway("10.0.0.1", 0)},
		{Gateways: gateway("10.0.0.1", 70000)},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := wire.ParseValue(key, b); registry.KindOf(err) != registry.Invalid {
			t.Errorf("ParseValue of %v: %v, want Invalid", m, err)
		}
		m.Ip = "10.0.0.1"
		if _, err := wire.FromProto(m); registry.KindOf(err) != registry.Invalid {
			t.Errorf("FromProto of %v: %v, want Invalid", m, err)
		}
	}
	for _, b := range []string{"garbage", "\x0a\xff", "\x32\x01\xff"} {
		if _, _, err := wire.ParseValue(key, []byte(b)); registry.KindOf(err) != registry.Invalid {
			t.Errorf("ParseValue(%q): %v, want Invalid", b, err)
		}
	}
	if _, err := wire.FromProto(&registryv1.Endpoint{}); registry.KindOf(err) != registry.Invalid {
		t.Errorf("FromProto without ip: %v, want Invalid", err)
	}
}

func TestRandomRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := registry.Endpoint{
			Key: key, Weight: rapid.Uint32().Draw(t, "weight"),
			Health: registry.Health(rapid.IntRange(0, 3).Draw(t, "health")), Node: rapid.String().Draw(t, "node"),
			Metadata: rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata"),
		}
		for _, name := range rapid.SliceOfDistinct(rapid.String(), rapid.ID).Draw(t, "ports") {
			e.Ports = append(e.Ports, registry.Port{Name: name, Number: rapid.Uint16Min(1).Draw(t, "number")})
		}
		b, err := wire.Value(e)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := wire.ParseValue(key, b); err != nil || !got.Equal(e) {
			t.Fatalf("got %+v, %v, want %+v", got, err, e)
		}
	})
}

func FuzzParseValue(f *testing.F) {
	b, err := wire.Value(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, _, err := wire.ParseValue(key, b)
		if err != nil {
			return
		}
		value, err := wire.Value(e)
		if err != nil {
			t.Fatalf("Value of what parsed: %v", err)
		}
		again, disagreements, err := wire.ParseValue(key, value)
		if err != nil || len(disagreements) != 0 || !again.Equal(e) {
			t.Fatalf("got %+v, %v, %v, want %+v", again, disagreements, err, e)
		}
	})
}
