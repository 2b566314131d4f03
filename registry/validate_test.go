package registry_test

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/aether-federation/aether/registry"
)

func TestNames(t *testing.T) {
	label := strings.Repeat("a", 63)
	tests := map[string]struct {
		validate   func(string) error
		good, poor []string
	}{
		"region": {
			registry.ValidateRegion,
			[]string{"a", "eu-west_1.x", "A0", label},
			[]string{"", "-a", "a-", ".", "a/b", "a b", "ä", label + "a", "a\n", "a@b"},
		},
		"cluster": {
			registry.ValidateCluster,
			[]string{"c1", "c10", "C_1"},
			[]string{"", "c1/", "_c", label + "1"},
		},
		"service": {
			registry.ValidateService,
			[]string{"a", "a.b", "api.shop", "1", label + "." + label + "." + label + "." + label[:61]},
			[]string{"", "A", "a..b", ".a", "a.", "a_b", "a/b", "-a", label + "a", strings.Repeat("a.", 126) + "ab"},
		},
		"protocol": {
			func(s string) error { return registry.ValidateProtocol(registry.Protocol(s)) },
			[]string{"http", "grpc", "tcp", "udp"},
			[]string{"", "HTTP", "https", "tcp "},
		},
		"instance": {
			registry.ValidateInstance,
			[]string{"", "a", "web-0", label},
			[]string{"A", "a.b", "@", label + "a"},
		},
		"node": {
			registry.ValidateNode,
			[]string{"", "n1", "Host_1.example.com"},
			[]string{"a/b", " ", strings.Repeat("a", 254)},
		},
	}
	for field, tt := range tests {
		for _, s := range tt.good {
			if err := tt.validate(s); err != nil {
				t.Errorf("%s %q: %v", field, s, err)
			}
		}
		for _, s := range tt.poor {
			wantInvalid(t, tt.validate(s), field)
		}
	}
}

func wantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	e, ok := errors.AsType[*registry.Error](err)
	if !ok || e.Kind != registry.Invalid || e.Field != field {
		t.Errorf("got %v (%T), want Invalid about %s", err, err, field)
	}
}

