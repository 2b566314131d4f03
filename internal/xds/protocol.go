package xds

import (
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// sotw is a stream of the state of the world.
type sotw struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
}

func (s sotw) receive() (request, error) {
	m, err := s.stream.Recv()
	if err != nil {
		return request{}, err
	}
	return request{
		node: m.GetNode(), typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(),
		names: m.GetResourceNames(), version: m.GetVersionInfo(),
		refused: m.GetErrorDetail() != nil, reason: m.GetErrorDetail().GetMessage(),
	}, nil
}

func (s sotw) send(r *response) error {
	m := &discoveryv3.DiscoveryResponse{
		TypeUrl: typeURLs[r.kind], VersionInfo: r.version, Nonce: r.nonce, ResourceErrors: resourceErrors(r.errors),
		Resources: make([]*anypb.Any, 0, len(r.resources)),
	}
	for _, one := range r.resources {
		m.Resources = append(m.Resources, one.body)
	}
	return s.stream.Send(m)
}

// delta is a stream of deltas.
type delta struct {
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
}

func (s delta) receive() (request, error) {
	m, err := s.stream.Recv()
	if err != nil {
		return request{}, err
	}
	return request{
		node: m.GetNode(), typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(),
		names: m.GetResourceNamesSubscribe(), dropped: m.GetResourceNamesUnsubscribe(), held: m.GetInitialResourceVersions(),
		refused: m.GetErrorDetail() != nil, reason: m.GetErrorDetail().GetMessage(),
	}, nil
}

func (s delta) send(r *response) error {
	m := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: typeURLs[r.kind], SystemVersionInfo: r.version, Nonce: r.nonce,
		RemovedResources: r.removed, ResourceErrors: resourceErrors(r.errors),
	}
	for _, one := range r.resources {
		m.Resources = append(m.Resources, &discoveryv3.Resource{
			Name: one.name, Version: one.version, Resource: one.body, Metadata: leftOutMetadata(one.unreachable),
		})
	}
	return s.stream.Send(m)
}

// metadataKey and leftOutKey are where a delta tells, for people who look into it,
// how many endpoints an assignment lacks.
const (
	metadataKey = "aether"
	leftOutKey  = "left_out"
)

func leftOutMetadata(n int) *corev3.Metadata {
	if n == 0 {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		metadataKey: {Fields: map[string]*structpb.Value{leftOutKey: structpb.NewNumberValue(float64(n))}},
	}}
}

// leftOutOf reads what leftOutMetadata wrote.
func leftOutOf(r *discoveryv3.Resource) int {
	return int(r.GetMetadata().GetFilterMetadata()[metadataKey].GetFields()[leftOutKey].GetNumberValue())
}

// resourceErrors say why names have no resource. Clients that do not know them yet
// see that it does not exist.
func resourceErrors(errors map[string]string) []*discoveryv3.ResourceError {
	var out []*discoveryv3.ResourceError
	for _, name := range slices.Sorted(maps.Keys(errors)) {
		out = append(out, &discoveryv3.ResourceError{
			ResourceName: &discoveryv3.ResourceName{Name: name},
			ErrorDetail:  &statuspb.Status{Code: int32(codes.NotFound), Message: errors[name]},
		})
	}
	return out
}
