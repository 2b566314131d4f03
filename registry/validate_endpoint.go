package registry

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
	"unicode/utf8"
)

// Validate returns an Invalid error unless e may be registered as it is: a valid
// key at which a unicast address can be reached, ports with names of their own,
// gateways of existing ports, and metadata within the limits. An endpoint may
// have no port; then only its address is known.
func (e Endpoint) Validate() error {
	if err := e.Key.Validate(); err != nil {
		return err
	}
	if err := validateTarget("ip", e.IP); err != nil {
		return err
	}
	if err := e.validateNames(); err != nil {
		return err
	}
	if e.Health > Draining {
		return Invalidf("health", "%d is unknown: use unspecified, healthy, unhealthy or draining", e.Health)
	}
	if err := validatePorts(e.Ports); err != nil {
		return err
	}
	if err := e.validateGateways(); err != nil {
		return err
	}
	return validateMetadata(e.Metadata)
}

func (e Endpoint) validateNames() error {
	if e.Zone != "" {
		if err := validateLabel("zone", e.Zone); err != nil {
			return err
		}
	}
	if e.Network != "" {
		if err := ValidateNetwork(e.Network); err != nil {
			return err
		}
	}
	return ValidateNode(e.Node)
}

// validateTarget refuses addresses that no client can connect to.
func validateTarget(field string, ip netip.Addr) error {
	if ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return Invalidf(field, "%s is no address of one host: give the unicast address that clients connect to", ip)
	}
	return nil
}

func validatePorts(ports []Port) error {
	if len(ports) > MaxPorts {
		return Invalidf("ports", "there are %d: use at most %d", len(ports), MaxPorts)
	}
	for i, p := range ports {
		if err := p.validate(); err != nil {
			return Within(fmt.Sprintf("ports[%d]", i), err)
		}
		if slices.ContainsFunc(ports[:i], func(o Port) bool { return o.Name == p.Name }) {
			return Invalidf(fmt.Sprintf("ports[%d].name", i), "%q is there twice: give each port a name of its own", p.Name)
		}
	}
	return nil
}

func (p Port) validate() error {
	if err := validateDNSLabel("name", p.Name); err != nil {
		return err
	}
	if p.Number == 0 {
		return Invalidf("number", "port %q has number 0: use 1 to 65535", p.Name)
	}
	return nil
}

func (e Endpoint) validateGateways() error {
	for _, name := range slices.Sorted(maps.Keys(e.Gateways)) {
		field := fmt.Sprintf("gateways[%q]", clip(name))
		if !slices.ContainsFunc(e.Ports, func(p Port) bool { return p.Name == name }) {
			return Invalidf(field, "there is no port of this name: name a gateway after the port that it leads to")
		}
		if err := validateGateway(field, e.Gateways[name]); err != nil {
			return err
		}
	}
	return nil
}

func validateGateway(field string, g netip.AddrPort) error {
	ip, err := NormalizeIP(g.Addr())
	if err != nil {
		return Within(field, err)
	}
	if ip != g.Addr() {
		return Invalidf(field+".ip", "%s is not canonical: use %s", g.Addr(), ip)
	}
	if g.Port() == 0 {
		return Invalidf(field+".port", "is 0: use 1 to 65535")
	}
	return validateTarget(field+".ip", ip)
}

func validateMetadata(m map[string]string) error {
	if len(m) > MaxMetadata {
		return Invalidf("metadata", "there are %d entries: use at most %d", len(m), MaxMetadata)
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if err := checkLength("metadata", k, MaxMetaKey); err != nil {
			return err
		}
		if !utf8.ValidString(k) || !utf8.ValidString(m[k]) {
			return Invalidf("metadata", "the entry %q is not valid UTF-8: encode binary data, for example as base64", clip(k))
		}
		size += len(k) + len(m[k])
	}
	if size > MaxMetaBytes {
		return Invalidf("metadata", "keys and values have %d bytes together: use at most %d", size, MaxMetaBytes)
	}
	return nil
}

