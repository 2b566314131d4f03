package dns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// known is a catalog that a test fills.
type known struct {
	*view.View
	ix  view.Index
	age atomic.Int64
}

func (k *known) Age() time.Duration { return time.Duration(k.age.Load()) }

func (k *known) put(endpoints ...registry.Endpoint) {
	for _, e := range endpoints {
		k.Publish(k.ix, k.ix.Merge(e.Service, []view.Change{{Kind: registry.Put, Endpoint: &e}}), 0)
	}
}

// at returns an endpoint of a service in a region and zone, such as "a/a1".
func at(service, place, ip string, change ...func(*registry.Endpoint)) registry.Endpoint {
	region, zone, _ := strings.Cut(place, "/")
	e := registry.Endpoint{
		Key: registry.Key{
			Origin:  registry.Origin{Region: region, Cluster: "c1"},
			Service: service, Protocol: registry.HTTP, IP: netip.MustParseAddr(ip),
		},
		Zone: zone, Ports: []registry.Port{{Name: "http", Number: 8080}}, Weight: 1,
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func sick(e *registry.Endpoint)     { e.Health = registry.Unhealthy }
func draining(e *registry.Endpoint) { e.Health = registry.Draining }
func twoPorts(e *registry.Endpoint) {
	e.Ports = append(e.Ports, registry.Port{Name: "admin", Number: 9090})
}

func elsewhere(e *registry.Endpoint) {
	e.Network = "n2"
	e.Gateways = map[string]netip.AddrPort{"http": netip.MustParseAddrPort("192.0.2.1:8443")}
}

// start serves what a test puts.
func start(t testing.TB) (k *known, address string) {
	t.Helper()
	k = &known{View: view.New(view.Config{}), ix: view.Index{}}
	udp, tcp, err := Listen("127.0.0.1:0")
	fatal(t, err)
	client := locality.Client{Locality: registry.Locality{Region: "a", Zone: "a1"}}
	s, err := New(Config{Catalog: k, Client: func() locality.Client { return client }, UDP: udp, TCP: tcp})
	fatal(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return k, tcp.Addr().String()
}

// ask asks over UDP with EDNS0.
func ask(t testing.TB, address, qname string, kind uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(qname, kind)
	m.SetEdns0(4096, false)
	return exchange(t, address, "udp", m)
}

func exchange(t testing.TB, address, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	answer, _, err := (&dns.Client{Net: network, Timeout: 10 * time.Second}).ExchangeContext(t.Context(), m, address)
	fatal(t, err)
	return answer
}

// values returns what records say, with the priority of SRV before it, in order or
// sorted.
func values(records []dns.RR, sorted bool) string {
	var all []string
	for _, r := range records {
		switch r := r.(type) {
		case *dns.A:
			all = append(all, r.A.String())
		case *dns.AAAA:
			all = append(all, r.AAAA.String())
		case *dns.SRV:
			all = append(all, fmt.Sprintf("%d/%d/%s:%d", r.Priority, r.Weight, r.Target, r.Port))
		case *dns.SOA:
			all = append(all, "soa")
		}
	}
	if sorted {
		slices.Sort(all)
	}
	return strings.Join(all, " ")
}

func TestAnswers(t *testing.T) {
	k, address := start(t)
	k.put(
		at("api.shop", "a/a1", "10.0.0.1"), at("api.shop", "a/a2", "10.0.0.2"), at("api.shop", "b/b1", "10.1.0.1"),
		at("api.shop", "a/a1", "10.0.0.3", sick), at("api.shop", "a/a1", "10.0.0.4", draining),
		at("far", "b/b1", "10.1.0.2"), at("far", "a/a1", "10.0.0.5", sick),
		at("gone", "a/a1", "10.0.0.6", sick), at("six", "a/a1", "fd00::1"), at("two", "a/a1", "10.0.0.7", twoPorts),
		at("behind", "b/b1", "10.0.0.1", elsewhere), at("behind", "b/b1", "10.0.0.2", elsewhere),
	)
	soa := "soa"
	tests := []struct {
		name  string
		kind  uint16
		rcode int
		want  string
		ns    string
		extra string
	}{
		{name: "api.shop.aether.", kind: dns.TypeA, want: "10.0.0.1 10.0.0.2"},
		{name: "API.Shop.AETHER.", kind: dns.TypeA, want: "10.0.0.1 10.0.0.2"},
		{name: "api.shop.aether.", kind: dns.TypeANY, want: "10.0.0.1 10.0.0.2"},
		{name: "api.shop.aether.", kind: dns.TypeAAAA, ns: soa},
		{name: "api.shop.aether.", kind: dns.TypeTXT, ns: soa},
		{name: "shop.aether.", kind: dns.TypeA, ns: soa},
		{name: "hop.aether.", kind: dns.TypeA, rcode: dns.RcodeNameError, ns: soa},
		{name: "none.aether.", kind: dns.TypeA, rcode: dns.RcodeNameError, ns: soa},
		{name: "gone.aether.", kind: dns.TypeA, ns: soa},
		{name: "far.aether.", kind: dns.TypeA, want: "10.1.0.2"},
		{name: "six.aether.", kind: dns.TypeAAAA, want: "fd00::1"},
		{name: "behind.aether.", kind: dns.TypeA, want: "192.0.2.1"},
		{name: "behind.aether.", kind: dns.TypeSRV, want: "0/2/c0000201.addr.aether.:8443", extra: "192.0.2.1"},
		{
			name: "api.shop.aether.", kind: dns.TypeSRV,
			want: "0/1/0a000001.addr.aether.:8080 1/1/0a000002.addr.aether.:8080", extra: "10.0.0.1 10.0.0.2",
		},
		{name: "_http._tcp.two.aether.", kind: dns.TypeSRV, want: "0/1/0a000007.addr.aether.:8080", extra: "10.0.0.7"},
		{name: "_ADMIN._http.two.aether.", kind: dns.TypeSRV, want: "0/1/0a000007.addr.aether.:9090", extra: "10.0.0.7"},
		{name: "_http._tcp.six.aether.", kind: dns.TypeSRV, want: "0/1/fd000000000000000000000000000001.addr.aether.:8080", extra: "fd00::1"},
		{name: "_http._udp.two.aether.", kind: dns.TypeSRV, rcode: dns.RcodeNameError, ns: soa},
		{name: "_none._tcp.two.aether.", kind: dns.TypeSRV, rcode: dns.RcodeNameError, ns: soa},
		{name: "_http._tcp.two.aether.", kind: dns.TypeA, ns: soa},
		{name: "_tcp.two.aether.", kind: dns.TypeSRV, ns: soa},
		{name: "two.aether.", kind: dns.TypeSRV, ns: soa},
		{name: "0a000001.addr.aether.", kind: dns.TypeA, want: "10.0.0.1"},
		{name: "0a000001.addr.aether.", kind: dns.TypeAAAA, ns: soa},
		{name: "addr.aether.", kind: dns.TypeA, ns: soa},
		{name: "0a00.addr.aether.", kind: dns.TypeA, rcode: dns.RcodeNameError, ns: soa},
		{name: "aether.", kind: dns.TypeSOA, want: soa},
		{name: "aether.", kind: dns.TypeA, ns: soa},
		{name: "example.org.", kind: dns.TypeA, rcode: dns.RcodeRefused},
		{name: "notaether.", kind: dns.TypeA, rcode: dns.RcodeRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name+dns.TypeToString[tt.kind], func(t *testing.T) {
			m := ask(t, address, tt.name, tt.kind)
			if m.Rcode != tt.rcode || values(m.Answer, false) != tt.want || values(m.Ns, false) != tt.ns || values(m.Extra, true) != tt.extra {
				t.Errorf("got %v\nwant %s, %q, %q, %q", m, dns.RcodeToString[tt.rcode], tt.want, tt.ns, tt.extra)
			}
			for _, r := range m.Answer {
				if ttl := r.Header().Ttl; ttl == 0 || ttl > 5 {
					t.Errorf("ttl %d", ttl)
				}
			}
			if m.Rcode != dns.RcodeRefused && !m.Authoritative || m.IsEdns0() == nil || m.Question[0].Name != tt.name {
				t.Errorf("flags: %v", m)
			}
		})
	}
	if m := ask(t, address, "two.aether.", dns.TypeSRV); !strings.Contains(m.String(), "has the ports admin, http") {
		t.Errorf("ambiguous: %v", m)
	}
}

func TestAnswerFollowsTheView(t *testing.T) {
	k, address := start(t)
	k.put(at("api", "a/a1", "10.0.0.1"), at("api", "b/b1", "10.1.0.1"))
	for _, step := range []struct {
		put  registry.Endpoint
		want string
	}{
		{at("api", "a/a1", "10.0.0.1"), "10.0.0.1"},
		{at("api", "a/a1", "10.0.0.1", draining), "10.1.0.1"},
		{at("api", "a/a2", "10.0.0.2"), "10.0.0.2"},
	} {
		k.put(step.put)
		if got := values(ask(t, address, "api.aether.", dns.TypeA).Answer, false); got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}

func TestOrderWithinATierIsRandom(t *testing.T) {
	k, address := start(t)
	for n := range 8 {
		k.put(at("api", "a/a1", fmt.Sprintf("10.0.0.%d", n+1)))
	}
	k.put(at("api", "a/a2", "10.0.1.1"))
	first := map[string]bool{}
	for range 60 {
		got := strings.Fields(values(ask(t, address, "api.aether.", dns.TypeA).Answer, false))
		first[got[0]] = true
		if len(got) != 9 || got[8] != "10.0.1.1" {
			t.Fatalf("the farther is not last: %v", got)
		}
	}
	if len(first) < 2 {
		t.Errorf("always first: %v", first)
	}
}

func TestAgeOfAnswers(t *testing.T) {
	k, address := start(t)
	k.put(at("api", "a/a1", "10.0.0.1"))
	k.age.Store(int64(time.Minute))
	m := ask(t, address, "api.aether.", dns.TypeA)
	if m.Answer[0].Header().Ttl != staleTTL || !strings.Contains(m.String(), "no registrar has answered for 1m0s") {
		t.Errorf("stale: %v", m)
	}
	k.age.Store(-1)
	if m := ask(t, address, "api.aether.", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("nothing is known: %v", m)
	}
}

func TestAnswerThatDoesNotFit(t *testing.T) {
	k, address := start(t)
	for n := range 200 {
		k.put(at("api", "a/a1", fmt.Sprintf("10.0.0.%d", n+1)))
	}
	plain := new(dns.Msg).SetQuestion("api.aether.", dns.TypeA)
	m := exchange(t, address, "udp", plain)
	m.Compress = true
	if !m.Truncated || m.Len() > dns.MinMsgSize || len(m.Answer) < 20 || m.IsEdns0() != nil {
		t.Errorf("without EDNS0: truncated %v, %d bytes, %d answers", m.Truncated, m.Len(), len(m.Answer))
	}
	m = ask(t, address, "api.aether.", dns.TypeA)
	if !m.Truncated || len(m.Answer) < 60 {
		t.Errorf("with EDNS0: truncated %v, %d answers", m.Truncated, len(m.Answer))
	}
	if m = exchange(t, address, "tcp", plain); m.Truncated || len(m.Answer) != 200 {
		t.Errorf("over TCP: truncated %v, %d answers", m.Truncated, len(m.Answer))
	}
	if m = exchange(t, address, "tcp", new(dns.Msg).SetQuestion("api.aether.", dns.TypeSRV)); len(m.Answer) != 200 {
		t.Errorf("SRV over TCP: %d answers", len(m.Answer))
	}
}

func TestQuestionsThatAreNone(t *testing.T) {
	_, address := start(t)
	m := new(dns.Msg).SetQuestion("api.aether.", dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().SetVersion(1)
	if got := exchange(t, address, "udp", m); got.Rcode != dns.RcodeBadVers {
		t.Errorf("another version: %v", got)
	}
	m = new(dns.Msg).SetQuestion("api.aether.", dns.TypeA)
	m.Question[0].Qclass = dns.ClassCHAOS
	if got := exchange(t, address, "udp", m); got.Rcode != dns.RcodeRefused {
		t.Errorf("another class: %v", got)
	}
}

// FuzzRespond: whatever is asked is answered, in the size that there is.
func FuzzRespond(f *testing.F) {
	k := &known{View: view.New(view.Config{}), ix: view.Index{}}
	k.put(at("api", "a/a1", "10.0.0.1"))
	s := &Server{cfg: Config{Catalog: k, Client: func() locality.Client { return locality.Client{} }, Domain: DefaultDomain}}
	m, err := new(dns.Msg).SetQuestion("_http._tcp.api.aether.", dns.TypeSRV).Pack()
	fatal(f, err)
	f.Add(m)
	f.Fuzz(func(t *testing.T, wire []byte) {
		req := new(dns.Msg)
		if req.Unpack(wire) != nil || len(req.Question) != 1 {
			return
		}
		if _, err := s.answer(req).Pack(); err != nil {
			t.Errorf("pack: %v", err)
		}
	})
}
