package xds

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/aether-federation/aether/registry"
)

// FetchClientStatus tells of each stream that is open what its client asked for,
// acknowledged and refused. Matching by node is not supported: it answers with all.
func (s *Server) FetchClientStatus(_ context.Context, req *statusv3.ClientStatusRequest) (*statusv3.ClientStatusResponse, error) {
	if len(req.GetNodeMatchers()) > 0 {
		return nil, registry.Invalidf("node_matchers", "are not supported: ask for all clients")
	}
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	answer := &statusv3.ClientStatusResponse{}
	for _, n := range open {
		if c := n.status(); c != nil {
			answer.Config = append(answer.Config, c)
		}
	}
	slices.SortFunc(answer.Config, func(a, b *statusv3.ClientConfig) int {
		return cmp.Or(cmp.Compare(a.GetNode().GetId(), b.GetNode().GetId()), cmp.Compare(a.GetClientScope(), b.GetClientScope()))
	})
	return answer, nil
}

// status is nil before the first request. The client's scope is who it is and from
// where.
func (s *session) status() *statusv3.ClientConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun {
		return nil
	}
	c := &statusv3.ClientConfig{ClientScope: s.from, Node: &corev3.Node{
		Id: s.node.id, Cluster: s.raw.GetCluster(), Metadata: s.raw.GetMetadata(), UserAgentName: s.node.agent,
		Locality: &corev3.Locality{Region: s.node.client.Region, Zone: s.node.client.Zone},
	}}
	for _, sub := range s.subs {
		if sub != nil {
			c.GenericXdsConfigs = append(c.GenericXdsConfigs, sub.status()...)
		}
	}
	return c
}

// status tells of each name that was asked for or sent.
func (s *subscription) status() []*statusv3.ClientConfig_GenericXdsConfig {
	names := map[string]struct{}{}
	for _, m := range []map[string]string{s.sent.of, s.acked} {
		for n := range m {
			names[n] = struct{}{}
		}
	}
	maps.Copy(names, s.names)
	for n := range s.held {
		names[n] = struct{}{}
	}
	delete(names, wildcard)
	var out []*statusv3.ClientConfig_GenericXdsConfig
	for _, n := range slices.Sorted(maps.Keys(names)) {
		out = append(out, s.statusOf(n))
	}
	return out
}

func (s *subscription) statusOf(name string) *statusv3.ClientConfig_GenericXdsConfig {
	m := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: typeURLs[s.kind], Name: name, VersionInfo: s.acked[name]}
	if m.VersionInfo != "" && !s.ackedAt.IsZero() {
		m.LastUpdated = timestamppb.New(s.ackedAt)
	}
	sent, isSent := s.sent.of[name]
	why, missing := s.errors[name]
	_, refused := s.held[name]
	switch {
	case refused:
		m.ConfigStatus, m.ClientStatus = statusv3.ConfigStatus_ERROR, adminv3.ClientResourceStatus_NACKED
		m.ErrorState = failureOf(s.refused, s.held[name])
	case missing:
		m.ConfigStatus, m.ClientStatus = statusv3.ConfigStatus_ERROR, adminv3.ClientResourceStatus_DOES_NOT_EXIST
		m.ErrorState = &adminv3.UpdateFailureState{Details: why}
	case !isSent:
		m.ConfigStatus, m.ClientStatus = statusv3.ConfigStatus_NOT_SENT, adminv3.ClientResourceStatus_REQUESTED
	case sent != s.acked[name]:
		m.ConfigStatus, m.ClientStatus = statusv3.ConfigStatus_STALE, adminv3.ClientResourceStatus_REQUESTED
	default:
		m.ConfigStatus, m.ClientStatus = statusv3.ConfigStatus_SYNCED, adminv3.ClientResourceStatus_ACKED
	}
	return m
}

// failureOf tells of a resource that was in a response which the client refused.
func failureOf(r *refusal, h hold) *adminv3.UpdateFailureState {
	m := &adminv3.UpdateFailureState{VersionInfo: h.version, LastUpdateAttempt: timestamppb.New(h.at)}
	if r != nil {
		m.Details = r.Reason
	}
	return m
}

// Status is how one client that is connected stands.
type Status struct {
	Node    string `json:"node"`
	Agent   string `json:"agent,omitempty"`
	From    string `json:"from,omitempty"`
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
	Network string `json:"network,omitempty"`
	// Resources that it asked for or was sent, by type and name.
	Resources []ResourceStatus `json:"resources"`
}

// Resource states.
const (
	Acknowledged = "acknowledged"
	Refused      = "refused"
	Missing      = "missing"
	Waiting      = "waiting"
)

// ResourceStatus is how one resource stands with one client.
type ResourceStatus struct {
	// Type is cds, eds, lds or rds.
	Type string `json:"type"`
	Name string `json:"name"`
	// State is Acknowledged, Refused, Missing: there is none, or Waiting for the
	// client's answer.
	State string `json:"state"`
	// Version that the client took last.
	Version string     `json:"version,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	// Error is why it was refused, and with which version, or why there is none.
	Error          string `json:"error,omitempty"`
	RefusedVersion string `json:"refused_version,omitempty"`
}

var states = map[adminv3.ClientResourceStatus]string{
	adminv3.ClientResourceStatus_ACKED: Acknowledged, adminv3.ClientResourceStatus_NACKED: Refused,
	adminv3.ClientResourceStatus_DOES_NOT_EXIST: Missing, adminv3.ClientResourceStatus_REQUESTED: Waiting,
}

func statusesOf(answer *statusv3.ClientStatusResponse) []Status {
	out := make([]Status, 0, len(answer.GetConfig()))
	for _, c := range answer.GetConfig() {
		n := c.GetNode()
		s := Status{
			Node: n.GetId(), Agent: n.GetUserAgentName(), From: c.GetClientScope(),
			Region: n.GetLocality().GetRegion(), Zone: n.GetLocality().GetZone(),
			Network:   n.GetMetadata().GetFields()[networkKey].GetStringValue(),
			Resources: []ResourceStatus{},
		}
		for _, r := range c.GetGenericXdsConfigs() {
			s.Resources = append(s.Resources, resourceStatusOf(r))
		}
		out = append(out, s)
	}
	return out
}

func resourceStatusOf(r *statusv3.ClientConfig_GenericXdsConfig) ResourceStatus {
	k, _ := kindOf(r.GetTypeUrl())
	out := ResourceStatus{
		Type: k.String(), Name: r.GetName(), State: states[r.GetClientStatus()], Version: r.GetVersionInfo(),
		Error: r.GetErrorState().GetDetails(), RefusedVersion: r.GetErrorState().GetVersionInfo(),
	}
	if r.GetLastUpdated() != nil {
		at := r.GetLastUpdated().AsTime()
		out.Since = &at
	}
	return out
}

// Count returns the number of resources in a state.
func (s Status) Count(state string) int {
	n := 0
	for _, r := range s.Resources {
		if r.State == state {
			n++
		}
	}
	return n
}
