package xds

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/grpcerr"
)

// Inspector asks a running server, as a client of it.
type Inspector struct {
	// Conn to the server.
	Conn grpc.ClientConnInterface
}

// Status returns how the clients stand that are connected to that server, sorted by
// their nodes. Errors are those of package registry.
func (i Inspector) Status(ctx context.Context) ([]Status, error) {
	answer, err := statusv3.NewClientStatusDiscoveryServiceClient(i.Conn).FetchClientStatus(ctx, &statusv3.ClientStatusRequest{})
	if err != nil {
		return nil, grpcerr.FromStatus(err)
	}
	return statusesOf(answer), nil
}

// inspector is the node's id of an Inspector's streams.
const inspector = "aether-xds-show"

// Shown is an assignment, for people.
type Shown struct {
	Name       string  `json:"name"`
	Localities []Share `json:"localities"`
	// LeftOut counts endpoints in another network with no gateway to it.
	LeftOut int `json:"left_out"`
}

// Share is where a client sends part of its traffic.
type Share struct {
	Priority uint32 `json:"priority"`
	Region   string `json:"region"`
	Zone     string `json:"zone,omitempty"`
	SubZone  string `json:"sub_zone,omitempty"`
	// Weight of the locality among those of its priority, Percent the same of
	// a hundred.
	Weight  uint32  `json:"weight"`
	Percent float64 `json:"percent"`
	// Endpoints of the locality.
	Endpoints []ShareEndpoint `json:"endpoints"`
}

// ShareEndpoint is one address, with its weight within the locality.
type ShareEndpoint struct {
	Address string `json:"address"`
	Port    uint32 `json:"port"`
	Health  string `json:"health"`
	Weight  uint32 `json:"weight"`
}

// Show returns the assignment of that name that a client like c gets, by asking for
// it as one; a region or network that c does not name is the server's. A name that
// has none is an Invalid or NotFound error that says why.
func (i Inspector) Show(ctx context.Context, name string, c Client) (Shown, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(i.Conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return Shown{}, grpcerr.FromStatus(err)
	}
	n, err := inspectorNode(c)
	if err != nil {
		return Shown{}, err
	}
	err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: typeURLs[assignments], ResourceNamesSubscribe: []string{name}})
	if err != nil && !errors.Is(err, io.EOF) { // of a stream that ended Recv tells why
		return Shown{}, grpcerr.FromStatus(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		return Shown{}, grpcerr.FromStatus(err)
	}
	return shownOf(name, answer)
}

func inspectorNode(c Client) (*corev3.Node, error) {
	said := map[string]any{}
	if c.Network != "" {
		said[networkKey] = c.Network
	}
	metadata, err := structpb.NewStruct(said)
	if err != nil {
		return nil, registry.Invalidf("network", "%w", err)
	}
	agent := "grpc-aether"
	if c.Spreads {
		agent = "envoy-aether"
	}
	return &corev3.Node{
		Id: inspector, UserAgentName: agent, Metadata: metadata,
		Locality: &corev3.Locality{Region: c.Region, Zone: c.Zone},
	}, nil
}

func shownOf(name string, answer *discoveryv3.DeltaDiscoveryResponse) (Shown, error) {
	for _, e := range answer.GetResourceErrors() {
		return Shown{}, registry.Errorf(registry.Invalid, "%s", e.GetErrorDetail().GetMessage())
	}
	if len(answer.GetResources()) != 1 {
		return Shown{}, registry.Errorf(registry.NotFound, "the server has no assignment %q", name)
	}
	m := &endpointv3.ClusterLoadAssignment{}
	if err := answer.GetResources()[0].GetResource().UnmarshalTo(m); err != nil {
		return Shown{}, fmt.Errorf("read assignment: %w", err)
	}
	totals := map[uint32]float64{}
	for _, l := range m.GetEndpoints() {
		totals[l.GetPriority()] += float64(l.GetLoadBalancingWeight().GetValue())
	}
	out := Shown{Name: name, Localities: []Share{}, LeftOut: leftOutOf(answer.GetResources()[0])}
	for _, l := range m.GetEndpoints() {
		out.Localities = append(out.Localities, shareOf(l, totals[l.GetPriority()]))
	}
	return out, nil
}

func shareOf(l *endpointv3.LocalityLbEndpoints, total float64) Share {
	weight := l.GetLoadBalancingWeight().GetValue()
	s := Share{
		Priority: l.GetPriority(), Region: l.GetLocality().GetRegion(), Zone: l.GetLocality().GetZone(), SubZone: l.GetLocality().GetSubZone(),
		Weight: weight, Percent: 100 * float64(weight) / total,
	}
	for _, e := range l.GetLbEndpoints() {
		at := e.GetEndpoint().GetAddress().GetSocketAddress()
		s.Endpoints = append(s.Endpoints, ShareEndpoint{
			Address: at.GetAddress(), Port: at.GetPortValue(), Weight: e.GetLoadBalancingWeight().GetValue(), Health: healthName(e.GetHealthStatus()),
		})
	}
	return s
}

func healthName(h corev3.HealthStatus) string {
	switch h {
	case corev3.HealthStatus_UNHEALTHY:
		return registry.Unhealthy.String()
	case corev3.HealthStatus_DRAINING:
		return registry.Draining.String()
	default:
		return registry.Healthy.String()
	}
}
