package wire

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aether-federation/aether/registry"
)

// Numbers of the fields of an Endpoint that are stored, and of the parts of each.
const (
	ipField = 1 + iota
	portsField
	weightField
	healthField
	regionField
	zoneField
	clusterField
	nodeField
	networkField
	gatewaysField
	metadataField
)

const (
	portName, portNumberField   = 1, 2
	gatewayIP, gatewayPortField = 1, 2
	entryKey, entryValue        = 1, 2
)

// AppendValue appends what [Value] returns to b. It writes the fields itself rather
// than by a message, which takes several times as long: every endpoint that is
// registered passes here.
func AppendValue(b []byte, e registry.Endpoint) ([]byte, error) {
	if err := checkText(e); err != nil {
		return nil, err
	}
	var ip [64]byte
	b = protowire.AppendBytes(protowire.AppendTag(b, ipField, protowire.BytesType), e.IP.AppendTo(ip[:0]))
	for _, p := range e.Ports {
		b = protowire.AppendTag(b, portsField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeText(portName, p.Name)+sizeNumber(portNumberField, uint64(p.Number))))
		b = appendNumber(appendText(b, portName, p.Name), portNumberField, uint64(p.Number))
	}
	b = appendNumber(b, weightField, uint64(e.Weight))
	b = appendNumber(b, healthField, uint64(e.Health))
	b = appendText(b, regionField, e.Region)
	b = appendText(b, zoneField, e.Zone)
	b = appendText(b, clusterField, e.Cluster)
	b = appendText(b, nodeField, e.Node)
	b = appendText(b, networkField, e.Network)
	return appendMaps(b, e), nil
}

// appendMaps appends gateways and metadata, in the order of their keys.
func appendMaps(b []byte, e registry.Endpoint) []byte {
	if len(e.Gateways) > 0 {
		for _, name := range slices.Sorted(maps.Keys(e.Gateways)) {
			b = appendEntry(b, gatewaysField, name, gatewayValue(e.Gateways[name]))
		}
	}
	if len(e.Metadata) > 0 {
		for _, name := range slices.Sorted(maps.Keys(e.Metadata)) {
			b = appendEntry(b, metadataField, name, e.Metadata[name])
		}
	}
	return b
}

func gatewayValue(g netip.AddrPort) string {
	return string(appendNumber(appendText(nil, gatewayIP, g.Addr().String()), gatewayPortField, uint64(g.Port())))
}

// appendEntry appends an entry of a map, whose key and value are there even if they
// are empty.
func appendEntry(b []byte, field protowire.Number, key, value string) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(2*protowire.SizeTag(1)+protowire.SizeBytes(len(key))+protowire.SizeBytes(len(value))))
	b = protowire.AppendString(protowire.AppendTag(b, entryKey, protowire.BytesType), key)
	return protowire.AppendString(protowire.AppendTag(b, entryValue, protowire.BytesType), value)
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func sizeText(field protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(len(s))
}

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func sizeNumber(field protowire.Number, n uint64) int {
	if n == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeVarint(n)
}

// checkText refuses text that a message must not hold.
func checkText(e registry.Endpoint) error {
	for _, s := range [...]string{e.Region, e.Zone, e.Cluster, e.Node, e.Network} {
		if !utf8.ValidString(s) {
			return notText(s)
		}
	}
	for _, p := range e.Ports {
		if !utf8.ValidString(p.Name) {
			return notText(p.Name)
		}
	}
	for name := range e.Gateways {
		if !utf8.ValidString(name) {
			return notText(name)
		}
	}
	for name, value := range e.Metadata {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return notText(name)
		}
	}
	return nil
}

func notText(s string) error {
	return registry.Invalidf("endpoint", "encode value: %w", fmt.Errorf("%q is not valid UTF-8", s))
}
