package keyspace_test

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

var c1 = registry.Origin{Region: "a", Cluster: "c1"}

const example = "/aether/v1/regions/a/clusters/c1/services/api.shop/protocols/http/endpoints/"

func TestFormat(t *testing.T) {
	k := registry.Key{Origin: c1, Service: "api.shop", Protocol: registry.HTTP, IP: netip.MustParseAddr("10.0.0.1")}
	if got := keyspace.Format(k); got != example+"10.0.0.1" {
		t.Error(got)
	}
	k.IP, k.Instance = netip.MustParseAddr("fd00::1"), "web-0"
	if got := keyspace.Format(k); got != example+"fd00::1@web-0" {
		t.Error(got)
	}
}

func TestParseIsStrict(t *testing.T) {
	ip := example + "10.0.0.1"
	for _, s := range []string{
		"", "/", keyspace.RegionsPrefix, example, ip[1:], ip + "/", "/" + ip, ip + "@", ip + "@A", ip + "@a@b", ip + "\n", ip + "\x00",
		example + "010.0.0.1", example + "::ffff:10.0.0.1", example + "FD00::1", example + "fd00:0::1", example + "fe80::1%eth0", example + "@a",
		strings.Replace(ip, "v1", "v2", 1), strings.Replace(ip, "regions/a", "regions/", 1), strings.Replace(ip, "c1", "c 1", 1),
		strings.Replace(ip, "clusters", "cluster", 1), strings.Replace(ip, "api.shop", "API", 1), strings.Replace(ip, "http", "https", 1),
		strings.Replace(ip, "protocols/http/", "", 1), strings.Replace(ip, "services/", "services//", 1),
		"/aether/services/api.shop/10.0.0.1",
	} {
		if k, err := keyspace.Parse(s); registry.KindOf(err) != registry.Invalid || k != (registry.Key{}) {
			t.Errorf("Parse(%q) = %v, %v, want Invalid", s, k, err)
		}
	}
}

func label(pattern string) *rapid.Generator[string] { return rapid.StringMatching(pattern) }

