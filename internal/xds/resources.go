package xds

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/registry"
)

// kind is a type of resource.
type kind uint8

// In the order in which they are sent: what is referred to first.
const (
	clusters kind = iota
	assignments
	listeners
	routes
	kinds
)

const typePrefix = "type.googleapis.com/"

var typeURLs = [kinds]string{
	clusters:    typePrefix + "envoy.config.cluster.v3.Cluster",
	assignments: typePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment",
	listeners:   typePrefix + "envoy.config.listener.v3.Listener",
	routes:      typePrefix + "envoy.config.route.v3.RouteConfiguration",
}

// kindOf returns the kind of a type's URL.
func kindOf(typeURL string) (kind, bool) {
	n := slices.Index(typeURLs[:], typeURL)
	return kind(max(n, 0)), n >= 0
}

// String returns the name that people know: cds, eds, lds or rds.
func (k kind) String() string { return [kinds]string{"cds", "eds", "lds", "rds"}[k] }

// whole reports whether a response of the state of the world names all resources
// of the kind that there are, so that one which is left out is gone.
func (k kind) whole() bool { return k == clusters || k == listeners }

// resource is one that can be sent. It is shared and never changed.
type resource struct {
	name string
	// version is made from body.
	version string
	body    *anypb.Any
	// unreachable endpoints were left out.
	unreachable int
}

// message is a message of xDS that knows its own rules.
type message interface {
	proto.Message
	ValidateAll() error
}

// pack makes a resource of a message that keeps its own rules.
func pack(name string, m message) (*resource, error) {
	body, err := marshal(m)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return &resource{name: name, version: versionOf(body.Value), body: body}, nil
}

// marshal encodes m in the one way in which it always is, if it keeps its rules.
func marshal(m message) (*anypb.Any, error) {
	if err := m.ValidateAll(); err != nil {
		return nil, fmt.Errorf("validate: %w", err)
	}
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return body, nil
}

// versionOf names content.
func versionOf(content []byte) string {
	hash := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(hash[:12])
}

const (
	// connectTimeout is how long Envoy waits for a connection to an endpoint.
	connectTimeout = 5 * time.Second
	// noLimit replaces the limit of 1,024 requests at once that clients have by
	// default: how much a service takes is not for a registry to say.
	noLimit = math.MaxUint32
	// statPrefix names Envoy's statistics of a listener.
	statPrefix = "aether"
)

// cluster returns the cluster of that name, whose endpoints are asked for by the
// same name.
func cluster(name string, protocols []registry.Protocol) (*resource, error) {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: aggregated()},
		ConnectTimeout:       durationpb.New(connectTimeout),
		LbPolicy:             clusterv3.Cluster_ROUND_ROBIN,
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{
			LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
				LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
			},
		},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections: wrapperspb.UInt32(noLimit), MaxPendingRequests: wrapperspb.UInt32(noLimit), MaxRequests: wrapperspb.UInt32(noLimit),
		}}},
	}
	if len(protocols) == 1 && protocols[0] == registry.GRPC {
		options, err := marshal(http2())
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
		c.TypedExtensionProtocolOptions = map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options}
	}
	return pack(name, c)
}

// aggregated says that a resource comes on the stream that named it.
func aggregated() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// http2 makes Envoy speak what gRPC needs.
func http2() *upstreamv3.HttpProtocolOptions {
	return &upstreamv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
				},
			},
		},
	}
}

// apiListener returns what a gRPC client asks for first, by the name of its target:
// a listener that sends all calls to one cluster.
func apiListener(name, to string) (*resource, error) {
	manager, err := httpManager(routeTable(name, to))
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return pack(name, &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: manager}})
}

func httpManager(table *routev3.RouteConfiguration) (*anypb.Any, error) {
	router, err := marshal(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	return marshal(&managerv3.HttpConnectionManager{
		StatPrefix:     statPrefix,
		RouteSpecifier: &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: table},
		HttpFilters: []*managerv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: router},
		}},
	})
}

// routeConfiguration is the route table by itself, for listeners that ask for it.
func routeConfiguration(name, to string) (*resource, error) {
	return pack(name, routeTable(name, to))
}

// routeTable sends everything to one cluster.
func routeTable(name, to string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: name,
		VirtualHosts: []*routev3.VirtualHost{{
			Name: name, Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: to},
					Timeout:          durationpb.New(0), // the caller's own deadline
				}},
			}},
		}},
	}
}

// loadAssignment returns an assignment in the form that clients take.
func loadAssignment(name string, a Assignment, s Spill) (*resource, error) {
	m := &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Policy: &endpointv3.ClusterLoadAssignment_Policy{
			OverprovisioningFactor: wrapperspb.UInt32(uint32(math.Round(s.withDefaults().Factor * 100))),
		},
	}
	for _, g := range a.Groups {
		m.Endpoints = append(m.Endpoints, localityEndpoints(g))
	}
	r, err := pack(name, m)
	if err == nil {
		r.unreachable = a.Unreachable
	}
	return r, err
}

func localityEndpoints(g Group) *endpointv3.LocalityLbEndpoints {
	m := &endpointv3.LocalityLbEndpoints{
		Locality:            &corev3.Locality{Region: g.Region, Zone: g.Zone, SubZone: g.SubZone},
		Priority:            g.Priority,
		LoadBalancingWeight: wrapperspb.UInt32(g.Weight),
	}
	for _, t := range g.Targets {
		m.LbEndpoints = append(m.LbEndpoints, lbEndpoint(t))
	}
	return m
}

func lbEndpoint(t locality.Target) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: socketAddress(t.Addr),
		}},
		HealthStatus:        healthStatus(t.Health),
		LoadBalancingWeight: wrapperspb.UInt32(t.Weight),
	}
}

func healthStatus(h registry.Health) corev3.HealthStatus {
	switch h {
	case registry.Unhealthy:
		return corev3.HealthStatus_UNHEALTHY
	case registry.Draining:
		return corev3.HealthStatus_DRAINING
	default:
		return corev3.HealthStatus_HEALTHY
	}
}
