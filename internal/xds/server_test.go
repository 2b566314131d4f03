package xds

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/aether-federation/aether/registry"
)

// rawClient speaks deltas by hand.
type rawClient struct {
	t      *testing.T
	node   *corev3.Node
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

// envoyNode is a node of an Envoy in zone a1.
func envoyNode() *corev3.Node {
	return &corev3.Node{Id: "e1", UserAgentName: "envoy", Locality: &corev3.Locality{Region: "a", Zone: "a1"}}
}

func connect(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(t, err)
	t.Cleanup(func() { fatal(t, conn.Close()) })
	return conn
}

func openDelta(t *testing.T, address string, n *corev3.Node) *rawClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connect(t, address)).DeltaAggregatedResources(ctx)
	fatal(t, err)
	return &rawClient{t: t, node: n, stream: stream}
}

func (c *rawClient) ask(k kind, names ...string) { c.resume(k, nil, names...) }

// resume asks for names of which it has those versions.
func (c *rawClient) resume(k kind, held map[string]string, names ...string) {
	c.t.Helper()
	fatal(c.t, c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: c.node, TypeUrl: typeURLs[k], ResourceNamesSubscribe: names, InitialResourceVersions: held,
	}))
}

// next returns the next response, acknowledged.
func (c *rawClient) next() *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	m := c.read()
	fatal(c.t, c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}))
	return m
}

// refuse refuses the next response and returns it.
func (c *rawClient) refuse(why string) *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	m := c.read()
	fatal(c.t, c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(), ErrorDetail: &statuspb.Status{Code: 3, Message: why},
	}))
	return m
}

func (c *rawClient) read() *discoveryv3.DeltaDiscoveryResponse {
	c.t.Helper()
	m, err := c.stream.Recv()
	fatal(c.t, err)
	return m
}

func versionsOf(m *discoveryv3.DeltaDiscoveryResponse) map[string]string {
	out := map[string]string{}
	for _, r := range m.GetResources() {
		out[r.GetName()] = r.GetVersion()
	}
	return out
}

func namesOf(m *discoveryv3.DeltaDiscoveryResponse) string {
	return strings.Join(slices.Sorted(maps.Keys(versionsOf(m))), " ")
}

// addressesOf returns the addresses of the one assignment in m.
func addressesOf(t *testing.T, m *discoveryv3.DeltaDiscoveryResponse) string {
	t.Helper()
	if len(m.GetResources()) != 1 {
		t.Fatalf("want one assignment: %v", m)
	}
	cla := &endpointv3.ClusterLoadAssignment{}
	fatal(t, m.GetResources()[0].GetResource().UnmarshalTo(cla))
	var out []string
	for _, l := range cla.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			out = append(out, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
		}
	}
	return strings.Join(out, " ")
}

var (
	one   = at("a", "a1", "10.0.0.1", 80)
	two   = at("a", "a1", "10.0.0.2", 80)
	other = at("a", "a1", "10.0.0.3", 80, service("other"))
)

// TestVersionsAreOfContent: another replica, and a server after a restart, have the
// same versions, and send nothing to a client that has them.
func TestVersionsAreOfContent(t *testing.T) {
	first, second := run(t, newSource(one, two, other), ""), run(t, newSource(other, two, one), "")
	c := openDelta(t, first.address, envoyNode())
	held := map[kind]map[string]string{}
	for k := range kinds {
		if k == routes {
			continue
		}
		c.ask(k, "api:grpc", "other")
		held[k] = versionsOf(c.next())
	}
	again := openDelta(t, second.address, envoyNode())
	for k, versions := range held {
		again.resume(k, versions, "api:grpc", "other")
	}
	// What comes first is the answer to what it does not have.
	again.ask(routes, "api:grpc")
	if m := again.next(); m.GetTypeUrl() != typeURLs[routes] {
		t.Errorf("sent again to a client that had it: %v", m)
	}
	if n := second.counted("aether_xds_responses_total", "eds"); n != 0 {
		t.Errorf("%g assignments were sent again", n)
	}
}