// keys draws valid keys.
func keys() *rapid.Generator[registry.Key] {
	name := label(`[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`)
	dns := label(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`)
	return rapid.Custom(func(t *rapid.T) registry.Key {
		raw := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip")
		if rapid.Bool().Draw(t, "v4") {
			raw = raw[:4]
		}
		ip, _ := netip.AddrFromSlice(raw)
		k := registry.Key{
			Origin:   registry.Origin{Region: name.Draw(t, "region"), Cluster: name.Draw(t, "cluster")},
			Service:  strings.Join(rapid.SliceOfN(dns, 1, 3).Draw(t, "service"), "."),
			Protocol: rapid.SampledFrom(registry.Protocols()).Draw(t, "protocol"),
			IP:       ip.Unmap(),
		}
		if rapid.Bool().Draw(t, "several") {
			k.Instance = dns.Draw(t, "instance")
		}
		return k
	})
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keys().Draw(t, "key")
		s := keyspace.Format(k)
		got, err := keyspace.Parse(s)
		if err != nil || got != k {
			t.Fatalf("Parse(%q) = %v, %v, want %v", s, got, err, k)
		}
		for _, prefix := range []string{keyspace.RegionPrefix(k.Region), keyspace.ClusterPrefix(k.Origin), keyspace.ServicePrefix(k.Origin, k.Service)} {
			if !strings.HasPrefix(s, prefix) || s < prefix || s >= keyspace.RangeEnd(prefix) {
				t.Fatalf("%q is not in the range of %q", s, prefix)
			}
		}
	})
}

// One key's ranges hold another key only if the names are equal, not when one
// name begins with the other.
func TestRangesAreApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keys().Draw(t, "key")
		if len(k.Region) > 62 || len(k.Cluster) > 62 || len(k.Service) > 250 {
			return
		}
		for _, o := range []registry.Key{
			{Origin: registry.Origin{Region: k.Region + "0", Cluster: k.Cluster}, Service: k.Service},
			{Origin: registry.Origin{Region: k.Region, Cluster: k.Cluster + "0"}, Service: k.Service},
			{Origin: k.Origin, Service: k.Service + ".b"},
		} {
			o.Protocol, o.IP = k.Protocol, k.IP
			if prefix := keyspace.ServicePrefix(k.Origin, k.Service); strings.HasPrefix(keyspace.Format(o), prefix) {
				t.Fatalf("%q is in the range of %q", keyspace.Format(o), prefix)
			}
		}
	})
}

func TestPrefixesEndInSlash(t *testing.T) {
	for _, prefix := range []string{
		keyspace.Root, keyspace.RegionsPrefix, keyspace.MirrorsPrefix, keyspace.ElectionsPrefix, keyspace.PresenceRoot,
		keyspace.RegionPrefix("a"), keyspace.ClusterPrefix(c1), keyspace.ServicePrefix(c1, "api"), keyspace.MirrorPrefix("a"),
		keyspace.MirrorElectionPrefix("a", "b"), keyspace.SweepElectionPrefix("a", "c1"), keyspace.PresencePrefix(c1),
	} {
		if !strings.HasPrefix(prefix, "/aether/v1/") || !strings.HasSuffix(prefix, "/") {
			t.Errorf("%q", prefix)
		}
	}
}

func TestParseMirror(t *testing.T) {
	for leaf, key := range map[keyspace.Leaf]string{
		keyspace.Owner: keyspace.OwnerKey("a"), keyspace.State: keyspace.StateKey("a"), keyspace.Live: keyspace.LiveKey("a"),
	} {
		if origin, got, ok := keyspace.ParseMirror(key); origin != "a" || got != leaf || !ok {
			t.Errorf("ParseMirror(%q) = %q, %q, %v", key, origin, got, ok)
		}
	}
	for _, key := range []string{"", "/aether/v1/mirrors/", "/aether/v1/mirrors/a", "/aether/v1/mirrors/a/", "/aether/v1/mirrors//live", "/aether/v1/mirrors/a/live/", "/aether/v1/mirrors/a/other", "/aether/v1/regions/a/live"} {
		if _, _, ok := keyspace.ParseMirror(key); ok {
			t.Errorf("ParseMirror(%q) is ok", key)
		}
	}
}

func TestParsePresence(t *testing.T) {
	if o, node, ok := keyspace.ParsePresence(keyspace.PresenceKey(c1, "n1")); o != c1 || node != "n1" || !ok {
		t.Error(o, node, ok)
	}
	for _, key := range []string{"", "/aether/v1/presence/a/c1", "/aether/v1/presence/a/c1/", "/aether/v1/presence/a/c1/n1/", "/aether/v1/presence//c1/n1"} {
		if _, _, ok := keyspace.ParsePresence(key); ok {
			t.Errorf("ParsePresence(%q) is ok", key)
		}
	}
}

// A registrar's presence lies among its nodes', and is none of theirs.
func TestParseRegistrarPresence(t *testing.T) {
	key := keyspace.RegistrarPresenceKey(c1, "r1")
	if o, name, ok := keyspace.ParseRegistrarPresence(key); o != c1 || name != "r1" || !ok || key != "/aether/v1/presence/a/c1/@r1" {
		t.Error(key, o, name, ok)
	}
	if _, _, ok := keyspace.ParsePresence(key); ok {
		t.Errorf("ParsePresence(%q) is ok", key)
	}
	for _, key := range []string{"", "@r1", keyspace.PresenceKey(c1, "n1"), "/aether/v1/presence/a/c1/@", "/aether/v1/presence/a/c1/@@r1", "/aether/v1/presence/a/@r1"} {
		if _, _, ok := keyspace.ParseRegistrarPresence(key); ok {
			t.Errorf("ParseRegistrarPresence(%q) is ok", key)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{example + "10.0.0.1", example + "fd00::1@web-0", example + "::ffff:10.0.0.1", example + "10.0.0.1@", keyspace.RegionsPrefix} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := keyspace.Parse(s)
		if err != nil {
			return
		}
		if err := k.Validate(); err != nil {
			t.Fatalf("Parse(%q) is not valid: %v", s, err)
		}
		if got := keyspace.Format(k); got != s {
			t.Fatalf("Parse(%q) formats as %q", s, got)
		}
	})
}
