package bench

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

const (
	probed   = 1000
	probeFor = 30 * time.Second
	// healthChanges are measured.
	healthChanges = 60
)

// BenchmarkAgentProbes reports what an aether agent takes that asks 1,000 endpoints
// over HTTP every 5 s: its process alone, the endpoints and the registrar are others.
func BenchmarkAgentProbes(b *testing.B) {
	binary := buildAether(b)
	for b.Loop() {
		r := startProcess(b, binary, "registrar", "--data-dir", b.TempDir(), "--embedded-etcd-client-url", "http://"+etcdtest.FreeAddress(b))
		defer r.end(b)
		port := serveEverywhere(b)
		a := startProcess(b, binary, "agent", "--node", "n1", "--registrar", r.grpc, "--state-dir", b.TempDir(), "--sources", manyServices(b, port), "--drain-grace", "0s")
		defer a.end(b)
		await(b, func() bool { return healthyAt(b, r.grpc) == probed })
		before := processTime(b, a.cmd.Process.Pid)
		<-time.After(probeFor)
		used := processTime(b, a.cmd.Process.Pid) - before
		if n := healthyAt(b, r.grpc); n != probed {
			b.Errorf("%d endpoints are healthy", n)
		}
		b.ReportMetric(used.Seconds()/probeFor.Seconds(), "cores")
		b.ReportMetric(peakMemory(b, a.cmd.Process.Pid)/1e6, "MB-peak")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkAgentHealthChange reports how long it takes from the moment at which an
// endpoint fails, or is well again, until a registrar's watcher is told: an interval
// of 100 ms and a threshold of one among it.
func BenchmarkAgentHealthChange(b *testing.B) {
	binary := buildAether(b)
	for b.Loop() {
		r := startProcess(b, binary, "registrar", "--data-dir", b.TempDir(), "--embedded-etcd-client-url", "http://"+etcdtest.FreeAddress(b))
		defer r.end(b)
		var ill atomic.Bool
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if ill.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		defer server.Close()
		path := filepath.Join(b.TempDir(), "services.yaml")
		text := "services:\n- {name: api, protocol: http, ip: 127.0.0.1, check: {type: http, port: %d, interval: 100ms, rise: 1, fall: 1}}\n"
		must(b, os.WriteFile(path, fmt.Appendf(nil, text, server.Listener.Addr().(*net.TCPAddr).Port), 0o600))
		a := startProcess(b, binary, "agent", "--node", "n1", "--registrar", r.grpc, "--state-dir", b.TempDir(), "--sources", path, "--drain-grace", "0s")
		defer a.end(b)
		told := watchHealth(b, r.grpc)
		<-told
		var took []time.Duration
		for n := range healthChanges {
			begin := time.Now()
			ill.Store(n%2 == 0)
			for h := range told {
				if h.Serving() == (n%2 == 1) {
					break
				}
			}
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "median-ms")
		b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "max-ms")
		b.ReportMetric(0, "ns/op")
	}
}

// watchHealth tells the health of the one endpoint that there is.
func watchHealth(b *testing.B, grpc string) <-chan registry.Health {
	b.Helper()
	client, err := remote.New(grpc)
	must(b, err)
	told, ended := make(chan registry.Health), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		_ = client.Follow(ctx, registry.Query{}, func(e registry.Event) error { // ends with ctx
			if e.Kind == registry.Put {
				select {
				case told <- e.Endpoint.Health:
				case <-ctx.Done():
				}
			}
			return nil
		}, nil)
	}()
	b.Cleanup(func() {
		cancel()
		<-ended
		_ = client.Close() // nothing is lost with it
	})
	return told
}

// aetherProcess is a process of the binary.
type aetherProcess struct {
	grpc string
	cmd  *exec.Cmd
}

func startProcess(b *testing.B, binary string, args ...string) aetherProcess {
	b.Helper()
	p := aetherProcess{grpc: etcdtest.FreeAddress(b)}
	p.cmd = exec.Command(binary, append(args, "--grpc-address", p.grpc, "--http-address", etcdtest.FreeAddress(b))...)
	p.cmd.Stderr = os.Stderr
	must(b, p.cmd.Start())
	return p
}

func (p aetherProcess) end(b *testing.B) {
	b.Helper()
	must(b, p.cmd.Process.Signal(syscall.SIGTERM))
	must(b, p.cmd.Wait())
}

// serveEverywhere answers at each loopback address and returns the port.
func serveEverywhere(b *testing.B) int {
	b.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	must(b, err)
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // ends by Close
	}()
	b.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return l.Addr().(*net.TCPAddr).Port
}

func manyServices(b *testing.B, port int) string {
	b.Helper()
	var text strings.Builder
	text.WriteString("services:\n")
	for i := range probed {
		fmt.Fprintf(&text, "- {name: service-%d, protocol: http, ip: 127.1.%d.%d, ports: {http: %d}, check: {type: http, path: /healthz, interval: 5s}}\n",
			i/10, i/250, i%250+1, port)
	}
	path := filepath.Join(b.TempDir(), "services.yaml")
	must(b, os.WriteFile(path, []byte(text.String()), 0o600))
	return path
}

func healthyAt(b *testing.B, grpc string) (n int) {
	b.Helper()
	client, err := remote.New(grpc)
	must(b, err)
	defer client.Close()
	snapshot, err := client.List(b.Context(), registry.Query{})
	if err != nil {
		return -1
	}
	for _, e := range snapshot.Endpoints {
		if e.Health.Serving() {
			n++
		}
	}
	return n
}
