package keyspace

import (
	"strings"

	"github.com/aether-federation/aether/registry"
)

// Leaf is one of the keys that an origin keeps beside its mirror on a peer.
type Leaf string

// The leaves below MirrorPrefix.
const (
	// Owner is the fence.
	Owner Leaf = "owner"
	// State tells how far the mirror is.
	State Leaf = "state"
	// Live exists, on a lease of its own, while the origin lives.
	Live Leaf = "live"
)

// MirrorPrefix returns the range of one origin's owner, state and live keys.
func MirrorPrefix(origin string) string { return MirrorsPrefix + origin + "/" }

// OwnerKey returns the key of origin's fence.
func OwnerKey(origin string) string { return MirrorPrefix(origin) + string(Owner) }

// StateKey returns the key of the state of origin's mirror.
func StateKey(origin string) string { return MirrorPrefix(origin) + string(State) }

// LiveKey returns the key that exists while origin lives.
func LiveKey(origin string) string { return MirrorPrefix(origin) + string(Live) }

// ParseMirror reads a key that OwnerKey, StateKey or LiveKey wrote, and nothing
// else.
func ParseMirror(key string) (origin string, leaf Leaf, ok bool) {
	rest, ok := strings.CutPrefix(key, MirrorsPrefix)
	if !ok {
		return "", "", false
	}
	origin, name, _ := strings.Cut(rest, "/")
	leaf = Leaf(name)
	if leaf != Owner && leaf != State && leaf != Live || registry.ValidateRegion(origin) != nil {
		return "", "", false
	}
	return origin, leaf, true
}

// MirrorElectionPrefix returns the range of the candidates for mirroring region
// to peer. The name of the election is the same without the last "/", which the
// election of etcd's client adds by itself.
func MirrorElectionPrefix(region, peer string) string {
	return ElectionsPrefix + region + "/mirror/" + peer + "/"
}

// SweepElectionPrefix returns the range of the candidates for sweeping a
// cluster; see [MirrorElectionPrefix].
func SweepElectionPrefix(region, cluster string) string {
	return ElectionsPrefix + region + "/sweep/" + cluster + "/"
}

// PresencePrefix returns the range of the presence of one cluster's nodes.
func PresencePrefix(o registry.Origin) string {
	return PresenceRoot + o.Region + "/" + o.Cluster + "/"
}

// PresenceKey returns the key that exists while node is present.
func PresenceKey(o registry.Origin, node string) string { return PresencePrefix(o) + node }

// ParsePresence reads a key that PresenceKey wrote, and nothing else.
func ParsePresence(key string) (o registry.Origin, node string, ok bool) {
	rest, ok := strings.CutPrefix(key, PresenceRoot)
	if !ok {
		return registry.Origin{}, "", false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 || parts[2] == "" {
		return registry.Origin{}, "", false
	}
	o = registry.Origin{Region: parts[0], Cluster: parts[1]}
	if o.Validate() != nil || registry.ValidateNode(parts[2]) != nil {
		return registry.Origin{}, "", false
	}
	return o, parts[2], true
}

// registrarMark begins the name of a registrar among those of nodes, none of
// which begins with it.
const registrarMark = "@"

// RegistrarPresenceKey returns the key that exists while the registrar of that
// name is present. The name keeps the rules of a node's.
func RegistrarPresenceKey(o registry.Origin, name string) string {
	return PresencePrefix(o) + registrarMark + name
}

// ParseRegistrarPresence reads a key that RegistrarPresenceKey wrote, and nothing
// else.
func ParseRegistrarPresence(key string) (o registry.Origin, name string, ok bool) {
	i := strings.LastIndex(key, "/")
	name, ok = strings.CutPrefix(key[i+1:], registrarMark)
	if !ok {
		return registry.Origin{}, "", false
	}
	return ParsePresence(key[:i+1] + name)
}

// RangeEnd returns the end, itself excluded, of the range of all keys that begin
// with prefix. The prefix must end in "/".
func RangeEnd(prefix string) string { return strings.TrimSuffix(prefix, "/") + "0" }

// AcceptKey is, in the origin's own etcd, where an operator accepts that the held
// mirror of region at peer is rebuilt.
func AcceptKey(region, peer string) string { return Root + "accept/" + region + "/" + peer }

// ProbeKey is where an origin tries what it may write on a peer. Whoever reads a
// mirror's keys passes over it.
func ProbeKey(origin, id string) string { return MirrorPrefix(origin) + probes + id }

// probes holds an origin's probes.
const probes = "probe/"

// IsProbe reports whether key is one that ProbeKey wrote.
func IsProbe(key string) bool {
	rest, ok := strings.CutPrefix(key, MirrorsPrefix)
	_, rest, _ = strings.Cut(rest, "/")
	return ok && strings.HasPrefix(rest, probes)
}
