package xds

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/aether-federation/aether/registry"
)

// What a client's node may say of itself, by key of its metadata.
const (
	// networkKey names the client's network.
	networkKey = "network"
	// servicesKey lists what an Envoy that asks for everything gets. Without it,
	// it gets every port of every service.
	servicesKey = "services"
	// listenersKey has, by the address and port to listen at, what Envoy sends
	// on from there.
	listenersKey = "listeners"
)

// node is what the first request of a stream tells of its client.
type node struct {
	id string
	// program is grpc, envoy or other.
	program string
	agent   string
	client  Client
	// scope is what it gets that asks for everything; nil: everything there is.
	scope []Name
	// outbound are the listeners that it wants, by address.
	outbound map[netip.AddrPort]Name
}

// readNode reads what a client says of itself; what it does not say is as in home.
// The error says what is not understood.
func readNode(m *corev3.Node, home Client) (node, error) {
	n := node{id: m.GetId(), agent: strings.TrimSpace(m.GetUserAgentName() + " " + m.GetUserAgentVersion()), client: home}
	n.program = programOf(m.GetUserAgentName())
	n.client.Spreads = n.program == "envoy"
	if region := m.GetLocality().GetRegion(); region != "" && region != home.Region {
		n.client.Locality = registry.Locality{Region: region}
	}
	n.client.Zone = cmp.Or(m.GetLocality().GetZone(), n.client.Zone)
	fields := m.GetMetadata().GetFields()
	if v, said := fields[networkKey]; said {
		n.client.Network = v.GetStringValue()
	}
	var err error
	if n.scope, err = readScope(fields[servicesKey].GetListValue()); err != nil {
		return node{}, registry.Within("node.metadata."+servicesKey, err)
	}
	if n.outbound, err = readOutbound(fields[listenersKey].GetStructValue()); err != nil {
		return node{}, registry.Within("node.metadata."+listenersKey, err)
	}
	return n, nil
}

func programOf(agent string) string {
	agent = strings.ToLower(agent)
	for _, known := range []string{"grpc", "envoy"} {
		if strings.HasPrefix(agent, known) {
			return known
		}
	}
	return "other"
}

func readScope(list *structpb.ListValue) ([]Name, error) {
	var scope []Name
	for _, v := range list.GetValues() {
		name, err := ParseName(v.GetStringValue())
		if err != nil {
			return nil, err
		}
		scope = append(scope, name)
	}
	return scope, nil
}

func readOutbound(m *structpb.Struct) (map[netip.AddrPort]Name, error) {
	outbound := map[netip.AddrPort]Name{}
	for _, at := range slices.Sorted(maps.Keys(m.GetFields())) {
		address, err := netip.ParseAddrPort(at)
		if err != nil {
			return nil, registry.Invalidf("address", "%q: want an IP address and a port, such as 127.0.0.1:9001", at)
		}
		name, err := ParseName(m.GetFields()[at].GetStringValue())
		if err != nil {
			return nil, err
		}
		outbound[address] = name
	}
	return outbound, nil
}
