package dns

import (
	"encoding/hex"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/aether-federation/aether/registry"
)

// DefaultDomain is the zone that is answered for.
const DefaultDomain = "aether."

// addressLabel is below which the names of addresses are: the targets of SRV
// records, such as 0a000001.addr.aether.
const addressLabel = "addr"

// name is what a query is about.
type name struct {
	// apex: the zone itself.
	apex    bool
	service string
	// port and protocol, without their underscores, if both were named; protocol
	// alone if only that was.
	port, protocol string
}

// parseName reads a name of the zone, in lower case. ok is false for one outside.
func parseName(qname, domain string) (n name, ok bool) {
	qname = strings.ToLower(dns.Fqdn(qname))
	if qname == domain {
		return name{apex: true}, true
	}
	rest, ok := strings.CutSuffix(qname, "."+domain)
	if !ok {
		return name{}, false
	}
	first, after, _ := strings.Cut(rest, ".")
	if !strings.HasPrefix(first, "_") {
		return name{service: rest}, true
	}
	second, service, _ := strings.Cut(after, ".")
	if !strings.HasPrefix(second, "_") {
		return name{protocol: first[1:], service: after}, true
	}
	return name{port: first[1:], protocol: second[1:], service: service}, true
}

// speaks reports whether endpoints of protocol p are asked for.
func (n name) speaks(p registry.Protocol) bool {
	return n.protocol == "" || n.protocol == string(p) || n.protocol == string(registry.TCP) && p != registry.UDP
}

// addressName returns the name that stands for an address.
func addressName(ip netip.Addr, domain string) string {
	return hex.EncodeToString(ip.AsSlice()) + "." + addressLabel + "." + domain
}

// namedAddress returns the address that a name below the zone stands for.
func namedAddress(below string) (netip.Addr, bool) {
	digits, ok := strings.CutSuffix(below, "."+addressLabel)
	if !ok {
		return netip.Addr{}, false
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return netip.Addr{}, false
	}
	ip, ok := netip.AddrFromSlice(b)
	return ip, ok && !ip.Is4In6()
}
