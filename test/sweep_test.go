package test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

// reportAt reports a node's endpoints of a service several times a second, until
// the test ends or the node crashes.
func reportAt(t *testing.T, p *registrar, node, service string, ips ...string) (crash func()) {
	t.Helper()
	client, err := remote.New(p.grpc)
	if err != nil {
		t.Fatal(err)
	}
	report := remote.Report{Node: node}
	for _, ip := range ips {
		report.Endpoints = append(report.Endpoints, registry.Endpoint{
			Key:   registry.Key{Service: service, Protocol: registry.HTTP, IP: netip.MustParseAddr(ip)},
			Ports: []registry.Port{{Name: "http", Number: 80}},
		})
	}
	crashed, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer client.Close()
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := client.Report(t.Context(), report); err != nil && registry.KindOf(err) != registry.Unavailable && t.Context().Err() == nil {
				t.Errorf("node %s reports: %v", node, err)
			}
			select {
			case <-tick.C:
			case <-crashed:
				return
			}
		}
	}()
	crash = sync.OnceFunc(func() {
		close(crashed)
		<-ended
	})
	t.Cleanup(crash)
	return crash
}

func served(cluster string, ips ...string) []string {
	out := make([]string, len(ips))
	for i, ip := range ips {
		out[i] = fmt.Sprintf("a/%s %s:80", cluster, ip)
	}
	return out
}

// A node that crashes loses its endpoints to the sweep of its cluster, and a node
// whose registrar crashes goes on at another and loses nothing. Cluster c10 is not
// swept by c1's registrars (cases 13 and 16).
func TestGhostsAreSwept(t *testing.T) {
	a := &region{name: "a", etcd: fleet(t, "a")[0].etcd}
	flags := []string{"--presence-ttl", "2s", "--sweep-grace", "3s"}
	first, second := a.registrar(t, "c1", flags...), a.registrar(t, "c1", flags...)
	ten := a.registrar(t, "c10", flags...)
	dead := reportAt(t, first, "n1", "api", "10.0.0.1")
	moving := reportAt(t, first, "n2", "api", "10.0.0.2")
	reportAt(t, second, "n3", "api", "10.0.0.3")
	reportAt(t, ten, "n1", "api.shop", "10.0.0.1")
	second.register("api", "10.0.0.9", 80) // no node: not swept
	second.awaitEndpoints("api", served("c1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9")...)

	first.kill()
	moving()
	reportAt(t, second, "n2", "api", "10.0.0.2")
	dead()
	second.awaitEndpoints("api", served("c1", "10.0.0.2", "10.0.0.3", "10.0.0.9")...)
	ten.awaitEndpoints("api.shop", served("c10", "10.0.0.1")...)
	if m := second.metrics(); !strings.Contains(m, "\naether_sweep_removed_endpoints_total 1\n") {
		t.Errorf("the sweep did not count one: %s", m)
	}
	eventually(t, "nothing is left to sweep", func() bool {
		return strings.HasPrefix(second.aether("sweep", "--dry-run"), "sweeping; 0 of 3 endpoints")
	})
	if r := aether(t, "sweep"); r.code != 2 {
		t.Errorf("sweep without --dry-run: exit code %d: %s", r.code, r.stderr)
	}
}

// A cluster whose registrars and nodes are gone is served as unhealthy by its
// region's other registrars, stays in etcd, and is healthy again when it is back.
func TestLostClusterIsUnhealthy(t *testing.T) {
	a := &region{name: "a", etcd: fleet(t, "a")[0].etcd}
	flags := []string{"--presence-ttl", "2s", "--sweep-grace", "2s"}
	lost, stays := a.registrar(t, "c1", flags...), a.registrar(t, "c10", flags...)
	lost.register("api", "10.0.0.1", 80)
	stays.register("api", "10.0.0.2", 80)
	healthy := func(of *registrar) int { return strings.Count(of.aether("endpoints", "api"), " healthy") }
	eventually(t, "both are healthy", func() bool { return healthy(stays) == 2 })
	lost.kill()
	eventually(t, "c1's is unhealthy", func() bool { return healthy(stays) == 1 })
	if got := stays.endpoints("api"); !slices.Equal(got, append(served("c1", "10.0.0.1"), served("c10", "10.0.0.2")...)) {
		t.Errorf("served are %v", got)
	}
	lost.start()
	eventually(t, "both are healthy again", func() bool { return healthy(stays) == 2 })
}

// A drained endpoint is served as draining at once, whatever its node reports.
func TestDrain(t *testing.T) {
	a := &region{name: "a", etcd: fleet(t, "a")[0].etcd}
	p := a.registrar(t, "c1")
	reportAt(t, p, "n1", "api", "10.0.0.1", "10.0.0.2")
	p.awaitEndpoints("api", served("c1", "10.0.0.1", "10.0.0.2")...)
	draining := func() int { return strings.Count(p.aether("endpoints", "api"), "draining") }
	p.aether("drain", "api", "10.0.0.1")
	eventually(t, "it drains", func() bool { return draining() == 1 })
	p.aether("drain", "api", "10.0.0.1", "--undo")
	eventually(t, "it serves again", func() bool { return draining() == 0 })
	if r := aether(t, "drain", "api", "10.0.0.7", "--registrar", p.grpc); r.code != 1 || !strings.Contains(r.stderr, "register it first") {
		t.Errorf("drain of nothing: exit code %d: %s", r.code, r.stderr)
	}
}
