package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/wire"
)

// BenchmarkRestart kills a registrar that serves 100,000 endpoints to 5,000 watchers
// of 20 services each, on 100 connections, starts another in its place, and reports
// how long after that start it was ready and all watchers were in step again, what
// the new process took for it, and what the watchers were told to forget. The
// watchers resume as those of remote.Follow do; or, a tenth of them and
// forgetful, ask for everything.
func BenchmarkRestart(b *testing.B) {
	b.Run("resume", func(b *testing.B) { restart(b, *fleetStreams, false) })
	b.Run("forgetful", func(b *testing.B) { restart(b, *fleetStreams/10, true) })
}

func restart(b *testing.B, streams int, forgetful bool) {
	for b.Loop() {
		h := newHerd(b, forgetful)
		first := h.registrar()
		h.run(streams)
		await(b, func() bool { return h.inStep.Load() == int64(streams) })
		h.inStep.Store(0)
		must(b, first.Process.Kill())
		_ = first.Wait() // its exit status is the kill
		begin := time.Now()
		second := h.registrar()
		ready := time.Since(begin)
		await(b, func() bool { return h.inStep.Load() == int64(streams) })
		b.ReportMetric(ready.Seconds(), "s-ready")
		b.ReportMetric(time.Since(begin).Seconds(), "s-in-step")
		b.ReportMetric(peakMemory(b, second.Process.Pid)/1e6, "MB-peak")
		b.ReportMetric(processTime(b, second.Process.Pid).Seconds(), "cpu-s")
		b.ReportMetric(float64(h.deleted.Load()), "deletes")
		b.ReportMetric(float64(h.replaced.Load()), "services-resent")
		b.ReportMetric(0, "ns/op")
		h.end()
		must(b, second.Process.Kill())
		_ = second.Wait()
	}
}

// herd are the watchers of one registrar.
type herd struct {
	b         *testing.B
	binary    string
	etcd      *etcdtest.Process
	rpc, web  string
	digests   map[string]uint64
	forgetful bool
	end       func()

	inStep, deleted, replaced atomic.Int64
}

func newHerd(b *testing.B, forgetful bool) *herd {
	b.Helper()
	h := &herd{
		b: b, binary: buildAether(b), etcd: etcdtest.StartProcess(b), forgetful: forgetful,
		rpc: etcdtest.FreeAddress(b), web: etcdtest.FreeAddress(b), digests: map[string]uint64{},
	}
	fillEndpoints(b, h.etcd.Client(b), fleetEndpoints)
	for i := range fleetEndpoints {
		e := filled(i)
		h.digests[e.Service] += wire.Digest(e)
	}
	return h
}

// registrar starts one and returns once it is ready.
func (h *herd) registrar() *exec.Cmd {
	h.b.Helper()
	cmd := exec.Command(h.binary, "registrar", "--region", "a", "--cluster-name", "c1",
		"--etcd-endpoints", h.etcd.Endpoint(), "--grpc-address", h.rpc, "--http-address", h.web)
	must(h.b, cmd.Start())
	await(h.b, func() bool {
		resp, err := http.Get("http://" + h.web + "/readyz")
		if err != nil {
			return false
		}
		must(h.b, resp.Body.Close())
		return resp.StatusCode == http.StatusOK
	})
	return cmd
}

// run has every watcher follow until end.
func (h *herd) run(streams int) {
	h.b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var watchers sync.WaitGroup
	h.end = func() { cancel(); watchers.Wait() }
	var client registryv1.RegistryServiceClient
	for i := range streams {
		if i%streamsAConn == 0 {
			client = h.dial(i / streamsAConn)
		}
		watchers.Go(func() { h.follow(ctx, client, watchRequest(i)) })
	}
}

// dial connects from an address of its own, as a client on another machine.
func (h *herd) dial(n int) registryv1.RegistryServiceClient {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(n+1))}}
	retry := backoff.DefaultConfig
	retry.MaxDelay = herdMaxPause
	conn, err := grpc.NewClient(h.rpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	must(h.b, err)
	h.b.Cleanup(func() { conn.Close() })
	return registryv1.NewRegistryServiceClient(conn)
}

// The pauses of remote.Follow.
const (
	herdFirstPause = time.Second
	herdMaxPause   = 3 * time.Second
)

// follow watches as remote.Follow does, but holds digests alone.
func (h *herd) follow(ctx context.Context, client registryv1.RegistryServiceClient, req *registryv1.WatchRequest) {
	pause := herdFirstPause
	for ctx.Err() == nil {
		told := h.watch(ctx, client, req)
		if pause = min(2*pause, herdMaxPause); told {
			pause = herdFirstPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(pause)):
		}
	}
}

// watch reads one stream to its end and reports whether it told anything.
func (h *herd) watch(ctx context.Context, client registryv1.RegistryServiceClient, req *registryv1.WatchRequest) (told bool) {
	stream, err := client.Watch(ctx)
	if err != nil || stream.Send(req) != nil {
		return false
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return told
		}
		told = true
		h.replaced.Add(int64(len(m.GetReplaced())))
		for _, c := range m.GetChanges() {
			if c.GetDelete() != nil {
				h.deleted.Add(1)
			}
		}
		if m.GetSynced() {
			h.inStep.Add(1)
			if !h.forgetful {
				req.Held = h.held(req.GetServices(), m.GetRevision())
			}
		}
	}
}

func (h *herd) held(services []string, revision string) *registryv1.Held {
	held := &registryv1.Held{Revision: revision, Digests: map[string]uint64{}}
	for _, s := range services {
		held.Digests[s] = h.digests[s]
	}
	return held
}

// processTime returns the processor time that a process has used, from Linux.
func processTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skipf("no /proc here: %v", err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	var user, system int64 // ticks of 10 ms
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	must(b, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}
