package catalog

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// BenchmarkLoad serves 100,000 endpoints from disk.
func BenchmarkLoad(b *testing.B) {
	step := remote.Step{Revision: "x-1-7"}
	for n := range 100000 {
		e := at(fmt.Sprintf("service-%04d.default", n/50), 1)
		e.IP = netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		e.Node, e.Zone = fmt.Sprintf("node-%d", n/20), "a1"
		step.Changes = append(step.Changes, remote.Change{Kind: registry.Put, Endpoint: &e})
	}
	file := filepath.Join(b.TempDir(), "view")
	first, err := New(Config{Registrar: &remote.Registry{}, File: file})
	fatal(b, err)
	fatal(b, first.tell(step))
	first.prove(time.Now())
	fatal(b, first.save())
	b.ReportAllocs()
	for b.Loop() {
		c, err := New(Config{Registrar: &remote.Registry{}, File: file})
		fatal(b, err)
		if c.load(); c.size() != 100000 {
			b.Fatalf("%d endpoints", c.size())
		}
	}
}
