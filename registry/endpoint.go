package registry

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Origin is the partition of the registry that one cluster writes.
type Origin struct {
	Region, Cluster string
}

// Locality is where an endpoint runs, as far as traffic cares.
type Locality struct {
	Region, Zone string
}

// Protocol is the application protocol of an endpoint.
type Protocol string

// The protocols that a key may name.
const (
	HTTP Protocol = "http"
	GRPC Protocol = "grpc"
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
)

// Protocols lists every protocol, in the order of their names.
func Protocols() []Protocol { return []Protocol{GRPC, HTTP, TCP, UDP} }

// Key identifies an endpoint among all regions.
type Key struct {
	Origin
	Service  string
	Protocol Protocol
	// IP is canonical: no zone, and IPv4 where it can be.
	IP netip.Addr
	// Instance tells apart several endpoints at one address; most have none.
	Instance string
}

// Compare orders keys by service, protocol, region, cluster, IP and instance.
func (k Key) Compare(o Key) int {
	// One after the other, because most keys differ early.
	if c := strings.Compare(k.Service, o.Service); c != 0 {
		return c
	}
	if c := strings.Compare(string(k.Protocol), string(o.Protocol)); c != 0 {
		return c
	}
	if c := strings.Compare(k.Region, o.Region); c != 0 {
		return c
	}
	if c := strings.Compare(k.Cluster, o.Cluster); c != 0 {
		return c
	}
	if c := k.IP.Compare(o.IP); c != 0 {
		return c
	}
	return strings.Compare(k.Instance, o.Instance)
}

// Health is what is known of an endpoint's ability to serve.
type Health uint8

// The zero value, HealthUnspecified, counts as healthy.
const (
	HealthUnspecified Health = iota
	Healthy
	Unhealthy
	// Draining finishes what it has and takes nothing new.
	Draining
)

// Serving reports whether new work may be sent to an endpoint of this health.
func (h Health) Serving() bool { return h == HealthUnspecified || h == Healthy }

// String returns healthy, unhealthy or draining; unspecified reads as healthy.
func (h Health) String() string {
	switch h {
	case Unhealthy:
		return "unhealthy"
	case Draining:
		return "draining"
	default:
		return "healthy"
	}
}

// Port is one named port of an endpoint.
type Port struct {
	Name   string
	Number uint16
}

// Endpoint is one address at which one service is served over one protocol.
// An Endpoint that was handed to or received from a registry is shared: treat
// its slices and maps as read only, and Clone it to change them.
type Endpoint struct {
	Key
	Ports []Port
	// Weight is the relative share of traffic; 0 means 1.
	Weight uint32
	Health Health
	Zone   string
	// Node claims the endpoint: while present, no other node may register the
	// same key. It is present while it reports to a registrar; once it is absent
	// for longer than a grace, the endpoint is removed. Empty: nobody claims it,
	// and it stays until it is unregistered.
	Node string
	// Network names the address space in which IP means this endpoint. Empty:
	// one flat network.
	Network string
	// Gateways are the addresses by which other networks reach a port, by port
	// name.
	Gateways map[string]netip.AddrPort
	Metadata map[string]string
	// Lapsed: the endpoint's region is not proven to live any more. A registrar
	// that serves such endpoints all the same does so for services that have
	// nothing healthy left, and never prefers them. Registering ignores it.
	Lapsed bool
}

// Locality returns where e runs.
func (e Endpoint) Locality() Locality { return Locality{Region: e.Region, Zone: e.Zone} }

// Clone returns a copy that shares nothing with e.
func (e Endpoint) Clone() Endpoint {
	e.Ports = slices.Clone(e.Ports)
	e.Gateways = maps.Clone(e.Gateways)
	e.Metadata = maps.Clone(e.Metadata)
	return e
}

// Equal reports whether e and o say the same. Nil and empty slices and maps are
// equal, and so are weight 0 and 1, and unspecified and healthy.
func (e Endpoint) Equal(o Endpoint) bool {
	return e.Key == o.Key &&
		max(e.Weight, 1) == max(o.Weight, 1) &&
		max(e.Health, Healthy) == max(o.Health, Healthy) &&
		e.Zone == o.Zone && e.Node == o.Node && e.Network == o.Network && e.Lapsed == o.Lapsed &&
		slices.Equal(e.Ports, o.Ports) &&
		maps.Equal(e.Gateways, o.Gateways) &&
		maps.Equal(e.Metadata, o.Metadata)
}

// KeepDraining returns e, a node's report, as it is stored in place of stored: a
// node that reports what it has does not end a drain that somebody began.
func (e Endpoint) KeepDraining(stored Endpoint) Endpoint {
	if stored.Health == Draining {
		e.Health = Draining
	}
	return e
}
