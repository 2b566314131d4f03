package registrytest

import (
	"net/netip"

	"github.com/aether-federation/aether/registry"
)

func (s *suite) registerStores() {
	e := s.endpoint("api.shop", "10.0.0.1")
	e.Instance, e.Node, e.Zone, e.Network = "web-0", "n1", "a1", "pods"
	e.Weight, e.Health = 7, registry.Draining
	e.Ports = append(e.Ports, registry.Port{Name: "admin", Number: 9090})
	e.Gateways = map[string]netip.AddrPort{"http": netip.MustParseAddrPort("192.0.2.1:15443")}
	e.Metadata = map[string]string{"version": "1.2", "empty": ""}
	bare := s.endpoint("bare", "fd00::1")
	bare.Ports, bare.Weight, bare.Health = nil, 0, registry.HealthUnspecified
	s.register(e, bare)
	s.wantList([]registry.Endpoint{e, bare})
}

func (s *suite) registerReplaces() {
	e := s.endpoint("api", "10.0.0.1")
	e.Metadata = map[string]string{"version": "1"}
	before := s.register(e)
	e = e.Clone()
	e.Health, e.Metadata = registry.Unhealthy, map[string]string{"color": "blue"}
	if after := s.register(e); after == before {
		s.Errorf("revision is %q before and after a change", after)
	}
	s.wantList([]registry.Endpoint{e})
}

func (s *suite) registerAgain() {
	e := s.endpoint("api", "10.0.0.1")
	e.Node = "n1"
	first := s.register(e, s.endpoint("api", "10.0.0.2"))
	again := s.endpoint("api", "10.0.0.2")
	again.Weight, again.Health = 0, registry.HealthUnspecified
	if second := s.register(e.Clone(), again); second != first {
		s.Errorf("revision went from %q to %q though nothing changed", first, second)
	}
}

func (s *suite) registerFillsOrigin() {
	want := s.endpoint("api", "10.0.0.1")
	e := want
	e.Origin = registry.Origin{}
	s.register(e)
	s.wantList([]registry.Endpoint{want})
	s.unregister(1, claim(e, ""))
	s.wantList(nil)
}

func (s *suite) registerNormalizes() {
	want := s.endpoint("api", "10.0.0.1")
	e := want
	e.IP = netip.MustParseAddr("::ffff:10.0.0.1")
	s.register(e)
	s.wantList([]registry.Endpoint{want})
	s.unregister(1, claim(e, ""))
}

func (s *suite) registerNothing() {
	s.register()
	s.unregister(0)
	s.wantList(nil)
}

func (s *suite) registerInvalid() {
	good := s.endpoint("api", "10.0.0.1")
	for _, change := range []func(*registry.Endpoint){
		func(e *registry.Endpoint) { e.Service = "" },
		func(e *registry.Endpoint) { e.Service = "A/b" },
		func(e *registry.Endpoint) { e.Protocol = "" },
		func(e *registry.Endpoint) { e.Protocol = "ftp" },
		func(e *registry.Endpoint) { e.Instance = "A" },
		func(e *registry.Endpoint) { e.Node = "n/1" },
		func(e *registry.Endpoint) { e.Ports = append(e.Ports, e.Ports[0]) },
		func(e *registry.Endpoint) { e.Ports = []registry.Port{{Name: "http"}} },
		func(e *registry.Endpoint) { e.IP = netip.Addr{} },
		func(e *registry.Endpoint) { e.IP = netip.MustParseAddr("fe80::1%eth0") },
		func(e *registry.Endpoint) { e.Metadata = map[string]string{"x": "\xff"} },
		func(e *registry.Endpoint) {
			e.Gateways = map[string]netip.AddrPort{"x": netip.MustParseAddrPort("192.0.2.1:1")}
		},
	} {
		poor := s.endpoint("api", "10.0.0.2").Clone()
		change(&poor)
		_, err := s.Registry.Register(s.ctx, []registry.Endpoint{good, poor})
		s.wantKind(err, registry.Invalid)
	}
	// Every endpoint is validated before the first is written, across batches.
	poor := s.endpoint("api", "10.0.0.2")
	poor.Service = ""
	_, err := s.Registry.Register(s.ctx, append(s.numbered("api", registry.MaxBatch+1), poor))
	s.wantKind(err, registry.Invalid)
	s.wantOnly()
}

