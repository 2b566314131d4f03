package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/internal/mirrors"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/etcdfeed"
	"github.com/aether-federation/aether/internal/registrar/sweep"
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

// logger writes as c says, to standard error.
func (a *app) logger(c config.Registrar) (*slog.Logger, error) {
	level, err := c.Level()
	if err != nil {
		return nil, err
	}
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.err, options)), nil
	}
	return slog.New(slog.NewTextHandler(a.err, options)), nil
}

// runRegistrar runs a registrar until ctx ends.
func (a *app) runRegistrar(ctx context.Context, c config.Registrar) (err error) {
	log, err := a.logger(c)
	if err != nil {
		return err
	}
	// Listening comes first: a port that is taken is told before anything runs.
	listeners, err := listen(c)
	if err != nil {
		return err
	}
	defer listeners.close()

	store, err := openEtcd(ctx, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close()) }()
	r, err := join(c, log, store, listeners)
	if err != nil {
		return err
	}
	log.Info("serving", "version", versionText(), "region", c.Region, "cluster", c.ClusterName,
		"grpc", listeners.grpc.Addr().String(), "http", listeners.http.Addr().String())
	return r.run(ctx)
}

// process is what runs in one registrar process.
type process struct {
	server   *registrar.Server
	mirrors  *mirrors.Mirrors
	presence *etcd.Presence
	sweeper  *sweep.Sweeper
	store    *ownEtcd
}

func (p process) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.server.Run(ctx) })
	g.Go(func() error { return p.mirrors.Run(ctx) })
	g.Go(func() error { return p.presence.Run(ctx) })
	g.Go(func() error { return p.sweeper.Run(ctx) })
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

// join builds the parts; nothing runs yet.
func join(c config.Registrar, log *slog.Logger, own *ownEtcd, l listeners) (process, error) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := registrar.NewMetrics(reg)
	origin := registry.Origin{Region: c.Region, Cluster: c.ClusterName}
	census := registrar.NewCensus(registrar.CensusConfig{Origin: origin, Grace: c.SweepGrace, Log: log})
	store, err := etcd.New(etcd.Config{
		Client: own.client, Origin: origin, Log: log, Present: census.Present, Known: census.Known,
	})
	if err != nil {
		return process{}, err
	}
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
	tls, err := c.ListenerTLS(log)
	if err != nil {
		return process{}, err
	}
	server, err := registrar.New(registrar.Config{
		Origin: origin, Store: store, Feed: etcdfeed.New(f), Peers: m,
		Census: census, Presence: presence, Sweeper: sweeper,
		GRPC: l.grpc, HTTP: l.http, TLS: tls, Log: log, Metrics: metrics, Gatherer: reg,
	})
	return process{server: server, mirrors: m, presence: presence, sweeper: sweeper, store: own}, err
}

type listeners struct{ grpc, http net.Listener }

func listen(c config.Registrar) (l listeners, err error) {
	if l.grpc, err = net.Listen("tcp", c.GRPCAddress); err != nil {
		return l, fmt.Errorf("listen at --grpc-address: %w", err)
	}
	if l.http, err = net.Listen("tcp", c.HTTPAddress); err != nil {
		return l, errors.Join(fmt.Errorf("listen at --http-address: %w", err), l.grpc.Close())
	}
	return l, nil
}

// close closes what the server has not closed already.
func (l listeners) close() {
	_ = l.grpc.Close()
	_ = l.http.Close()
}
