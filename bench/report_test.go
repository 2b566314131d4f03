package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

const (
	reportingNodes  = 200
	perNode         = 50
	reportingRounds = 9
	// reportingTTL is longer than all rounds: no node falls silent meanwhile.
	reportingTTL = 10 * time.Minute
)

var reporting = registry.Origin{Region: "a", Cluster: "c1"}

// BenchmarkReports has 200 nodes report 50 endpoints each at once, and in turn a
// bare client put as many keys of the same sizes into the same etcd, in
// transactions of 128, eight in flight: beside the tree, and as another cluster's, so
// that the registrar's watch, which its own writes come back by, has them to read
// too. Each round has nodes and keys of its own; the medians of the rounds are
// compared. All send what was encoded before. The processor time of this process is
// told beside: the registrar's has the nodes' calls and its watch in it.
func BenchmarkReports(b *testing.B) {
	b.Run("fsync", func(b *testing.B) { reports(b, "--unsafe-no-fsync=false") })
	b.Run("no-fsync", func(b *testing.B) { reports(b) })
}

func reports(b *testing.B, flags ...string) {
	for b.Loop() {
		server := etcdtest.StartProcess(b, flags...)
		client := server.Client(b)
		r := startReporting(b, client)
		raw, watched, first, again := spending{pid: server.PID()}, spending{pid: server.PID()}, spending{pid: server.PID()}, spending{pid: server.PID()}
		for round := range reportingRounds {
			nodes := nodesOf(round)
			requests := encodeReports(b, nodes)
			raw.add(b, func() time.Duration { return putRaw(b, client, nodes, "/aether/", "/rawput/") })
			first.add(b, func() time.Duration {
				took := r.all(b, requests)
				r.settle(b, nodes)
				return took
			})
			watched.add(b, func() time.Duration {
				took := putRaw(b, client, nodes, "/clusters/c1/", "/clusters/c2/")
				await(b, func() bool { return r.view.Snapshot(registry.Query{}).Len() == 2*(round+1)*reportingNodes*perNode })
				return took
			})
			before := head(b, client)
			again.add(b, func() time.Duration { return r.all(b, requests) })
			if after := head(b, client); after != before {
				b.Errorf("reports with no change wrote: revision %d, then %d", before, after)
			}
		}
		const keys = reportingNodes * perNode
		b.ReportMetric(keys/median(raw.took).Seconds(), "raw-keys/s")
		b.ReportMetric(keys/median(first.took).Seconds(), "reported-keys/s")
		b.ReportMetric(median(raw.took).Seconds()/median(first.took).Seconds(), "of-raw")
		b.ReportMetric(median(watched.took).Seconds()/median(first.took).Seconds(), "of-raw-watched")
		for name, s := range map[string]spending{"raw": raw, "reported": first, "watched": watched, "unchanged": again} {
			b.ReportMetric(float64(median(s.here).Microseconds())/keys, name+"-µs/key")
			b.ReportMetric(float64(median(s.there).Microseconds())/keys, name+"-etcd-µs/key")
		}
		b.ReportMetric(reportingNodes/median(again.took).Seconds(), "unchanged-reports/s")
		b.ReportMetric(0, "ns/op")
	}
}

// spending is what rounds of one kind took, and the processor time that this process
// and etcd's spent for each.
type spending struct {
	pid               int
	took, here, there []time.Duration
}

