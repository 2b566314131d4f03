package wire

import (
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aether-federation/aether/registry"
)

// maxNames is how many names are kept; beyond, they are forgotten all at once.
const maxNames = 1 << 16

// Names keeps one copy of each name that many endpoints have in common, such as
// those of services, zones and nodes. It is used by one goroutine at a time. A nil
// Names keeps none.
type Names struct{ known map[string]string }

// NewNames returns a Names that knows none.
func NewNames() *Names { return &Names{known: map[string]string{}} }

// Bytes returns b as a string.
func (n *Names) Bytes(b []byte) string {
	if n == nil || len(b) == 0 {
		return string(b)
	}
	if s, ok := n.known[string(b)]; ok {
		return s
	}
	return n.keep(string(b))
}

// Text returns s, as a string that keeps nothing else in memory.
func (n *Names) Text(s string) string {
	if n == nil || s == "" {
		return s
	}
	if known, ok := n.known[s]; ok {
		return known
	}
	return n.keep(strings.Clone(s))
}

func (n *Names) keep(s string) string {
	if len(n.known) == maxNames {
		clear(n.known)
	}
	n.known[s] = s
	return s
}

// parsePlain reads a value of the form that [Value] gives it, of an endpoint without
// gateways and metadata, and reports whether it could. It knows what it accepts and
// nothing else: all others are read by a message, which takes several times as long.
func parsePlain(key registry.Key, value []byte, names *Names) (registry.Endpoint, bool) {
	p := plain{e: registry.Endpoint{Key: key}, names: names}
	last := protowire.Number(0)
	for len(value) > 0 {
		field, kind, n := protowire.ConsumeTag(value)
		if n < 0 || field < last || field == last && field != portsField {
			return registry.Endpoint{}, false
		}
		last, value = field, value[n:]
		if n = p.take(field, kind, value); n < 0 {
			return registry.Endpoint{}, false
		}
		value = value[n:]
	}
	return p.e, true
}

// plain is an endpoint that is being read.
type plain struct {
	e     registry.Endpoint
	names *Names
}

// take reads one field at the beginning of b and returns its length; a negative one
// where the field is none of those that it knows.
func (p *plain) take(field protowire.Number, kind protowire.Type, b []byte) int {
	switch kind {
	case protowire.VarintType:
		v, n := protowire.ConsumeVarint(b)
		if n < 0 || !p.number(field, v) {
			return -1
		}
		return n
	case protowire.BytesType:
		v, n := protowire.ConsumeBytes(b)
		if n < 0 || !p.text(field, v) {
			return -1
		}
		return n
	default:
		return -1
	}
}

func (p *plain) number(field protowire.Number, v uint64) bool {
	switch {
	case field == weightField && v <= 1<<32-1:
		p.e.Weight = uint32(v)
	case field == healthField && v <= uint64(registry.Draining):
		p.e.Health = registry.Health(v)
	default:
		return false
	}
	return true
}

// text takes a field of bytes. Where it repeats a part of the key, it has to agree.
func (p *plain) text(field protowire.Number, v []byte) bool {
	switch field {
	case ipField:
		var b [64]byte
		return string(p.e.IP.AppendTo(b[:0])) == string(v)
	case portsField:
		return p.port(v)
	case regionField:
		return p.e.Region == string(v)
	case clusterField:
		return p.e.Cluster == string(v)
	}
	if !utf8.Valid(v) {
		return false
	}
	switch field {
	case zoneField:
		p.e.Zone = p.names.Bytes(v)
	case nodeField:
		p.e.Node = p.names.Bytes(v)
	case networkField:
		p.e.Network = p.names.Bytes(v)
	default:
		return false
	}
	return true
}

// port reads a port that has a name and a number.
func (p *plain) port(b []byte) bool {
	field, kind, n := protowire.ConsumeTag(b)
	if n < 0 || field != portName || kind != protowire.BytesType {
		return false
	}
	b = b[n:]
	name, n := protowire.ConsumeBytes(b)
	if n < 0 || !utf8.Valid(name) {
		return false
	}
	b = b[n:]
	field, kind, n = protowire.ConsumeTag(b)
	if n < 0 || field != portNumberField || kind != protowire.VarintType {
		return false
	}
	b = b[n:]
	number, n := protowire.ConsumeVarint(b)
	if n != len(b) || number == 0 || number > 65535 {
		return false
	}
	if slices.ContainsFunc(p.e.Ports, func(o registry.Port) bool { return o.Name == string(name) }) {
		return false
	}
	p.e.Ports = append(p.e.Ports, registry.Port{Name: p.names.Bytes(name), Number: uint16(number)})
	return true
}