// TestOnlySubscribersWake: a change of one service is sent to whom it concerns.
func TestOnlySubscribersWake(t *testing.T) {
	s := newSource(one, other)
	server := run(t, s, "")
	concerned, not := openDelta(t, server.address, envoyNode()), openDelta(t, server.address, envoyNode())
	concerned.ask(assignments, "api")
	not.ask(assignments, "other")
	concerned.next()
	not.next()
	s.put(two)
	if got := addressesOf(t, concerned.next()); got != "10.0.0.1 10.0.0.2" {
		t.Errorf("got %s", got)
	}
	s.remove(other)
	if m := not.next(); namesOf(m) != "other" || addressesOf(t, m) != "" {
		t.Errorf("the second answer to who asked for another service: %v", m)
	}
	if n := server.counted("aether_xds_responses_total", "eds"); n != 4 {
		t.Errorf("%g responses, want 4", n)
	}
}

// TestNobodyAsksNothingIsFollowed: a source is watched while somebody asks.
func TestNobodyAsksNothingIsFollowed(t *testing.T) {
	s := newSource(one, other)
	server := run(t, s, "")
	c := openDelta(t, server.address, envoyNode())
	c.ask(assignments, "api", "other")
	c.next()
	if n := s.watched(); n != 2 {
		t.Errorf("%d watches, want 2", n)
	}
	fatal(t, c.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURLs[assignments], ResourceNamesUnsubscribe: []string{"other"}}))
	eventually(t, "one watch is left", func() bool { return s.watched() == 1 })
	fatal(t, c.stream.CloseSend())
	eventually(t, "no watch is left", func() bool { return s.watched() == 0 })
}

// TestRefusals: what a client refuses is not sent at once again, is counted and
// shown, and holds nothing else up.
func TestRefusals(t *testing.T) {
	server := run(t, newSource(one, other), "")
	c := openDelta(t, server.address, envoyNode())
	c.ask(assignments, "api")
	c.refuse("not today")
	shown := func(state string) (out ResourceStatus) {
		eventually(t, "it is shown as "+state, func() bool {
			clients, err := Inspector{connect(t, server.address)}.Status(t.Context())
			fatal(t, err)
			if len(clients) != 1 || len(clients[0].Resources) == 0 {
				return false
			}
			out = clients[0].Resources[0]
			return out.State == state
		})
		return out
	}
	if r := shown(Refused); r.Error != "not today" || r.Name != "api" || r.Type != "eds" || r.Version != "" || r.RefusedVersion == "" {
		t.Errorf("a refusal is shown as %+v", r)
	}
	if n := server.counted("aether_xds_nacks_total", "envoy", "eds"); n != 1 {
		t.Errorf("%g refusals are counted, want 1", n)
	}
	c.next()
	if r := shown(Acknowledged); r.Error != "" || r.Version == "" {
		t.Errorf("after it was taken: %+v", r)
	}
}

// TestRefusesEverything: a client that refuses all gets each name once, while no
// time passes.
func TestRefusesEverything(t *testing.T) {
	s := newSource(one, other)
	server := run(t, s, "", func(c *Config) { c.now = func() time.Time { return time.Unix(0, 0) } })
	c := openDelta(t, server.address, envoyNode())
	for _, k := range []kind{clusters, assignments, listeners} {
		c.ask(k, "api", "other")
		c.refuse("never")
	}
	s.put(two) // what is new waits too
	c.ask(routes, "api")
	if m := c.next(); m.GetTypeUrl() != typeURLs[routes] {
		t.Errorf("sent again after a refusal: %v", m)
	}
	for _, k := range []string{"cds", "eds", "lds"} {
		if n := server.counted("aether_xds_responses_total", k); n != 1 {
			t.Errorf("%g %s responses, want 1", n, k)
		}
	}
}

// TestEnvoyGetsEverything: a client that names nothing gets each port of each
// service, as it comes and goes.
func TestEnvoyGetsEverything(t *testing.T) {
	s := newSource(one, other)
	server := run(t, s, "")
	c := openDelta(t, server.address, envoyNode())
	c.ask(clusters)
	if got := namesOf(c.next()); got != "api:grpc other:grpc" {
		t.Errorf("clusters %s", got)
	}
	s.put(at("a", "a1", "10.0.0.4", 80, service("third")))
	if got := namesOf(c.next()); got != "third:grpc" {
		t.Errorf("new clusters %s", got)
	}
	more := one
	more.Ports = append(slices.Clone(one.Ports), registry.Port{Name: "admin", Number: 81})
	s.put(more)
	if got := namesOf(c.next()); got != "api:admin" {
		t.Errorf("clusters of a new port %s", got)
	}
	s.put(one)
	if m := c.next(); strings.Join(m.GetRemovedResources(), " ") != "api:admin" {
		t.Errorf("clusters of a port that is gone: %v", m)
	}
	s.remove(one)
	if m := c.next(); strings.Join(m.GetRemovedResources(), " ") != "api:grpc" {
		t.Errorf("removed clusters %v", m)
	}
}

