package wire_test

import (
	"bytes"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

// endpoints draws endpoints with any text, as far as messages hold it.
func endpoints() *rapid.Generator[registry.Endpoint] {
	text := rapid.StringN(-1, -1, 200)
	return rapid.Custom(func(t *rapid.T) registry.Endpoint {
		e := registry.Endpoint{
			Key: key, Weight: rapid.Uint32().Draw(t, "weight"), Health: registry.Health(rapid.IntRange(0, 3).Draw(t, "health")),
			Zone: text.Draw(t, "zone"), Node: text.Draw(t, "node"), Network: text.Draw(t, "network"),
			Metadata: rapid.MapOfN(text, text, -1, 4).Draw(t, "metadata"), Gateways: map[string]netip.AddrPort{},
		}
		for _, name := range rapid.SliceOfNDistinct(text, -1, 4, rapid.ID).Draw(t, "ports") {
			e.Ports = append(e.Ports, registry.Port{Name: name, Number: rapid.Uint16Min(1).Draw(t, "number")})
			if rapid.Bool().Draw(t, "gateway") {
				e.Gateways[name] = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), rapid.Uint16Min(1).Draw(t, "gateway port"))
			}
		}
		return e
	})
}

// TestValueIsTheMessage: what is written field by field is what the message's own
// encoding writes.
func TestValueIsTheMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := endpoints().Draw(t, "endpoint")
		m := wire.ToProto(e)
		m.Service, m.Protocol, m.Instance = "", "", ""
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		got, valueErr := wire.Value(e)
		if (err == nil) != (valueErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("got %q, %v; want %q, %v", got, valueErr, want, err)
		}
	})
}

func TestValueRefusesWhatIsNoText(t *testing.T) {
	const bad = "\xff"
	for name, e := range map[string]registry.Endpoint{
		"zone": {Key: key, Zone: bad}, "node": {Key: key, Node: bad}, "network": {Key: key, Network: bad},
		"port":     {Key: key, Ports: []registry.Port{{Name: bad, Number: 1}}},
		"gateway":  {Key: key, Gateways: map[string]netip.AddrPort{bad: netip.MustParseAddrPort("10.0.0.1:1")}},
		"metadata": {Key: key, Metadata: map[string]string{"a": bad}}, "metadata key": {Key: key, Metadata: map[string]string{bad: "a"}},
	} {
		if _, err := wire.Value(e); registry.KindOf(err) != registry.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// reference reads a value by its message alone: a field that is unknown keeps it from
// being read in any other way.
func reference(value []byte) (registry.Endpoint, []string, error) {
	return wire.ParseValue(key, append([]byte{0xf8, 0x07, 0x01}, value...)) // field 127
}

// TestPlainIsTheMessage: bytes near those of a plain value are read as the message
// reads them, or refused as it refuses them.
func TestPlainIsTheMessage(t *testing.T) {
	names := wire.NewNames()
	rapid.Check(t, func(t *rapid.T) {
		e := endpoints().Draw(t, "endpoint")
		if rapid.Bool().Draw(t, "plain") {
			e.Metadata, e.Gateways = nil, nil
		}
		value, err := wire.Value(e)
		if err != nil {
			t.Skip(err)
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			value[rapid.IntRange(0, len(value)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		equalToReference(t, names, value)
	})
}

func equalToReference(t interface{ Fatalf(string, ...any) }, names *wire.Names, value []byte) {
	got, disagreements, err := wire.ParseValueNamed(key, value, names)
	want, wantDisagreements, wantErr := reference(value)
	if (err == nil) != (wantErr == nil) || len(disagreements) != len(wantDisagreements) || !got.Equal(want) {
		t.Fatalf("%q: got %+v, %v, %v; want %+v, %v, %v", value, got, disagreements, err, want, wantDisagreements, wantErr)
	}
}

// TestPlainInOtherOrders: fields may come in any order, and the last of one counts.
func TestPlainInOtherOrders(t *testing.T) {
	for _, m := range []*registryv1.Endpoint{
		{Ip: "10.0.0.2"},
		{Ip: "::ffff:10.0.0.1"},
		{Region: "b"},
		{Cluster: "c2"},
		{Weight: 5},
		{Zone: "a1"},
		{Node: "n1"},
		{Ports: []*registryv1.Port{{Name: "a", Number: 1}}},
		{Ports: []*registryv1.Port{{Number: 1}}},
		{Health: registryv1.Health_HEALTH_DRAINING},
		{Service: "other"},
		{Metadata: map[string]string{"": ""}},
	} {
		more, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		value, err := wire.Value(full())
		if err != nil {
			t.Fatal(err)
		}
		equalToReference(t, nil, append(value, more...))
		equalToReference(t, nil, append(more, value...))
	}
}

func FuzzPlain(f *testing.F) {
	value, err := wire.Value(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value)
	f.Add([]byte("\x12\x03\x0a\x01a"))
	f.Fuzz(func(t *testing.T, value []byte) { equalToReference(t, nil, value) })
}

func BenchmarkValue(b *testing.B) {
	e := full()
	e.Metadata, e.Gateways = nil, nil
	value, err := wire.Value(e)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			_, _ = wire.Value(e)
		}
	})
	b.Run("decode", func(b *testing.B) {
		names := wire.NewNames()
		for b.Loop() {
			_, _, _ = wire.ParseValueNamed(key, value, names)
		}
	})
	b.Run("decode by message", func(b *testing.B) {
		for b.Loop() {
			_, _, _ = reference(value)
		}
	})
}
