package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// BenchmarkRegistrarMemory reports the resident memory, at its highest, of an
// aether registrar that loads and serves 100,000 endpoints of its region and
// mirrors them to a peer: its process alone, the etcds are others.
func BenchmarkRegistrarMemory(b *testing.B) {
	for b.Loop() {
		p := newPair(b, 0, 0)
		fillEndpoints(b, p.from, mirrorKeys)
		http := etcdtest.FreeAddress(b)
		cmd := exec.Command(buildAether(b), "registrar", "--region", "a", "--cluster-name", "c1",
			"--etcd-endpoints", p.origin.Endpoint(), "--peer-etcd", "b="+p.peer.Endpoint(),
			"--grpc-address", etcdtest.FreeAddress(b), "--http-address", http)
		must(b, cmd.Start())
		await(b, func() bool { return p.count() == mirrorKeys && endpointsServed(http) == mirrorKeys })
		b.ReportMetric(peakMemory(b, cmd.Process.Pid)/1e6, "MB-peak")
		b.ReportMetric(0, "ns/op")
		must(b, cmd.Process.Signal(syscall.SIGTERM))
		must(b, cmd.Wait())
		p.end()
	}
}

func buildAether(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "aether")
	build := exec.Command("go", "build", "-o", path, "../cmd/aether")
	build.Stderr = os.Stderr
	must(b, build.Run())
	return path
}

func fillEndpoints(b *testing.B, c *clientv3.Client, n int) {
	b.Helper()
	for at := 0; at < n; at += batchOps {
		var ops []clientv3.Op
		for i := at; i < min(n, at+batchOps); i++ {
			e := filled(i)
			value, err := wire.Value(e)
			must(b, err)
			ops = append(ops, clientv3.OpPut(keyspace.Format(e.Key), string(value)))
		}
		_, err := c.Txn(context.Background()).Then(ops...).Commit()
		must(b, err)
	}
}

// filled is endpoint i of fillEndpoints.
func filled(i int) registry.Endpoint {
	return registry.Endpoint{
		Key: registry.Key{
			Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: fmt.Sprintf("service-%04d.default", i/50),
			Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
		},
		Ports: []registry.Port{{Name: "http", Number: 8080}}, Zone: "a1", Node: fmt.Sprintf("node-%d", i%200),
		Metadata: map[string]string{"version": "v1.2.3"},
	}
}

// endpointsServed returns how many endpoints of region a a registrar serves, -1
// while it can't tell.
func endpointsServed(address string) int {
	resp, err := http.Get("http://" + address + "/v1/regions")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	var answer struct {
		Regions []struct {
			Region    string
			Endpoints int
		}
	}
	if json.NewDecoder(resp.Body).Decode(&answer) != nil {
		return -1
	}
	for _, r := range answer.Regions {
		if r.Region == "a" {
			return r.Endpoints
		}
	}
	return -1
}

// peakMemory returns the highest resident size of a process in bytes, from Linux.
func peakMemory(b *testing.B, pid int) float64 {
	b.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skipf("no /proc here: %v", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kb float64
		if _, err := fmt.Sscanf(strings.TrimSpace(lines.Text()), "VmHWM: %f kB", &kb); err == nil {
			return kb * 1024
		}
	}
	b.Fatal("the process's status has no VmHWM")
	return 0
}