// TestEnvoyTakesAChangedCluster: once it is told of a changed cluster it waits for its
// endpoints, though these are what they were.
func TestEnvoyTakesAChangedCluster(t *testing.T) {
	s := newSource(one)
	c := openDelta(t, run(t, s, "").address, envoyNode())
	c.ask(clusters, "api:grpc")
	c.next()
	c.ask(assignments, "api:grpc")
	before := versionsOf(c.next())
	http := one
	http.Protocol = registry.HTTP
	s.put(http) // at the same address: it counts once
	if m := c.next(); m.GetTypeUrl() != typeURLs[clusters] || namesOf(m) != "api:grpc" {
		t.Fatalf("want the cluster, without HTTP/2: %v", m)
	}
	if m := c.next(); m.GetTypeUrl() != typeURLs[assignments] || !maps.Equal(versionsOf(m), before) {
		t.Errorf("want the same assignment again: %v", m)
	}
}

// TestEnvoyWithAScope: an Envoy's node may say what it needs, and where to listen.
func TestEnvoyWithAScope(t *testing.T) {
	tcp := at("a", "a1", "10.0.0.5", 5432, service("db"))
	tcp.Protocol, tcp.Ports[0].Name = registry.TCP, "sql"
	n := envoyNode()
	metadata, err := structpb.NewStruct(map[string]any{
		"services":  []any{"api", "db:sql"},
		"listeners": map[string]any{"127.0.0.1:9001": "api", "127.0.0.1:9002": "db"},
	})
	fatal(t, err)
	n.Metadata = metadata
	server := run(t, newSource(one, other, tcp), "")
	c := openDelta(t, server.address, n)
	c.ask(clusters)
	if got := namesOf(c.next()); got != "api db:sql" {
		t.Errorf("clusters %s", got)
	}
	c.ask(listeners)
	m := c.next()
	if got := namesOf(m); got != "outbound/127.0.0.1:9001 outbound/127.0.0.1:9002" {
		t.Fatalf("listeners %s", got)
	}
	for _, r := range m.GetResources() {
		l := &listenerv3.Listener{}
		fatal(t, r.GetResource().UnmarshalTo(l))
		want := map[string]string{"outbound/127.0.0.1:9001": "http_connection_manager", "outbound/127.0.0.1:9002": "tcp_proxy"}[l.GetName()]
		if got := l.GetFilterChains()[0].GetFilters()[0].GetName(); !strings.HasSuffix(got, want) {
			t.Errorf("%s has %s", l.GetName(), got)
		}
	}
}

// TestNodesThatMakeNoSense are told so.
func TestNodesThatMakeNoSense(t *testing.T) {
	n := envoyNode()
	metadata, err := structpb.NewStruct(map[string]any{"listeners": map[string]any{"localhost": "api"}})
	fatal(t, err)
	n.Metadata = metadata
	c := openDelta(t, run(t, newSource(), "").address, n)
	c.ask(clusters)
	_, err = c.stream.Recv()
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "node.metadata.listeners") {
		t.Errorf("got %v", err)
	}
}

func TestShow(t *testing.T) {
	away := at("b", "b1", "10.0.0.9", 80)
	away.Network = "n2"
	i := Inspector{connect(t, run(t, newSource(one, two, away), "").address)}
	got, err := i.Show(t.Context(), "api", Client{Locality: registry.Locality{Zone: "a1"}})
	fatal(t, err)
	if len(got.Localities) != 1 || got.LeftOut != 1 || got.Localities[0].Percent != 100 || len(got.Localities[0].Endpoints) != 2 {
		t.Errorf("shown: %+v", got)
	}
	if got, err = i.Show(t.Context(), "nobody", Client{}); err != nil || len(got.Localities) != 0 {
		t.Errorf("a service that is not there: %+v, %v", got, err)
	}
	if _, err = i.Show(t.Context(), "No", Client{}); registry.KindOf(err) != registry.Invalid {
		t.Errorf("a name that is none: %v", err)
	}
}
