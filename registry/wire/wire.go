// Package wire turns endpoints into the protobuf of package registryv1 and back:
// as values in etcd, where the key says a part of it, and as messages in
// requests and answers, which carry everything.
//
// Reading is strict about what an Endpoint cannot express and lenient about the
// limits of registration: a value written by a later version with wider limits
// is still served.
package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
)

// Value returns what is stored under e's key: fields 1 to 12 of the message,
// equal bytes for equal endpoints within one build.
func Value(e registry.Endpoint) ([]byte, error) { return AppendValue(make([]byte, 0, valueSize), e) }

// valueSize is enough for most values.
const valueSize = 128

// ParseValue reads the value stored under key. The key decides region, cluster,
// service, protocol, IP and instance; where the value says otherwise, it is
// listed in disagreements, one sentence each.
func ParseValue(key registry.Key, value []byte) (e registry.Endpoint, disagreements []string, err error) {
	return ParseValueNamed(key, value, nil)
}

// ParseValueNamed is ParseValue with the names that other endpoints have as well out
// of names.
func ParseValueNamed(key registry.Key, value []byte, names *Names) (e registry.Endpoint, disagreements []string, err error) {
	if e, ok := parsePlain(key, value, names); ok {
		return e, nil, nil
	}
	m := &registryv1.Endpoint{}
	if err := proto.Unmarshal(value, m); err != nil {
		return registry.Endpoint{}, nil, registry.Invalidf("value", "decode endpoint: %w", err)
	}
	e, err = fields(m)
	if err != nil {
		return registry.Endpoint{}, nil, err
	}
	e.Key = key
	return e, compareWithKey(key, m), nil
}

// ToProto returns e as it appears in requests and answers.
func ToProto(e registry.Endpoint) *registryv1.Endpoint {
	m := stored(e)
	m.Service = e.Service
	m.Protocol = string(e.Protocol)
	m.Instance = e.Instance
	m.Lapsed = e.Lapsed
	return m
}

