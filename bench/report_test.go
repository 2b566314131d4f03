package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/remote"
	"github.com/aether-federation/aether/registry/wire"
)

const (
	reportingNodes = 200
	perNode        = 50
)

var reporting = registry.Origin{Region: "a", Cluster: "c1"}

// BenchmarkReports has 200 nodes report 50 endpoints each at once, beside raw puts
// of the same keys and values, in transactions of 128, several in flight.
func BenchmarkReports(b *testing.B) {
	for range b.N {
		client := etcdtest.StartProcess(b).Client(b)
		reports := nodesReports("api")
		raw := putRaw(b, client, nodesReports("raw"))
		r := startReporting(b, client)
		first := r.all(b, reports)
		before := head(b, client)
		again := r.all(b, reports)
		if after := head(b, client); after != before {
			b.Errorf("reports with no change wrote: revision %d, then %d", before, after)
		}
		b.ReportMetric(reportingNodes*perNode/raw.Seconds(), "raw-keys/s")
		b.ReportMetric(reportingNodes*perNode/first.Seconds(), "reported-keys/s")
		b.ReportMetric(raw.Seconds()/first.Seconds(), "of-raw")
		b.ReportMetric(reportingNodes/again.Seconds(), "unchanged-reports/s")
	}
}

func nodesReports(service string) []remote.Report {
	out := make([]remote.Report, reportingNodes)
	for n := range out {
		out[n].Node = fmt.Sprint("n", n)
		for i := range perNode {
			out[n].Endpoints = append(out[n].Endpoints, registry.Endpoint{
				Key: registry.Key{
					Origin: reporting, Service: fmt.Sprint(service, i), Protocol: registry.HTTP,
					IP: netip.AddrFrom4([4]byte{10, 0, byte(n), byte(i)}),
				},
				Ports: []registry.Port{{Name: "http", Number: 8080}}, Weight: 1, Health: registry.Healthy, Zone: "a1", Node: out[n].Node,
			})
		}
	}
	return out
}

// putRaw puts what reports hold and returns how long it took.
func putRaw(b *testing.B, client *clientv3.Client, reports []remote.Report) time.Duration {
	b.Helper()
	var ops []clientv3.Op
	for _, r := range reports {
		for _, e := range r.Endpoints {
			value, err := wire.Value(e)
			if err != nil {
				b.Fatal(err)
			}
			e.Cluster = "raw" // not among what the nodes have
			ops = append(ops, clientv3.OpPut(keyspace.Format(e.Key), string(value)))
		}
	}
	start := time.Now()
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(8)
	for len(ops) > 0 {
		batch := ops[:min(len(ops), registry.MaxBatch)]
		ops = ops[len(batch):]
		g.Go(func() error {
			_, err := client.Txn(ctx).Then(batch...).Commit()
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

func head(b *testing.B, client *clientv3.Client) int64 {
	b.Helper()
	resp, err := client.Get(b.Context(), keyspace.StoreKey)
	if err != nil {
		b.Fatal(err)
	}
	return resp.Header.Revision
}

// reporter is a registrar with a client for each node.
type reporter struct{ clients []*remote.Registry }

func startReporting(b *testing.B, client *clientv3.Client) *reporter {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	fail := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	census := registrar.NewCensus(registrar.CensusConfig{Origin: reporting})
	store, err := etcd.New(etcd.Config{Client: client, Origin: reporting, Log: log, Present: census.Present, Known: census.Known})
	fail(err)
	feed, err := etcd.NewFeed(etcd.FeedConfig{Client: client, Log: log})
	fail(err)
	presence, err := etcd.NewPresence(etcd.PresenceConfig{Client: client, Origin: reporting, Name: "r1", Log: log})
	fail(err)
	rpc, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	server, err := registrar.New(registrar.Config{
		Origin: reporting, Store: store, Feed: etcdfeed.New(feed), GRPC: rpc, HTTP: web, Census: census, Presence: presence,
	})
	fail(err)
	ctx, cancel := context.WithCancel(context.Background())
	var parts errgroup.Group
	parts.Go(func() error { return server.Run(ctx) })
	parts.Go(func() error { return presence.Run(ctx) })
	r := &reporter{}
	b.Cleanup(func() {
		for _, c := range r.clients {
			c.Close()
		}
		cancel()
		if err := parts.Wait(); err != nil {
			b.Error(err)
		}
	})
	for range reportingNodes {
		c, err := remote.New(rpc.Addr().String())
		fail(err)
		r.clients = append(r.clients, c)
		_, err = c.Regions(b.Context()) // connects
		for registry.KindOf(err) == registry.Unavailable && err != nil {
			_, err = c.Regions(b.Context())
		}
		fail(err)
	}
	return r
}

// all has every node report at once and returns how long that took.
func (r *reporter) all(b *testing.B, reports []remote.Report) time.Duration {
	b.Helper()
	start := time.Now()
	g, ctx := errgroup.WithContext(b.Context())
	for i, c := range r.clients {
		g.Go(func() error {
			out, err := c.Report(ctx, reports[i])
			if err == nil && len(out.Conflicts) > 0 {
				return fmt.Errorf("%d conflicts", len(out.Conflicts))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}