// add runs a round, which returns how much of it counts as its time.
func (s *spending) add(b *testing.B, round func() time.Duration) {
	here, there := cpuTime(b), processTime(b, s.pid)
	s.took = append(s.took, round())
	s.here, s.there = append(s.here, cpuTime(b)-here), append(s.there, processTime(b, s.pid)-there)
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// nodesOf returns what the nodes of a round have, by node.
func nodesOf(round int) [][]registry.Endpoint {
	out := make([][]registry.Endpoint, reportingNodes)
	for n := range out {
		for i := range perNode {
			out[n] = append(out[n], registry.Endpoint{
				Key: registry.Key{
					Origin: reporting, Service: fmt.Sprintf("api-%02d", i), Protocol: registry.HTTP,
					IP: netip.AddrFrom4([4]byte{10, byte(100 + round), byte(n), byte(i)}),
				},
				Ports: []registry.Port{{Name: "http", Number: 8080}}, Weight: 1, Health: registry.Healthy, Zone: "a1",
				Node: fmt.Sprintf("n-%d-%d", round, n),
			})
		}
	}
	return out
}

func encodeReports(b *testing.B, nodes [][]registry.Endpoint) [][]byte {
	b.Helper()
	out := make([][]byte, len(nodes))
	for n, endpoints := range nodes {
		req := &registryv1.ReportRequest{Node: endpoints[0].Node}
		for _, e := range endpoints {
			req.Endpoints = append(req.Endpoints, wire.ToProto(e))
		}
		raw, err := proto.Marshal(req)
		must(b, err)
		out[n] = raw
	}
	return out
}

// putRaw puts what nodes have, with a part of each key replaced by another, and
// returns how long it took.
func putRaw(b *testing.B, client *clientv3.Client, nodes [][]registry.Endpoint, part, by string) time.Duration {
	b.Helper()
	var ops []clientv3.Op
	for _, endpoints := range nodes {
		for _, e := range endpoints {
			value, err := wire.Value(e)
			must(b, err)
			ops = append(ops, clientv3.OpPut(strings.Replace(keyspace.Format(e.Key), part, by, 1), string(value)))
		}
	}
	start := time.Now()
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(8)
	for batch := range slices.Chunk(ops, registry.MaxBatch) {
		g.Go(func() error {
			_, err := client.Txn(ctx).Then(batch...).Commit()
			return err
		})
	}
	must(b, g.Wait())
	return time.Since(start)
}

func head(b *testing.B, client *clientv3.Client) int64 {
	b.Helper()
	resp, err := client.Get(b.Context(), keyspace.StoreKey)
	must(b, err)
	return resp.Header.Revision
}

// reporter is a registrar with a connection for each node.
type reporter struct {
	census *registrar.Census
	view   *registrar.View
	conns  []*grpc.ClientConn
}

func startReporting(b *testing.B, client *clientv3.Client) *reporter {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	r := &reporter{census: registrar.NewCensus(registrar.CensusConfig{Origin: reporting})}
	store, err := etcd.New(etcd.Config{Client: client, Origin: reporting, Log: log, Present: r.census.Present, Known: r.census.Known})
	must(b, err)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: client, Log: log})
	must(b, err)
	presence, err := etcd.NewPresence(etcd.PresenceConfig{Client: client, Origin: reporting, Name: "r1", Log: log, TTL: reportingTTL})
	must(b, err)
	rpc, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	server, err := registrar.New(registrar.Config{
		Origin: reporting, Store: store, Feed: etcdfeed.New(feed), GRPC: rpc, HTTP: web, Census: r.census, Presence: presence,
	})
	must(b, err)
	r.view = server.View()
	ctx, cancel := context.WithCancel(context.Background())
	var parts errgroup.Group
	parts.Go(func() error { return server.Run(ctx) })
	parts.Go(func() error { return presence.Run(ctx) })
	b.Cleanup(func() {
		for _, c := range r.conns {
			c.Close()
		}
		cancel()
		if err := parts.Wait(); err != nil {
			b.Error(err)
		}
	})
	<-r.view.Ready()
	for range reportingNodes {
		conn, err := grpc.NewClient(rpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(b, err)
		r.conns = append(r.conns, conn)
		_, err = registryv1.NewRegistryServiceClient(conn).ListRegions(b.Context(), &registryv1.ListRegionsRequest{}) // connects
		must(b, err)
	}
	return r
}

// settle waits until the registrar has seen what the nodes reported.
func (r *reporter) settle(b *testing.B, nodes [][]registry.Endpoint) {
	b.Helper()
	await(b, func() bool {
		for _, endpoints := range nodes {
			for _, e := range endpoints {
				if !r.census.Known(e.Key) {
					return false
				}
			}
			if !r.census.Present(endpoints[0].Node) {
				return false
			}
		}
		return true
	})
}

// all has every node report at once and returns how long that took.
func (r *reporter) all(b *testing.B, requests [][]byte) time.Duration {
	b.Helper()
	start := time.Now()
	g, ctx := errgroup.WithContext(b.Context())
	answers := make([][]byte, len(requests))
	for i, conn := range r.conns {
		g.Go(func() error {
			return conn.Invoke(ctx, registryv1.RegistryService_Report_FullMethodName, &requests[i], &answers[i], grpc.ForceCodec(asItIs{}))
		})
	}
	must(b, g.Wait())
	took := time.Since(start)
	for _, raw := range answers {
		answer := &registryv1.ReportResponse{}
		must(b, proto.Unmarshal(raw, answer))
		if n := len(answer.GetConflicts()); n > 0 {
			b.Errorf("%d conflicts", n)
		}
	}
	return took
}
