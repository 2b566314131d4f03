//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/netnstest"
	"github.com/aether-federation/aether/test/clients/clientstest"
)

const (
	etcdMembers = 3
	registrars  = 2
	firstPort   = 9001 // of backends
)

// region is one host with all that a region has.
type region struct {
	t    *testing.T
	name string
	host *netnstest.Host
	etcd *etcdtest.Cluster
	// registrars share the cluster.
	registrars []*process
	agent      *process
	backends   []*clientstest.Backend
	// services are those that each backend serves.
	services []string
	// sources is the directory that the agent reads.
	sources string
	http    *http.Client
}

// newRegion starts the etcd of a region on a host of its own.
func newRegion(t *testing.T, n *netnstest.Network, name string, services ...string) *region {
	t.Helper()
	r := &region{t: t, name: name, host: n.Host(), services: services, sources: t.TempDir()}
	transport := &http.Transport{DialContext: r.host.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	r.http = &http.Client{Transport: transport, Timeout: patience}
	r.etcd = etcdtest.StartClusterOn(t, r.host, etcdMembers)
	return r
}

// equip makes registrars and agent, which are not started, for a region with peers.
func (r *region) equip(all []*region, flags ...string) {
	r.t.Helper()
	var names []string
	for _, o := range all {
		names = append(names, o.name)
	}
	for i := range registrars {
		args := []string{
			"registrar", "--region", r.name, "--cluster-name", r.name + "1", "--grpc-address", r.grpcAddress(i), "--http-address", r.httpAddress(i),
			"--etcd-endpoints", strings.Join(r.etcd.Endpoints(), ","), "--region-order", strings.Join(names, ","),
		}
		for _, o := range all {
			if o != r {
				args = append(args, "--peer-etcd", o.name+"="+strings.Join(o.etcd.Endpoints(), ","))
			}
		}
		r.registrars = append(r.registrars, newProcess(r.t, r.host, append(args, flags...)...))
	}
	state := r.t.TempDir()
	r.agent = newProcess(r.t, r.host, "agent", "--node", r.name+"-n1", "--registrar", r.addresses(), "--ip", r.host.IP(), "--zone", r.name+"-z1",
		"--sources", r.sources, "--state-dir", state, "--drain-grace", "1s")
}

// start starts everything but the etcd, and the first backends.
func (r *region) start() {
	r.t.Helper()
	for i, p := range r.registrars {
		p.start()
		r.awaitReady(i)
	}
	if len(r.backends) == 0 {
		r.addBackend()
		r.addBackend()
	} else {
		for _, b := range r.backends {
			b.Start()
		}
	}
	r.agent.start()
}

// kill ends all that runs in the region as a power failure does.
func (r *region) kill() {
	for _, b := range r.backends {
		b.Kill()
	}
	r.etcd.Kill()
	for _, p := range append(slices.Clone(r.registrars), r.agent) {
		p.kill()
	}
}

// revive starts what kill ended.
func (r *region) revive() {
	r.t.Helper()
	r.etcd.Restart()
	r.start()
}

// addBackend starts another backend and declares it to the agent.
func (r *region) addBackend() {
	r.t.Helper()
	n := len(r.backends)
	b := programs.Backend(r.t, r.host.Command, fmt.Sprintf("%s%d", r.name, n+1), fmt.Sprintf("%s:%d", r.host.IP(), firstPort+n))
	r.backends = append(r.backends, b)
	r.declare()
}

// declare writes the services of the region's host for its agent.
func (r *region) declare() {
	r.t.Helper()
	type check struct {
		Type     string `json:"type"`
		Interval string `json:"interval"`
	}
	type service struct {
		Name     string         `json:"name"`
		Protocol string         `json:"protocol"`
		Instance string         `json:"instance"`
		Ports    map[string]int `json:"ports"`
		Check    check          `json:"check"`
	}
	var all []service
	for i, b := range r.backends {
		for _, name := range r.services {
			all = append(all, service{name, "grpc", b.ID, map[string]int{"grpc": firstPort + i}, check{"grpc", "1s"}})
		}
	}
	text, err := json.Marshal(map[string]any{"services": all}) // JSON is YAML
	if err != nil {
		r.t.Fatal(err)
	}
	part := filepath.Join(r.t.TempDir(), "services.yaml")
	if err := os.WriteFile(part, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(part, filepath.Join(r.sources, "services.yaml")); err != nil {
		r.t.Fatal(err)
	}
}

// drain drains backends in all of their services, or ends that with --undo.
func (r *region) drain(flags []string, some ...*clientstest.Backend) {
	r.t.Helper()
	for _, b := range some {
		for _, service := range r.services {
			r.aether(append([]string{"drain", service, r.host.IP(), "--protocol", "grpc", "--instance", b.ID}, flags...)...)
		}
	}
}

func (r *region) grpcAddress(i int) string { return fmt.Sprintf("127.0.0.1:%d", 8443+100*i) }
func (r *region) httpAddress(i int) string { return fmt.Sprintf("127.0.0.1:%d", 8080+100*i) }

// addresses are those of all registrars.
func (r *region) addresses() string {
	var all []string
	for i := range registrars {
		all = append(all, r.grpcAddress(i))
	}
	return strings.Join(all, ",")
}

// aether runs a client command against the first registrar.
func (r *region) aether(args ...string) {
	r.t.Helper()
	r.command(append(args, "--registrar", r.grpcAddress(0))...)
}

// command runs an aether command on the region's host.
func (r *region) command(args ...string) {
	r.t.Helper()
	if out, err := r.host.Command(binary, args...).CombinedOutput(); err != nil {
		r.t.Fatalf("aether %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// settled checks that mirrors equal their origin, and that no client refused
// anything.
func (r *region) settled(all []*region) {
	r.t.Helper()
	for _, o := range all {
		if o != r {
			r.command("mirror", "verify", "--region", r.name, "--etcd-endpoints", strings.Join(r.etcd.Endpoints(), ","),
				"--peer-etcd", o.name+"="+strings.Join(o.etcd.Endpoints(), ","))
		}
	}
	for i := range registrars {
		r.command("xds", "status", "--registrar", r.grpcAddress(i))
	}
}

func (r *region) awaitReady(i int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("registrar %d of region %s is ready", i, r.name), func() bool {
		resp, err := r.http.Get("http://" + r.httpAddress(i) + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close() // the status is all
		return resp.StatusCode == http.StatusOK
	})
}

// get asks a registrar; false if it does not answer with JSON.
func (r *region) get(i int, path string, into any) bool {
	resp, err := r.http.Get("http://" + r.httpAddress(i) + path)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(into) == nil
}

// healthy is how many endpoints a registrar serves as healthy, of a service of one
// region.
func (r *region) healthy(i int, service, origin string) int {
	var answer struct {
		Endpoints []struct{ Region, Health string }
	}
	if !r.get(i, "/v1/services/"+service+"/endpoints", &answer) {
		return 0
	}
	n := 0
	for _, e := range answer.Endpoints {
		if e.Region == origin && e.Health == "HEALTH_HEALTHY" {
			n++
		}
	}
	return n
}

// standing is what a registrar says of a region or a peer.
type standing struct{ Region, State, Leader string }

func (r *region) standing(i int, path, name string) standing {
	var answer struct{ Regions, Peers []standing }
	if !r.get(i, path, &answer) {
		return standing{}
	}
	for _, s := range append(answer.Regions, answer.Peers...) {
		if s.Region == name {
			return s
		}
	}
	return standing{}
}
