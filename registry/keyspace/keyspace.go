// Package keyspace is the layout of Aether's keys in etcd, as pure functions.
//
// The region comes first, so that what a region owns is one contiguous range,
// and the cluster second, so that one cluster is one range too:
//
//	/aether/v1/regions/<region>/clusters/<cluster>/services/<service>/protocols/<protocol>/endpoints/<ip>[@<instance>]
//
// Every prefix that is used as a range ends in "/", because c1 must not match
// c10. The functions that build keys and prefixes expect names that passed the
// validation of package registry; given anything else, the result parses as
// nothing.
package keyspace

import (
	"strings"

	"github.com/aether-federation/aether/registry"
)

// The parts of the tree. Each ends in "/".
const (
	// Root holds everything of this version of the layout.
	Root = "/aether/v1/"
	// RegionsPrefix holds the endpoints of all regions.
	RegionsPrefix = Root + "regions/"
	// MirrorsPrefix holds, for each origin that is mirrored to this etcd, its
	// owner, state and live keys.
	MirrorsPrefix = Root + "mirrors/"
	// ElectionsPrefix holds the elections of a region's registrars.
	ElectionsPrefix = Root + "elections/"
	// PresenceRoot holds the presence of nodes.
	PresenceRoot = Root + "presence/"
)

// StoreKey holds the random ID of an etcd.
const StoreKey = Root + "store"

// RegionPrefix returns the range of everything that region owns.
func RegionPrefix(region string) string { return RegionsPrefix + region + "/" }

// ClusterPrefix returns the range of one cluster's endpoints.
func ClusterPrefix(o registry.Origin) string {
	return RegionPrefix(o.Region) + "clusters/" + o.Cluster + "/"
}

// ServicePrefix returns the range of one service's endpoints in one cluster.
func ServicePrefix(o registry.Origin, service string) string {
	return ClusterPrefix(o) + "services/" + service + "/"
}

// Format returns the key under which a valid k is stored.
func Format(k registry.Key) string {
	var most [256]byte // enough for nearly all
	b := append(most[:0], RegionsPrefix...)
	for _, part := range [...]string{
		k.Region, "/clusters/", k.Cluster, "/services/", k.Service, "/protocols/", string(k.Protocol), "/endpoints/",
	} {
		b = append(b, part...)
	}
	b = k.IP.AppendTo(b)
	if k.Instance != "" {
		b = append(append(b, '@'), k.Instance...)
	}
	return string(b)
}

// Parse reads a key that Format wrote. It accepts nothing else: for every s
// without an error, Format(Parse(s)) is s. The error says which part is wrong.
func Parse(s string) (registry.Key, error) {
	rest, ok := strings.CutPrefix(s, RegionsPrefix)
	if !ok {
		return registry.Key{}, registry.Invalidf("key", "does not begin with %s", RegionsPrefix)
	}
	parts, ok := split(rest)
	if !ok || parts[1] != "clusters" || parts[3] != "services" || parts[5] != "protocols" || parts[7] != "endpoints" {
		return registry.Key{}, registry.Invalidf("key", "is not of the form %s<region>/clusters/<cluster>/services/<service>/protocols/<protocol>/endpoints/<ip>[@<instance>]", RegionsPrefix)
	}
	k := registry.Key{
		Origin:   registry.Origin{Region: parts[0], Cluster: parts[2]},
		Service:  parts[4],
		Protocol: registry.Protocol(parts[6]),
	}
	if err := parseAddress(&k, parts[8]); err != nil {
		return registry.Key{}, err
	}
	if err := k.Validate(); err != nil {
		return registry.Key{}, err
	}
	return k, nil
}

// split cuts s into the nine parts of a key.
func split(s string) (parts [9]string, ok bool) {
	for i := range len(parts) - 1 {
		if parts[i], s, ok = strings.Cut(s, "/"); !ok {
			return parts, false
		}
	}
	parts[len(parts)-1] = s
	return parts, !strings.Contains(s, "/")
}

// parseAddress reads <ip>[@<instance>].
func parseAddress(k *registry.Key, s string) error {
	addr, instance, has := strings.Cut(s, "@")
	if has && instance == "" {
		return registry.Invalidf("instance", "is empty after '@': leave out the '@'")
	}
	ip, err := registry.ParseIP(addr)
	if err != nil {
		return err
	}
	var canonical [64]byte
	if string(ip.AppendTo(canonical[:0])) != addr {
		return registry.Invalidf("ip", "%q is not canonical: use %s", addr, ip)
	}
	k.IP, k.Instance = ip, instance
	return nil
}
