package main

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aether-federation/aether/internal/config"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/internal/registrar/sweep"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
)

// ghosts builds what keeps nodes present and removes what absent ones left.
func ghosts(c config.Registrar, log *slog.Logger, own *ownEtcd, store *etcd.Store, census *registrar.Census, reg prometheus.Registerer) (*etcd.Presence, *sweep.Sweeper, error) {
	name, err := processName()
	if err != nil {
		return nil, nil, err
	}
	origin := registry.Origin{Region: c.Region, Cluster: c.ClusterName}
	presence, err := etcd.NewPresence(etcd.PresenceConfig{
		Client: own.client, Origin: origin, Name: name, TTL: c.PresenceTTL,
		Log: log.With("component", "presence", "region", c.Region),
	})
	if err != nil {
		return nil, nil, err
	}
	sweeper, err := sweep.New(sweep.Config{
		Origin: origin, Name: name, Client: own.client, Store: store, Census: census,
		Grace: c.SweepGrace, MaxShare: c.SweepMaxShare, Log: log, Metrics: reg,
	})
	return presence, sweeper, err
}

// processName tells this registrar from every other, those that ran before on the
// same host included.
func processName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name this registrar: %w", err)
	}
	suffix := fmt.Sprintf("-%d-%s", os.Getpid(), strings.ToLower(rand.Text()[:6]))
	name := host[:min(len(host), registry.MaxNode-len(suffix))] + suffix
	if registry.ValidateNode(name) != nil {
		name = "registrar" + suffix // the host's name has other characters
	}
	return name, nil
}
