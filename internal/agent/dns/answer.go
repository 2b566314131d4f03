package dns

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/registry"
)

const (
	// ttl of what is known to be current: an endpoint that drains is asked for
	// this long at most. staleTTL of what is not, so that it is asked for again.
	ttl      = 5
	staleTTL = 1
	// negativeTTL is how long something that is not there stays so.
	negativeTTL = 1
)

// answer returns the answer to one question, but for what its transport asks.
func (s *Server) answer(req *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(req)
	m.Compress = true
	q := req.Question[0]
	n, inside := parseName(q.Name, s.cfg.Domain)
	if !inside || q.Qclass != dns.ClassINET {
		m.Rcode = dns.RcodeRefused
		return m
	}
	m.Authoritative = true
	age := s.cfg.Catalog.Age()
	switch {
	case age < 0:
		m.Authoritative, m.Rcode = false, dns.RcodeServerFailure
		explain(m, req, dns.ExtendedErrorCodeNotReady, "no registrar has answered yet")
		return m
	case age > s.cfg.StaleAfter:
		explain(m, req, dns.ExtendedErrorCodeStaleAnswer, fmt.Sprintf("no registrar has answered for %v", age.Round(time.Second)))
	}
	r := reply{Msg: m, req: req, q: q, name: n, domain: s.cfg.Domain, ttl: ttl}
	if age > s.cfg.StaleAfter {
		r.ttl = staleTTL
	}
	s.fill(&r)
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{r.soa()}
	}
	return m
}

// fill puts into r what there is.
func (s *Server) fill(r *reply) {
	if r.name.apex {
		if r.q.Qtype == dns.TypeSOA {
			r.Answer = []dns.RR{r.soa()}
		}
		return
	}
	endpoints := s.cfg.Catalog.Service(r.name.service)
	if len(endpoints) == 0 {
		s.fillNoService(r)
		return
	}
	chosen := s.choices.get(s.cfg.Client(), r.name, endpoints)
	switch {
	case r.name.port != "" && !slices.Contains(chosen.ports, r.name.port),
		r.name.protocol != "" && len(r.name.spoken(endpoints)) == 0:
		r.Rcode = dns.RcodeNameError
	case r.q.Qtype == dns.TypeSRV && (r.name.port != "" || r.name.protocol == ""):
		s.fillServers(r, chosen, endpoints)
	case r.name.protocol == "":
		r.addresses(chosen.tiers)
	}
}

// fillNoService answers for a name that is no service: of an address, of something
// that services are below, or of nothing.
func (s *Server) fillNoService(r *reply) {
	if ip, ok := namedAddress(r.name.service); ok && r.name.protocol == "" {
		r.Answer = r.address(r.Answer, r.q.Name, ip)
		return
	}
	below := r.name.service == addressLabel || s.cfg.Catalog.Under(r.name.service)
	if !below || r.name.protocol != "" {
		r.Rcode = dns.RcodeNameError
	}
}

// fillServers answers with SRV records. Of a service that has several ports one has
// to be named.
func (s *Server) fillServers(r *reply, chosen *choice, endpoints []*registry.Endpoint) {
	if r.name.port == "" {
		if len(chosen.ports) != 1 {
			explain(r.Msg, r.req, dns.ExtendedErrorCodeOther, fmt.Sprintf("%s has the ports %s: ask for _<port>._<protocol>.%s",
				r.name.service, strings.Join(chosen.ports, ", "), r.q.Name))
			return
		}
		named := r.name
		named.port = chosen.ports[0]
		chosen = s.choices.get(s.cfg.Client(), named, endpoints)
	}
	r.servers(chosen.tiers)
}

// explain tells a client that understands it why the answer is as it is.
func explain(m, req *dns.Msg, code uint16, text string) {
	if req.IsEdns0() == nil {
		return
	}
	o := optOf(m)
	o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: text})
}

// optOf returns m's OPT record, new if it has none.
func optOf(m *dns.Msg) *dns.OPT {
	if o := m.IsEdns0(); o != nil {
		return o
	}
	return m.SetEdns0(maxUDP, false).IsEdns0()
}

// reply is an answer that is being made.
type reply struct {
	*dns.Msg
	req    *dns.Msg
	q      dns.Question
	name   name
	domain string
	ttl    uint32
}

func (r *reply) header(owner string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: kind, Class: dns.ClassINET, Ttl: r.ttl}
}

// addresses answers with A or AAAA records. Which endpoints are near enough does
// not depend on which of the two is asked for: else one family would lead to
// another region.
func (r *reply) addresses(tiers [][]locality.Target) {
	for _, tier := range shuffled(tiers) {
		for _, t := range tier {
			r.Answer = r.address(r.Answer, r.q.Name, t.Addr.Addr())
		}
	}
}

// address adds the record of an address, if that is asked for. ANY gets it too, as
// RFC 8482 allows.
func (r *reply) address(to []dns.RR, owner string, ip netip.Addr) []dns.RR {
	switch kind := r.q.Qtype; {
	case ip.Is4() && (kind == dns.TypeA || kind == dns.TypeANY || kind == dns.TypeSRV):
		return append(to, &dns.A{Hdr: r.header(owner, dns.TypeA), A: ip.AsSlice()})
	case ip.Is6() && (kind == dns.TypeAAAA || kind == dns.TypeANY || kind == dns.TypeSRV):
		return append(to, &dns.AAAA{Hdr: r.header(owner, dns.TypeAAAA), AAAA: ip.AsSlice()})
	default:
		return to
	}
}

// servers answers with SRV records, a priority for each tier, and the addresses of
// their targets.
func (r *reply) servers(tiers [][]locality.Target) {
	told := map[netip.Addr]bool{}
	for priority, tier := range shuffled(tiers) {
		for _, t := range tier {
			ip := t.Addr.Addr()
			target := addressName(ip, r.domain)
			r.Answer = append(r.Answer, &dns.SRV{
				Hdr: r.header(r.q.Name, dns.TypeSRV), Priority: uint16(priority), Weight: uint16(min(t.Weight, math.MaxUint16)),
				Port: t.Addr.Port(), Target: target,
			})
			if !told[ip] {
				told[ip] = true
				r.Extra = r.address(r.Extra, target, ip)
			}
		}
	}
}

// soa returns the record that tells for how long a negative answer holds.
func (r *reply) soa() dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: r.domain, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: negativeTTL},
		Ns:  "ns." + r.domain, Mbox: "hostmaster." + r.domain, Serial: 1,
		Refresh: 60, Retry: 10, Expire: 600, Minttl: negativeTTL,
	}
}
