package bench

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

var xdsStreams = flag.Int("xds-streams", 2000, "xDS streams of 20 services each")

const (
	xdsTypes  = 3 // listeners, clusters, assignments
	xdsZones  = 4
	edsType   = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	cdsType   = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	ldsType   = "type.googleapis.com/envoy.config.listener.v3.Listener"
	firstMark = 1000 // weights above it mark changes
)

// xdsFleet is streams that ask a fleet's registrar as gRPC clients do.
type xdsFleet struct {
	*fleet
	// sent is when each change was, by its mark.
	sent   []atomic.Int64
	synced atomic.Int64
	// told counts changes that streams were told, beside responses that told of
	// none, lost streams that ended.
	told, beside, lost atomic.Int64
	streams            sync.WaitGroup

	mu     sync.Mutex
	delays []time.Duration
}

func (x *xdsFleet) open(ctx context.Context, n int) {
	var client discoveryv3.AggregatedDiscoveryServiceClient
	for i := range n {
		if i%streamsAConn == 0 {
			conn, err := grpc.NewClient(x.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
			must(x.b, err)
			x.b.Cleanup(func() { conn.Close() })
			client = discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
		}
		stream, err := client.StreamAggregatedResources(ctx)
		must(x.b, err)
		node := &corev3.Node{
			Id: fmt.Sprint("client-", i), UserAgentName: "gRPC Go",
			Locality: &corev3.Locality{Region: "a", Zone: fmt.Sprint("z", i%xdsZones)},
		}
		names := watchRequest(i).GetServices()
		for _, t := range []string{ldsType, cdsType, edsType} {
			must(x.b, stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: t, ResourceNames: names}))
			node = nil
		}
		x.streams.Go(func() { x.read(ctx, stream, names) })
	}
	await(x.b, func() bool { return x.synced.Load() == int64(n*xdsTypes) })
}

func (x *xdsFleet) read(ctx context.Context, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, names []string) {
	for n := 0; ; n++ {
		m, err := stream.Recv()
		now := time.Now()
		if err == nil {
			err = stream.Send(&discoveryv3.DiscoveryRequest{
				TypeUrl: m.GetTypeUrl(), ResourceNames: names, VersionInfo: m.GetVersionInfo(), ResponseNonce: m.GetNonce(),
			})
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			x.lost.Add(1)
			return
		case n < xdsTypes:
			x.synced.Add(1)
		default:
			if x.measure(m, now) == 0 {
				x.beside.Add(1)
			}
		}
	}
}

// measure finds the changes that a response tells of and returns their number.
func (x *xdsFleet) measure(m *discoveryv3.DiscoveryResponse, now time.Time) (told int) {
	for _, r := range m.GetResources() {
		a := &endpointv3.ClusterLoadAssignment{}
		if err := r.UnmarshalTo(a); err != nil {
			x.lost.Add(1)
			return told
		}
		mark := uint32(0)
		for _, l := range a.GetEndpoints() {
			for _, e := range l.GetLbEndpoints() {
				mark = max(mark, e.GetLoadBalancingWeight().GetValue())
			}
		}
		if mark < firstMark {
			continue
		}
		x.mu.Lock()
		x.delays = append(x.delays, now.Sub(time.Unix(0, x.sent[mark-firstMark].Load())))
		x.mu.Unlock()
		x.told.Add(1)
		told++
	}
	return told
}

// mark writes an endpoint of service i, whose weight tells which change that is.
func (x *xdsFleet) mark(change, i int) {
	n := i % fleetServices * 50
	e := registry.Endpoint{
		Key: registry.Key{
			Origin: registry.Origin{Region: "a", Cluster: "c1"}, Service: serviceName(i), Protocol: registry.HTTP,
			IP: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
		},
		Ports: []registry.Port{{Name: "http", Number: 8080}}, Weight: uint32(firstMark + change),
	}
	value, err := wire.Value(e)
	must(x.b, err)
	x.sent[change].Store(time.Now().UnixNano())
	_, err = x.etcd.Put(context.Background(), keyspace.Format(e.Key), string(value))
	must(x.b, err)
}

// BenchmarkXDS reports how late changes of 50-endpoint services reach xDS streams,
// from before the write, so that etcd's commit is in it, and how often a stream woke
// for nothing that it asked for.
func BenchmarkXDS(b *testing.B) {
	for b.Loop() {
		changes := *fleetSeconds * changesASecond
		x := &xdsFleet{fleet: newFleet(b), sent: make([]atomic.Int64, changes)}
		before := memory()
		ctx, cancel := context.WithCancel(b.Context())
		begin := time.Now()
		x.open(ctx, *xdsStreams)
		b.ReportMetric(time.Since(begin).Seconds(), "s-connected")
		b.ReportMetric(float64(memory()-before)/float64(*xdsStreams)/1e3, "KB/stream-with-client")
		subscribers := map[string]int{}
		for i := range *xdsStreams {
			for _, s := range watchRequest(i).GetServices() {
				subscribers[s]++
			}
		}
		cpu, begin, expected := cpuTime(b), time.Now(), 0
		tick := time.NewTicker(time.Second / changesASecond)
		for i := range changes {
			<-tick.C
			x.mark(i, i*13)
			expected += subscribers[serviceName(i*13)]
		}
		tick.Stop()
		used, took := cpuTime(b)-cpu, time.Since(begin)
		await(b, func() bool { return x.told.Load() >= int64(expected) })
		cancel()
		x.streams.Wait()
		slices.Sort(x.delays)
		b.ReportMetric(float64(quantile(x.delays, 0.5).Microseconds())/1e3, "ms-p50")
		b.ReportMetric(float64(quantile(x.delays, 0.99).Microseconds())/1e3, "ms-p99")
		b.ReportMetric(float64(x.beside.Load()), "woken-beside")
		b.ReportMetric(float64(len(x.delays))/took.Seconds(), "deliveries/s")
		b.ReportMetric(used.Seconds()/took.Seconds(), "cores-with-clients")
		b.ReportMetric(float64(x.lost.Load()), "lost")
		b.ReportMetric(0, "ns/op")
	}
}