// Within returns err with its field placed inside another, such as the "ip" of
// "endpoints[3]"; an error that names no field gets outer.
func Within(outer string, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	field := outer
	if e.Field != "" {
		field += "." + e.Field
	}
	return &Error{Kind: e.Kind, Field: field, Err: e.Err}
}

// Prepare returns what [Registry].Register writes for endpoints in the partition
// own: copies with region and cluster filled in and addresses normalized, each
// valid, no key twice. The error names the first that is not, by its index.
func Prepare(own Origin, endpoints []Endpoint) ([]Endpoint, error) {
	out := make([]Endpoint, len(endpoints))
	seen := make(map[Key]int, len(endpoints))
	for i, e := range endpoints {
		p, err := e.Prepare(own)
		if err != nil {
			return nil, Within(fmt.Sprintf("endpoints[%d]", i), err)
		}
		if first, twice := seen[p.Key]; twice {
			return nil, duplicate(i, first, p.Key)
		}
		seen[p.Key] = i
		out[i] = p
	}
	return out, nil
}

// ValidateTTL returns an Invalid error unless endpoints may be registered for ttl:
// whole seconds from [MinTTL] to [MaxTTL], and none of them names a node, whose
// presence keeps what it has.
func ValidateTTL(ttl time.Duration, endpoints []Endpoint) error {
	if ttl < MinTTL || ttl > MaxTTL || ttl%time.Second != 0 {
		return Invalidf("ttl", "is %v: use whole seconds, from %v to %v, or none", ttl, MinTTL, MaxTTL)
	}
	for i := range endpoints {
		if node := endpoints[i].Node; node != "" {
			return Invalidf(fmt.Sprintf("endpoints[%d].node", i), "is %q: a node's presence keeps its endpoints, so leave out the ttl, or the node", clip(node))
		}
	}
	return nil
}

// PrepareClaims does for [Registry].Unregister what [Prepare] does for Register.
func PrepareClaims(own Origin, claims []Claim) ([]Claim, error) {
	out := make([]Claim, len(claims))
	seen := make(map[Key]int, len(claims))
	for i, c := range claims {
		err := c.Key.adopt(own)
		if err == nil {
			err = ValidateNode(c.Node)
		}
		if err != nil {
			return nil, Within(fmt.Sprintf("endpoints[%d]", i), err)
		}
		if first, twice := seen[c.Key]; twice {
			return nil, duplicate(i, first, c.Key)
		}
		seen[c.Key] = i
		out[i] = c
	}
	return out, nil
}

// Prepare returns what is written for e in the partition own: see the function
// [Prepare]. The error's field is e's.
func (e Endpoint) Prepare(own Origin) (Endpoint, error) {
	e = e.Clone()
	e.Lapsed = false
	if err := e.Key.adopt(own); err != nil {
		return Endpoint{}, err
	}
	for name, g := range e.Gateways {
		e.Gateways[name] = netip.AddrPortFrom(g.Addr().Unmap(), g.Port())
	}
	return e, e.Validate()
}

// adopt fills k's origin from own, refuses another, and normalizes and validates
// the rest.
func (k *Key) adopt(own Origin) error {
	if k.Region == "" {
		k.Region = own.Region
	}
	if k.Cluster == "" {
		k.Cluster = own.Cluster
	}
	if k.Region != own.Region {
		return Invalidf("region", "%q is not the region %q that is written here: leave it empty, or register there", clip(k.Region), own.Region)
	}
	if k.Cluster != own.Cluster {
		return Invalidf("cluster", "%q is not the cluster %q that is written here: leave it empty, or register there", clip(k.Cluster), own.Cluster)
	}
	ip, err := NormalizeIP(k.IP)
	if err != nil {
		return err
	}
	k.IP = ip
	return k.Validate()
}

func duplicate(i, first int, k Key) error {
	return Invalidf(fmt.Sprintf("endpoints[%d]", i), "%s %s %s is there already as endpoints[%d]: name each endpoint once",
		k.Service, k.Protocol, k.IP, first)
}