// wantOnly proves that nothing but want is there: it registers one more
// endpoint, waits for it, and takes it away.
func (s *suite) wantOnly(want ...registry.Endpoint) {
	s.Helper()
	marker := s.endpoint("zz-marker", "10.255.0.1")
	s.register(marker)
	s.wantList(append(want[:len(want):len(want)], marker))
	s.unregister(1, claim(marker, ""))
}

func (s *suite) registerForeign() {
	for _, o := range []registry.Origin{
		{Region: s.Origin.Region + "x", Cluster: s.Origin.Cluster},
		{Region: s.Origin.Region, Cluster: s.Origin.Cluster + "0"},
	} {
		e := s.endpoint("api", "10.0.0.1")
		e.Origin = o
		_, err := s.Registry.Register(s.ctx, []registry.Endpoint{s.endpoint("api", "10.0.0.2"), e})
		s.wantKind(err, registry.Invalid)
		_, _, err = s.Registry.Unregister(s.ctx, []registry.Claim{claim(e, "")})
		s.wantKind(err, registry.Invalid)
	}
	s.wantOnly()
}

func (s *suite) registerDuplicate() {
	a, b := s.endpoint("api", "10.0.0.1"), s.endpoint("api", "::ffff:10.0.0.1")
	_, err := s.Registry.Register(s.ctx, []registry.Endpoint{a, b})
	s.wantKind(err, registry.Invalid)
	s.wantOnly()
	s.register(a)
	_, _, err = s.Registry.Unregister(s.ctx, []registry.Claim{claim(a, ""), claim(b, "")})
	s.wantKind(err, registry.Invalid)
	s.wantOnly(a)
}

func (s *suite) registerMany() {
	many := s.numbered("many", 2*registry.MaxBatch+1)
	s.register(many...)
	s.wantList(many)
	claims := make([]registry.Claim, len(many))
	for i, e := range many {
		claims[i] = claim(e, "")
	}
	s.unregister(len(many), claims...)
	s.wantList(nil)
}

func (s *suite) registerConflict() {
	held := s.endpoint("api", "10.0.0.1")
	held.Node = "n1"
	free := s.endpoint("api", "10.0.0.3")
	s.register(held, free)

	for _, node := range []string{"n2", ""} {
		taken := held
		taken.Node, taken.Weight = node, 9
		_, err := s.Registry.Register(s.ctx, []registry.Endpoint{s.endpoint("api", "10.0.0.2"), taken})
		s.wantKind(err, registry.Conflict)
	}
	s.wantOnly(held, free)

	// The holder may change it, and a node may take what nobody holds.
	held.Weight, free.Node = 5, "n2"
	s.register(held, free)
	s.wantList([]registry.Endpoint{held, free})
}

func (s *suite) unregisterRemoves() {
	a, b, c := s.endpoint("api", "10.0.0.1"), s.endpoint("api", "10.0.0.2"), s.endpoint("api", "10.0.0.3")
	b.Node, c.Node = "n1", "n1"
	s.register(a, b, c)
	absent := s.endpoint("api", "10.0.0.9")
	s.unregister(2, claim(a, "n1"), claim(b, "n1"), claim(absent, "n1"))
	s.wantList([]registry.Endpoint{c})
	s.unregister(0, claim(a, ""), claim(absent, ""))
	s.unregister(1, claim(c, ""))
	s.wantList(nil)
}

func (s *suite) unregisterConflict() {
	mine, theirs := s.endpoint("api", "10.0.0.1"), s.endpoint("api", "10.0.0.2")
	mine.Node, theirs.Node = "n1", "n2"
	s.register(mine, theirs)
	_, _, err := s.Registry.Unregister(s.ctx, []registry.Claim{claim(mine, "n1"), claim(theirs, "n1")})
	s.wantKind(err, registry.Conflict)
	s.wantOnly(mine, theirs)
}

func (s *suite) unregisterInvalid() {
	e := s.endpoint("api", "10.0.0.1")
	s.register(e)
	for _, change := range []func(*registry.Claim){
		func(c *registry.Claim) { c.Service = "" },
		func(c *registry.Claim) { c.Protocol = "ftp" },
		func(c *registry.Claim) { c.IP = netip.Addr{} },
		func(c *registry.Claim) { c.Node = "/" },
	} {
		poor := claim(s.endpoint("api", "10.0.0.2"), "")
		change(&poor)
		_, _, err := s.Registry.Unregister(s.ctx, []registry.Claim{claim(e, ""), poor})
		s.wantKind(err, registry.Invalid)
	}
	s.wantOnly(e)
}
