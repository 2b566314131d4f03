package registry

import (
	"net/netip"
	"strings"
	"time"
)

// Limits of what an endpoint may carry. They keep a batch of [MaxBatch]
// endpoints far from the size at which etcd refuses a transaction.
const (
	MaxLabel     = 63  // region, cluster, zone, network, instance, port name
	MaxService   = 253 // a DNS name
	MaxNode      = 253 // a host name
	MaxPorts     = 64
	MaxMetadata  = 64       // entries
	MaxMetaKey   = 253      // bytes of one key
	MaxMetaBytes = 16 << 10 // bytes of all keys and values together
)

// MinTTL and MaxTTL limit for how long an endpoint may be registered without being
// registered again. A shorter one would not outlast a change of etcd's leader.
const (
	MinTTL = 5 * time.Second
	MaxTTL = 24 * time.Hour
)

// ValidateRegion returns an Invalid error unless s can name a region.
func ValidateRegion(s string) error { return validateLabel("region", s) }

// ValidateCluster returns an Invalid error unless s can name a cluster.
func ValidateCluster(s string) error { return validateLabel("cluster", s) }

// ValidateZone returns an Invalid error unless s can name a zone.
func ValidateZone(s string) error { return validateLabel("zone", s) }

// ValidateNetwork returns an Invalid error unless s can name an address space.
func ValidateNetwork(s string) error { return validateLabel("network", s) }

// Validate returns an Invalid error unless o names a region and a cluster.
func (o Origin) Validate() error {
	if err := ValidateRegion(o.Region); err != nil {
		return err
	}
	return ValidateCluster(o.Cluster)
}

// ValidateService returns an Invalid error unless s can name a service.
func ValidateService(s string) error {
	if err := checkLength("service", s, MaxService); err != nil {
		return err
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isDNSLabel(label) {
			return Invalidf("service", "%q is not a DNS name: use lower-case letters, digits and '-' in parts joined by '.', each beginning and ending with a letter or digit, such as \"api.shop\"", s)
		}
	}
	return nil
}

// ValidateProtocol returns an Invalid error unless p is one of [Protocols].
func ValidateProtocol(p Protocol) error {
	switch p {
	case GRPC, HTTP, TCP, UDP:
		return nil
	case "":
		return Invalidf("protocol", "is empty: use http, grpc, tcp or udp")
	default:
		return Invalidf("protocol", "%q is unknown: use http, grpc, tcp or udp", clip(string(p)))
	}
}

// ValidateInstance returns an Invalid error unless s is empty or can name one of
// several instances at one address.
func ValidateInstance(s string) error {
	if s == "" {
		return nil
	}
	return validateDNSLabel("instance", s)
}

// ValidateNode returns an Invalid error unless s is empty or can name a node.
func ValidateNode(s string) error {
	if s == "" {
		return nil
	}
	return validateName("node", s, MaxNode)
}

// NormalizeIP returns the one form in which an address is a key: an IPv4 address
// mapped into IPv6 becomes IPv4. The zero Addr and an address with a zone are
// Invalid.
func NormalizeIP(ip netip.Addr) (netip.Addr, error) {
	if !ip.IsValid() {
		return netip.Addr{}, Invalidf("ip", "is empty: give an IPv4 or IPv6 address")
	}
	if ip.Zone() != "" {
		return netip.Addr{}, Invalidf("ip", "%s has a zone, which means something on one host only: give an address without '%%'", clip(ip.String()))
	}
	return ip.Unmap(), nil
}

// ParseIP reads an address in any usual form and normalizes it.
func ParseIP(s string) (netip.Addr, error) {
	if s == "" {
		return NormalizeIP(netip.Addr{})
	}
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, Invalidf("ip", "%q is not an IP address: give one such as 10.0.0.1 or fd00::1, without a port", clip(s))
	}
	return NormalizeIP(ip)
}

// Validate returns an Invalid error unless each part of k keeps its rules and
// k.IP is normalized.
func (k Key) Validate() error {
	if err := k.Origin.Validate(); err != nil {
		return err
	}
	if err := ValidateService(k.Service); err != nil {
		return err
	}
	if err := ValidateProtocol(k.Protocol); err != nil {
		return err
	}
	ip, err := NormalizeIP(k.IP)
	if err != nil {
		return err
	}
	if ip != k.IP {
		return Invalidf("ip", "%s is not canonical: use %s", k.IP, ip)
	}
	return ValidateInstance(k.Instance)
}

func validateLabel(field, s string) error { return validateName(field, s, MaxLabel) }

// validateName checks the syntax of a Kubernetes label value.
func validateName(field, s string, limit int) error {
	if err := checkLength(field, s, limit); err != nil {
		return err
	}
	if !isLabelValue(s) {
		return Invalidf(field, "%q is not a name: use letters, digits, '-', '_' and '.', beginning and ending with a letter or digit", s)
	}
	return nil
}

func validateDNSLabel(field, s string) error {
	if err := checkLength(field, s, MaxLabel); err != nil {
		return err
	}
	if !isDNSLabel(s) {
		return Invalidf(field, "%q is not a DNS label: use lower-case letters, digits and '-', beginning and ending with a letter or digit", s)
	}
	return nil
}

func checkLength(field, s string, limit int) error {
	switch {
	case s == "":
		return Invalidf(field, "is empty: give 1 to %d characters", limit)
	case len(s) > limit:
		return Invalidf(field, "%q has %d bytes: use at most %d characters", clip(s), len(s), limit)
	}
	return nil
}

func isLabelValue(s string) bool {
	return alnum(s[0]) && alnum(s[len(s)-1]) && all(s, func(c byte) bool {
		return alnum(c) || c == '-' || c == '_' || c == '.'
	})
}

func isDNSLabel(s string) bool {
	return s != "" && len(s) <= MaxLabel && lowerAlnum(s[0]) && lowerAlnum(s[len(s)-1]) &&
		all(s, func(c byte) bool { return lowerAlnum(c) || c == '-' })
}

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func alnum(c byte) bool { return lowerAlnum(c) || 'A' <= c && c <= 'Z' }

func lowerAlnum(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// clip keeps what an error quotes short.
func clip(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