func TestParseIP(t *testing.T) {
	good := map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "FD00:0::1": "fd00::1", "::ffff:a00:1": "10.0.0.1",
	}
	for in, want := range good {
		if got, err := registry.ParseIP(in); err != nil || got.String() != want {
			t.Errorf("ParseIP(%q) = %v, %v, want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "10.0.0.256", "10.0.0.01", "fe80::1%eth0", "10.0.0.1:80", "host", "::ffff:10.0.0.1%a"} {
		_, err := registry.ParseIP(in)
		wantInvalid(t, err, "ip")
	}
}

func valid() registry.Endpoint {
	return registry.Endpoint{
		Key: registry.Key{
			Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: "api.shop",
			Protocol: registry.HTTP, IP: netip.MustParseAddr("10.0.0.1"),
		},
		Ports:    []registry.Port{{Name: "http", Number: 80}, {Name: "admin", Number: 81}},
		Weight:   5,
		Health:   registry.Draining,
		Zone:     "a1",
		Node:     "n1",
		Network:  "pods-a",
		Gateways: map[string]netip.AddrPort{"http": netip.MustParseAddrPort("192.0.2.1:15443")},
		Metadata: map[string]string{"version": "1"},
	}
}

func TestEndpointValidate(t *testing.T) {
	if err := valid().Validate(); err != nil {
		t.Fatal(err)
	}
	gateway := func(s string) map[string]netip.AddrPort {
		return map[string]netip.AddrPort{"http": netip.MustParseAddrPort(s)}
	}
	tests := []struct {
		field  string
		change func(*registry.Endpoint)
	}{
		{"region", func(e *registry.Endpoint) { e.Region = "" }},
		{"cluster", func(e *registry.Endpoint) { e.Cluster = "/" }},
		{"service", func(e *registry.Endpoint) { e.Service = "A" }},
		{"protocol", func(e *registry.Endpoint) { e.Protocol = "ftp" }},
		{"instance", func(e *registry.Endpoint) { e.Instance = "a.b" }},
		{"ip", func(e *registry.Endpoint) { e.IP = netip.Addr{} }},
		{"ip", func(e *registry.Endpoint) { e.IP = netip.MustParseAddr("::ffff:10.0.0.1") }},
		{"ip", func(e *registry.Endpoint) { e.IP = netip.MustParseAddr("fe80::1%x") }},
		{"ip", func(e *registry.Endpoint) { e.IP = netip.MustParseAddr("0.0.0.0") }},
		{"ip", func(e *registry.Endpoint) { e.IP = netip.MustParseAddr("ff02::1") }},
		{"ip", func(e *registry.Endpoint) { e.IP = netip.MustParseAddr("255.255.255.255") }},
		{"zone", func(e *registry.Endpoint) { e.Zone = "a 1" }},
		{"network", func(e *registry.Endpoint) { e.Network = "a/1" }},
		{"node", func(e *registry.Endpoint) { e.Node = "a/1" }},
		{"health", func(e *registry.Endpoint) { e.Health = 4 }},
		{"ports", func(e *registry.Endpoint) { e.Ports = make([]registry.Port, 65) }},
		{"ports[1].name", func(e *registry.Endpoint) { e.Ports[1].Name = "" }},
		{"ports[1].name", func(e *registry.Endpoint) { e.Ports[1].Name = "http" }},
		{"ports[0].name", func(e *registry.Endpoint) { e.Ports[0].Name = "h:1" }},
		{"ports[1].number", func(e *registry.Endpoint) { e.Ports[1].Number = 0 }},
		{`gateways["http"]`, func(e *registry.Endpoint) { e.Ports = e.Ports[1:] }},
		{`gateways["http"].port`, func(e *registry.Endpoint) { e.Gateways = gateway("192.0.2.1:0") }},
		{`gateways["http"].ip`, func(e *registry.Endpoint) { e.Gateways = gateway("0.0.0.0:1") }},
		{`gateways["http"].ip`, func(e *registry.Endpoint) { e.Gateways = gateway("[fe80::1%x]:1") }},
		{`gateways["http"].ip`, func(e *registry.Endpoint) { e.Gateways = gateway("[::ffff:1.2.3.4]:1") }},
		{`gateways["http"].ip`, func(e *registry.Endpoint) { e.Gateways["http"] = netip.AddrPort{} }},
		{"metadata", func(e *registry.Endpoint) { e.Metadata[""] = "x" }},
		{"metadata", func(e *registry.Endpoint) { e.Metadata["x"] = "\xff" }},
		{"metadata", func(e *registry.Endpoint) { e.Metadata["x"] = strings.Repeat("x", registry.MaxMetaBytes) }},
		{"metadata", func(e *registry.Endpoint) {
			for i := range registry.MaxMetadata {
				e.Metadata["k"+strconv.Itoa(i)] = ""
			}
		}},
	}
	for _, tt := range tests {
		e := valid()
		tt.change(&e)
		wantInvalid(t, e.Validate(), tt.field)
	}
}

func TestPrepare(t *testing.T) {
	own := registry.Origin{Region: "a", Cluster: "c1"}
	e := valid()
	e.Origin = registry.Origin{}
	e.IP = netip.MustParseAddr("::ffff:10.0.0.1")
	e.Gateways["http"] = netip.MustParseAddrPort("[::ffff:192.0.2.1]:15443")
	got, err := registry.Prepare(own, []registry.Endpoint{e})
	if err != nil || !got[0].Equal(valid()) {
		t.Errorf("got %+v, %v, want %+v", got, err, valid())
	}
	if e.Gateways["http"].Addr().Is4() {
		t.Error("Prepare changed its argument")
	}

	foreign := valid()
	foreign.Region = "b"
	_, err = registry.Prepare(own, []registry.Endpoint{e, foreign})
	wantInvalid(t, err, "endpoints[1].region")
	foreign = valid()
	foreign.Cluster = "c10"
	_, err = registry.Prepare(own, []registry.Endpoint{foreign})
	wantInvalid(t, err, "endpoints[0].cluster")
	_, err = registry.Prepare(own, []registry.Endpoint{e, valid()})
	wantInvalid(t, err, "endpoints[1]")
}

func TestPrepareClaims(t *testing.T) {
	own := registry.Origin{Region: "a", Cluster: "c1"}
	c := registry.Claim{Key: valid().Key}
	c.Origin = registry.Origin{}
	got, err := registry.PrepareClaims(own, []registry.Claim{c})
	if err != nil || got[0].Key != valid().Key {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = registry.PrepareClaims(own, []registry.Claim{c, c})
	wantInvalid(t, err, "endpoints[1]")
	bad := c
	bad.Node = "/"
	_, err = registry.PrepareClaims(own, []registry.Claim{c, bad})
	wantInvalid(t, err, "endpoints[1].node")
	bad = c
	bad.Region = "b"
	_, err = registry.PrepareClaims(own, []registry.Claim{bad})
	wantInvalid(t, err, "endpoints[0].region")
}
