package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/internal/mirrors"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/internal/registrar/sweep"
	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
)

func (a *app) registrarCommand() *cobra.Command {
	var file string
	c := config.Default()
	cmd := &cobra.Command{
		Use:   "registrar",
		Short: "Run a registrar: take registrations, serve all regions, mirror to peers",
		Example: `  aether registrar
  aether registrar --region a --cluster-name c1 --etcd-endpoints 10.0.0.1:2379 --peer-etcd b=10.1.0.1:2379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if file != "" {
				if c, err = merge(cmd.Flags(), file); err != nil {
					return usage(err)
				}
			}
			if err := c.Validate(); err != nil {
				return usage(err)
			}
			return a.runRegistrar(cmd.Context(), c)
		},
	}
	registrarFlags(cmd.Flags(), &c)
	cmd.Flags().StringVar(&file, "config", "", "YAML file with the same keys; flags win")
	return cmd
}

// logger writes from a level on in a format, to standard error.
func (a *app) logger(level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(a.err, options))
	}
	return slog.New(slog.NewTextHandler(a.err, options))
}

// gcPercent is how much a registrar's heap may grow between collections, unless
// GOGC says otherwise: most of it is the view, which stays. With 100,000 endpoints
// 40 takes 238 to 244 MB at the peak of loading, and 50 takes 252 to 256 MB.
const gcPercent = 40

// runRegistrar runs a registrar until ctx ends.
func (a *app) runRegistrar(ctx context.Context, c config.Registrar) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	level, err := c.Level()
	if err != nil {
		return err
	}
	log := a.logger(level, c.LogFormat)
	// Ports come first: one that is taken is told before anything runs.
	listeners, err := listen(c, log)
	if err != nil {
		return err
	}
	defer listeners.close()

	store, err := awaitEtcd(ctx, c, log, registrar.Waiting{HTTP: listeners.http, TLS: listeners.httpTLS, For: ownEtcdName(c), Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close()) }()
	if err := listeners.openGRPC(c); err != nil {
		return err
	}
	r, err := join(c, log, store, listeners)
	if err != nil {
		return err
	}
	log.Info("serving", "version", versionText(), "region", c.Region, "cluster", c.ClusterName,
		"grpc", listeners.grpc.Addr().String(), "http", listeners.http.Addr().String())
	return r.run(ctx)
}

// awaitEtcd returns the own etcd once it answers. Until then HTTP says so.
func awaitEtcd(ctx context.Context, c config.Registrar, log *slog.Logger, w registrar.Waiting) (*ownEtcd, error) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	g.Go(func() error { return w.Run(waiting) })
	store, err := openEtcd(ctx, c, log)
	stop()
	if waitErr := g.Wait(); waitErr != nil && err == nil {
		return nil, errors.Join(waitErr, store.close())
	}
	return store, err
}

// process is what runs in one registrar process.
type process struct {
	server   *registrar.Server
	xds      *xds.Server
	mirrors  *mirrors.Mirrors
	presence *etcd.Presence
	sweeper  *sweep.Sweeper
	access   *config.AccessFile
	store    *ownEtcd
	log      *slog.Logger
}

func (p process) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return etcd.Tend(ctx, p.store.client, p.log) })
	g.Go(func() error { return p.server.Run(ctx) })
	g.Go(func() error { return p.xds.Run(ctx) })
	g.Go(func() error { return p.mirrors.Run(ctx) })
	g.Go(func() error { return p.presence.Run(ctx) })
	g.Go(func() error { return p.sweeper.Run(ctx) })
	g.Go(func() error { return p.access.Run(ctx) })
	g.Go(func() error {
		select {
		case err := <-p.store.failed():
			return fmt.Errorf("run embedded etcd: %w", err)
		case <-ctx.Done():
			return nil
		}
	})
	return g.Wait()
}

// processMetrics are those of the process itself; its parts add theirs.
func processMetrics() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// join builds the parts; nothing runs yet.
func join(c config.Registrar, log *slog.Logger, own *ownEtcd, l *listeners) (process, error) {
	reg := processMetrics()
	metrics := registrar.NewMetrics(reg)
	origin := registry.Origin{Region: c.Region, Cluster: c.ClusterName}
	census := registrar.NewCensus(registrar.CensusConfig{Origin: origin, Grace: c.SweepGrace, Log: log})
	store, err := etcd.New(etcd.Config{
		Client: own.client, Origin: origin, Log: log, Present: census.Present, Known: census.Known, OnCommit: metrics.Committing,
	})
	if err != nil {
		return process{}, err
	}
	metrics.ShowQueue(store.Waiting)
	f, err := etcd.NewFeed(etcd.FeedConfig{Client: own.client, Log: log, OnUnparsable: metrics.Unparsable})
	if err != nil {
		return process{}, err
	}
	peers, err := c.Peers()
	if err != nil {
		return process{}, err
	}
	m, err := mirrors.New(mirrors.Config{
		Origin: origin, Source: store, Peers: peers, LeaseTTL: c.LeaseTTL, Log: log, Metrics: reg,
	})
	if err != nil {
		return process{}, err
	}
	presence, sweeper, err := ghosts(c, log, own, store, census, reg)
	if err != nil {
		return process{}, err
	}
	policy, err := c.AccessFile(log, metrics.PolicyRead)
	if err != nil {
		return process{}, err
	}
	server, err := registrar.New(registrar.Config{
		Origin: origin, Store: store, Feed: etcdfeed.New(f), Peers: m,
		Census: census, Presence: presence, Sweeper: sweeper,
		GRPC: l.grpc, HTTP: l.http, TLS: l.grpcTLS, HTTPTLS: l.httpTLS, Access: policy.Policy(), Limits: c.Limits(),
		LastResort: c.Lapsed == config.LapsedLastResort, Log: log, Metrics: metrics, Gatherer: reg,
	})
	if err != nil {
		return process{}, err
	}
	x, err := discovery(c, log, server, reg)
	return process{server: server, xds: x, mirrors: m, presence: presence, sweeper: sweeper, access: policy, store: own, log: log}, err
}

// discovery serves the registrar's view by xDS, on the registrar's own gRPC server.
func discovery(c config.Registrar, log *slog.Logger, r *registrar.Server, reg prometheus.Registerer) (*xds.Server, error) {
	home := xds.Client{Locality: registry.Locality{Region: c.Region}, Network: c.Network}
	x, err := xds.New(xds.Config{
		Source:      r.View(),
		Home:        func() xds.Client { return home },
		Translation: c.Translation(), Log: log, Metrics: xds.NewMetrics(reg),
	})
	if err != nil {
		return nil, err
	}
	x.Register(r)
	return x, nil
}

// listeners are where the process is reached. That of gRPC is not open before
// something serves it: a client is refused and tries again, rather than hang.
type listeners struct {
	http *net.TCPListener
	grpc net.Listener
	// nil: plain text.
	httpTLS, grpcTLS *tls.Config
}

func listen(c config.Registrar, log *slog.Logger) (*listeners, error) {
	var l listeners
	var err error
	if l.grpcTLS, l.httpTLS, err = c.ListenerTLS(log); err != nil {
		return nil, err
	}
	if err := errors.Join(l.openGRPC(c), l.closeGRPC()); err != nil {
		return nil, err
	}
	h, err := net.Listen("tcp", c.HTTPAddress)
	if err != nil {
		return nil, fmt.Errorf("listen at --http-address: %w", err)
	}
	l.http = h.(*net.TCPListener)
	return &l, nil
}

func (l *listeners) openGRPC(c config.Registrar) (err error) {
	if l.grpc, err = net.Listen("tcp", c.GRPCAddress); err != nil {
		return fmt.Errorf("listen at --grpc-address: %w", err)
	}
	return nil
}

func (l *listeners) closeGRPC() error {
	if l.grpc == nil {
		return nil
	}
	return l.grpc.Close()
}

// close closes what the server has not closed already.
func (l *listeners) close() {
	_ = l.closeGRPC()
	_ = l.http.Close()
}
