package keyspace_test

import (
	"testing"

	"github.com/aether-federation/aether/registry/keyspace"
)

func TestProbesAreNoneOfAMirrorsKeys(t *testing.T) {
	probe := keyspace.ProbeKey("a", "x")
	if _, _, ok := keyspace.ParseMirror(probe); ok || !keyspace.IsProbe(probe) {
		t.Errorf("%s counts as a key of a mirror", probe)
	}
	for _, key := range []string{keyspace.OwnerKey("a"), keyspace.OwnerKey("probe"), keyspace.MirrorPrefix("a") + "x", keyspace.RegionPrefix("probe") + "probe/"} {
		if keyspace.IsProbe(key) {
			t.Errorf("%s counts as a probe", key)
		}
	}
}
