package bench

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

var (
	fleetStreams = flag.Int("fleet-streams", 5000, "watch streams of 20 services each")
	fleetSeconds = flag.Int("fleet-seconds", 10, "seconds of 100 changes each")
)

const (
	fleetEndpoints   = 100000
	fleetServices    = fleetEndpoints / 50
	servicesAStream  = 20
	streamsAConn     = 50
	changesASecond   = 100
	sentAt           = "sent-at"
	fleetListSeconds = 3
)

// fleet is one registrar in this process on a real etcd with 100,000 endpoints.
type fleet struct {
	b      *testing.B
	etcd   *clientv3.Client
	view   *registrar.View
	target string
	ready  time.Duration
	// limits of each client.
	limits access.Limits
}

func newFleet(b *testing.B) *fleet {
	b.Helper()
	f := &fleet{b: b, etcd: etcdtest.StartProcess(b).Client(b)}
	fillEndpoints(b, f.etcd, fleetEndpoints)
	f.start()
	return f
}

// start runs a registrar until the benchmark ends and notes how long it took to
// be ready.
func (f *fleet) start() {
	f.b.Helper()
	store, err := etcd.New(etcd.Config{Client: f.etcd, Origin: registry.Origin{Region: "a", Cluster: "c1"}})
	must(f.b, err)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: f.etcd})
	must(f.b, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(f.b, err)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	must(f.b, err)
	s, err := registrar.New(registrar.Config{
		Origin: registry.Origin{Region: "a", Cluster: "c1"}, Store: store, Feed: etcdfeed.New(feed), GRPC: l, HTTP: web, Limits: f.limits,
	})
	must(f.b, err)
	x, err := xds.New(xds.Config{Source: s.View(), Home: func() xds.Client { return xds.Client{Locality: registry.Locality{Region: "a"}} }})
	must(f.b, err)
	x.Register(s)
	ctx, cancel := context.WithCancel(context.Background())
	var ended errgroup.Group
	begin := time.Now()
	ended.Go(func() error { return s.Run(ctx) })
	ended.Go(func() error { return x.Run(ctx) })
	f.b.Cleanup(func() {
		cancel()
		if err := ended.Wait(); err != nil {
			f.b.Error(err)
		}
	})
	<-s.View().Ready()
	f.ready, f.view, f.target = time.Since(begin), s.View(), l.Addr().String()
}

