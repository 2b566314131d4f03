package xds

import (
	"fmt"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	proxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/aether-federation/aether/registry"
)

// outboundPrefix begins the name of a listener that an Envoy's node asked for; the
// address that it listens at follows.
const outboundPrefix = "outbound/"

// outbound returns a listener of c at an address, which sends all that comes to one
// service: as requests, or as a stream of bytes where one of the endpoints speaks
// neither HTTP nor gRPC.
func (c *cache) outbound(at string, n Name) (*resource, error) {
	s := c.shownOf(n.Service)
	if s == nil {
		return nil, errPending
	}
	means, err := n.resolve(s.ports)
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, registry.Invalidf("address", "%q: %w", at, err)
	}
	filter, err := outboundFilter(n.String(), means.String(), s.protocols(means.Port))
	if err != nil {
		return nil, fmt.Errorf("make %s%s: %w", outboundPrefix, at, err)
	}
	name := outboundPrefix + at
	return pack(name, &listenerv3.Listener{
		Name:         name,
		Address:      socketAddress(address),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{filter}}},
	})
}

func outboundFilter(name, to string, protocols []registry.Protocol) (*listenerv3.Filter, error) {
	kind, config, err := "envoy.filters.network.http_connection_manager", (*anypb.Any)(nil), error(nil)
	if requests(protocols) {
		config, err = httpManager(routeTable(name, to))
	} else {
		kind = "envoy.filters.network.tcp_proxy"
		config, err = marshal(&proxyv3.TcpProxy{StatPrefix: statPrefix, ClusterSpecifier: &proxyv3.TcpProxy_Cluster{Cluster: to}})
	}
	return &listenerv3.Filter{Name: kind, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}}, err
}

// requests reports whether protocols carry requests that Envoy can tell apart.
func requests(protocols []registry.Protocol) bool {
	for _, p := range protocols {
		if p != registry.HTTP && p != registry.GRPC {
			return false
		}
	}
	return true
}

func socketAddress(a netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}