// Digest returns a number for what e says: equal for equal endpoints, and by the
// laws of chance for no others. The sum over a service's endpoints, with
// overflow, is that of the service, whatever their order. What cannot be encoded,
// and so is never sent, has none: 0.
func Digest(e registry.Endpoint) uint64 {
	e.Weight, e.Health = max(e.Weight, 1), max(e.Health, registry.Healthy)
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(ToProto(e))
	if err != nil {
		return 0
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// FromProto reads an endpoint of a request or answer. Its key may lack region
// and cluster; nothing is validated but what an Endpoint cannot express.
func FromProto(m *registryv1.Endpoint) (registry.Endpoint, error) {
	key, err := KeyFromProto(m)
	if err != nil {
		return registry.Endpoint{}, err
	}
	e, err := fields(m)
	if err != nil {
		return registry.Endpoint{}, err
	}
	e.Key, e.Lapsed = key, m.GetLapsed()
	return e, nil
}

// KeyFromProto reads only what identifies the endpoint.
func KeyFromProto(m *registryv1.Endpoint) (registry.Key, error) {
	ip, err := registry.ParseIP(m.GetIp())
	if err != nil {
		return registry.Key{}, err
	}
	return registry.Key{
		Origin:   registry.Origin{Region: m.GetRegion(), Cluster: m.GetCluster()},
		Service:  m.GetService(),
		Protocol: registry.Protocol(m.GetProtocol()),
		IP:       ip,
		Instance: m.GetInstance(),
	}, nil
}

// KeyToProto returns a message that identifies an endpoint and says nothing else
// of it.
func KeyToProto(k registry.Key) *registryv1.Endpoint {
	return &registryv1.Endpoint{
		Ip: k.IP.String(), Region: k.Region, Cluster: k.Cluster,
		Service: k.Service, Protocol: string(k.Protocol), Instance: k.Instance,
	}
}

// ClaimFromProto reads an endpoint to unregister, of which only the key and the
// node count.
func ClaimFromProto(m *registryv1.Endpoint) (registry.Claim, error) {
	key, err := KeyFromProto(m)
	return registry.Claim{Key: key, Node: m.GetNode()}, err
}

// ClaimToProto returns c as it appears in a request.
func ClaimToProto(c registry.Claim) *registryv1.Endpoint {
	m := KeyToProto(c.Key)
	m.Node = c.Node
	return m
}

func stored(e registry.Endpoint) *registryv1.Endpoint {
	m := &registryv1.Endpoint{
		Ip: e.IP.String(), Weight: e.Weight, Health: registryv1.Health(e.Health),
		Region: e.Region, Zone: e.Zone, Cluster: e.Cluster, Node: e.Node, Network: e.Network,
		Metadata: e.Metadata,
	}
	for _, p := range e.Ports {
		m.Ports = append(m.Ports, &registryv1.Port{Name: p.Name, Number: uint32(p.Number)})
	}
	if len(e.Gateways) > 0 {
		m.Gateways = make(map[string]*registryv1.Gateway, len(e.Gateways))
	}
	for name, g := range e.Gateways {
		m.Gateways[name] = &registryv1.Gateway{Ip: g.Addr().String(), Port: uint32(g.Port())}
	}
	return m
}

// fields reads all but the key.
func fields(m *registryv1.Endpoint) (registry.Endpoint, error) {
	health, err := healthOf(m.GetHealth())
	if err != nil {
		return registry.Endpoint{}, err
	}
	ports, err := portsOf(m.GetPorts())
	if err != nil {
		return registry.Endpoint{}, err
	}
	gateways, err := gatewaysOf(m.GetGateways())
	if err != nil {
		return registry.Endpoint{}, err
	}
	return registry.Endpoint{
		Ports: ports, Weight: m.GetWeight(), Health: health, Zone: m.GetZone(), Node: m.GetNode(),
		Network: m.GetNetwork(), Gateways: gateways, Metadata: m.GetMetadata(),
	}, nil
}

func healthOf(h registryv1.Health) (registry.Health, error) {
	if h < 0 || h > registryv1.Health(registry.Draining) {
		return 0, registry.Invalidf("health", "%d is unknown: use HEALTH_HEALTHY, HEALTH_UNHEALTHY or HEALTH_DRAINING", int32(h))
	}
	return registry.Health(h), nil
}

func portsOf(in []*registryv1.Port) ([]registry.Port, error) {
	out := make([]registry.Port, 0, len(in))
	for i, p := range in {
		n, err := portNumber("number", p.GetNumber())
		if err != nil {
			return nil, registry.Within(fmt.Sprintf("ports[%d]", i), err)
		}
		if slices.ContainsFunc(out, func(o registry.Port) bool { return o.Name == p.GetName() }) {
			return nil, registry.Invalidf(fmt.Sprintf("ports[%d].name", i), "%q is there twice: give each port a name of its own", p.GetName())
		}
		out = append(out, registry.Port{Name: p.GetName(), Number: n})
	}
	return slices.Clip(out), nil
}

func gatewaysOf(in map[string]*registryv1.Gateway) (map[string]netip.AddrPort, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]netip.AddrPort, len(in))
	for name, g := range in {
		field := fmt.Sprintf("gateways[%q]", name)
		ip, err := registry.ParseIP(g.GetIp())
		if err != nil {
			return nil, registry.Within(field, err)
		}
		n, err := portNumber(field+".port", g.GetPort())
		if err != nil {
			return nil, err
		}
		out[name] = netip.AddrPortFrom(ip, n)
	}
	return out, nil
}

func portNumber(field string, n uint32) (uint16, error) {
	if n == 0 || n > 65535 {
		return 0, registry.Invalidf(field, "is %d: use 1 to 65535", n)
	}
	return uint16(n), nil
}

// compareWithKey lists where a stored value names another key than its own.
// What a value leaves out is no disagreement.
func compareWithKey(key registry.Key, m *registryv1.Endpoint) []string {
	var out []string
	check := func(field, key, value string) {
		if value != "" && value != key {
			out = append(out, fmt.Sprintf("%s is %q in the key and %q in the value", field, key, value))
		}
	}
	check("region", key.Region, m.GetRegion())
	check("cluster", key.Cluster, m.GetCluster())
	check("service", key.Service, m.GetService())
	check("protocol", string(key.Protocol), m.GetProtocol())
	check("ip", key.IP.String(), m.GetIp())
	check("instance", key.Instance, m.GetInstance())
	return out
}