func (f *fleet) dial() registryv1.RegistryServiceClient {
	f.b.Helper()
	conn, err := grpc.NewClient(f.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(f.b, err)
	f.b.Cleanup(func() { conn.Close() })
	return registryv1.NewRegistryServiceClient(conn)
}

func serviceName(i int) string { return fmt.Sprintf("service-%04d.default", i%fleetServices) }

// measured is what the streams see of the changes.
type measured struct {
	mu      sync.Mutex
	delays  []time.Duration
	synced  atomic.Int64
	lost    atomic.Int64
	streams sync.WaitGroup
}

// open watches with n streams until ctx ends.
func (f *fleet) open(ctx context.Context, n int) *measured {
	m := &measured{}
	var client registryv1.RegistryServiceClient
	for i := range n {
		if i%streamsAConn == 0 {
			client = f.dial()
		}
		stream, err := client.Watch(ctx)
		must(f.b, err)
		must(f.b, stream.Send(watchRequest(i)))
		m.streams.Go(func() { m.read(ctx, stream) })
	}
	await(f.b, func() bool { return m.synced.Load() == int64(n) })
	return m
}

// watchRequest is what stream i asks for.
func watchRequest(i int) *registryv1.WatchRequest {
	req := &registryv1.WatchRequest{}
	for k := range servicesAStream {
		req.Services = append(req.Services, serviceName(i*7+k*101))
	}
	return req
}

// hold opens stream i and reads its snapshot.
func hold(client registryv1.RegistryServiceClient, i int) error {
	stream, err := client.Watch(context.Background())
	if err != nil {
		return err
	}
	if err := stream.Send(watchRequest(i)); err != nil {
		return err
	}
	for {
		if answer, err := stream.Recv(); err != nil || answer.GetSynced() {
			return err
		}
	}
}

func (m *measured) read(ctx context.Context, stream registryv1.RegistryService_WatchClient) {
	for {
		answer, err := stream.Recv()
		if err != nil {
			if ctx.Err() == nil {
				m.lost.Add(1)
			}
			return
		}
		if answer.GetSynced() {
			m.synced.Add(1)
			continue
		}
		now := time.Now()
		for _, c := range answer.GetChanges() {
			if at, err := time.Parse(time.RFC3339Nano, c.GetPut().GetMetadata()[sentAt]); err == nil {
				m.mu.Lock()
				m.delays = append(m.delays, now.Sub(at))
				m.mu.Unlock()
			}
		}
	}
}

// change writes one endpoint of service i with the time at which its write began,
// so that the delay holds etcd's commit too.
func (f *fleet) change(i int) {
	n := i % fleetServices * 50
	e := registry.Endpoint{
		Key: registry.Key{
			Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: serviceName(i), Protocol: registry.HTTP,
			IP: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
		},
		Ports: []registry.Port{{Name: "http", Number: 8080}}, Metadata: map[string]string{sentAt: time.Now().Format(time.RFC3339Nano)},
	}
	value, err := wire.Value(e)
	must(f.b, err)
	_, err = f.etcd.Put(context.Background(), keyspace.Format(e.Key), string(value))
	must(f.b, err)
}

// BenchmarkFleetWatch reports how late changes reach the streams, what the process
// costs, the streams' clients in it included, and how many streams were lost.
func BenchmarkFleetWatch(b *testing.B) {
	for b.Loop() {
		f := newFleet(b)
		before := memory()
		ctx, cancel := context.WithCancel(b.Context())
		m := f.open(ctx, *fleetStreams)
		idle := memory() - before
		cpu, begin := cpuTime(b), time.Now()
		tick := time.NewTicker(time.Second / changesASecond)
		for i := range *fleetSeconds * changesASecond {
			<-tick.C
			f.change(i * 13)
		}
		tick.Stop()
		used, took := cpuTime(b)-cpu, time.Since(begin)
		cancel()
		m.streams.Wait()
		slices.Sort(m.delays)
		b.ReportMetric(float64(quantile(m.delays, 0.5).Microseconds())/1e3, "ms-p50")
		b.ReportMetric(float64(quantile(m.delays, 0.99).Microseconds())/1e3, "ms-p99")
		b.ReportMetric(float64(len(m.delays))/took.Seconds(), "deliveries/s")
		b.ReportMetric(used.Seconds()/took.Seconds(), "cores-with-clients")
		b.ReportMetric(float64(idle)/float64(*fleetStreams)/1e3, "KB/stream-with-client")
		b.ReportMetric(float64(m.lost.Load()), "lost")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkFleetView reports what a registrar with 100,000 endpoints takes to be
// ready, and how much memory the view takes for each.
func BenchmarkFleetView(b *testing.B) {
	for b.Loop() {
		server := etcdtest.StartProcess(b)
		client := server.Client(b)
		fillEndpoints(b, client, fleetEndpoints)
		before, here, there := memory(), cpuTime(b), processTime(b, server.PID())
		f := &fleet{b: b, etcd: client}
		f.start()
		b.ReportMetric((cpuTime(b) - here).Seconds(), "s-cpu")
		b.ReportMetric((processTime(b, server.PID()) - there).Seconds(), "s-etcd-cpu")
		b.ReportMetric(float64(memory()-before)/fleetEndpoints, "B/endpoint")
		b.ReportMetric(f.ready.Seconds(), "s-ready")
		b.ReportMetric(0, "ns/op")
		runtime.KeepAlive(f)
	}
}

// BenchmarkFleetList reports how often a second a service of 50 endpoints is
// listed, by clients in the same process that take the answers and decode one in
// a hundred.
func BenchmarkFleetList(b *testing.B) {
	f := newFleet(b)
	clients := make([]*grpc.ClientConn, 4)
	for i := range clients {
		conn, err := grpc.NewClient(f.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(b, err)
		defer conn.Close()
		clients[i] = conn
	}
	for b.Loop() {
		ctx, cancel := context.WithTimeout(b.Context(), fleetListSeconds*time.Second)
		var calls atomic.Int64
		var g sync.WaitGroup
		for worker := range 64 {
			g.Go(func() {
				for i := worker; ctx.Err() == nil; i++ {
					if f.list(ctx, clients[worker%len(clients)], i) {
						calls.Add(1)
					}
				}
			})
		}
		g.Wait()
		cancel()
		b.ReportMetric(float64(calls.Load())/fleetListSeconds, "lists/s")
		b.ReportMetric(0, "ns/op")
	}
}

// list lists service i and reports whether all of it came.
func (f *fleet) list(ctx context.Context, conn *grpc.ClientConn, i int) bool {
	req, err := proto.Marshal(&registryv1.ListRequest{Services: []string{serviceName(i)}})
	must(f.b, err)
	var raw []byte
	if err := conn.Invoke(ctx, registryv1.RegistryService_List_FullMethodName, &req, &raw, grpc.ForceCodec(asItIs{})); err != nil {
		return false
	}
	if i%100 > 0 {
		return len(raw) > 0
	}
	answer := &registryv1.ListResponse{}
	must(f.b, proto.Unmarshal(raw, answer))
	if len(answer.GetEndpoints()) != 50 {
		f.b.Errorf("%d endpoints, want 50", len(answer.GetEndpoints()))
	}
	return true
}

// asItIs is a codec of bytes.
type asItIs struct{}

func (asItIs) Name() string                    { return "proto" }
func (asItIs) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (asItIs) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte(nil), b...); return nil }

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// memory returns the bytes that the heap and the stacks hold, once what is not
// used is gone.
func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// cpuTime returns what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
