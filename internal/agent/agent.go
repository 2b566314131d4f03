package agent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/agent/catalog"
	"github.com/aether-federation/aether/internal/agent/dns"
	"github.com/aether-federation/aether/internal/agent/local"
	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry"
)

// Config is what an Agent is made of. Log and Metrics are given to each part that
// has none.
type Config struct {
	Node    NodeConfig
	Catalog catalog.Config
	// Listen is where programs on this machine ask. The agent closes the listeners.
	Listen Listeners
	// RegionOrder are other regions, the nearest first, for DNS and xDS.
	RegionOrder []string
	Log         *slog.Logger
	Metrics     *prometheus.Registry
}

// Listeners are all that an agent listens at; each may be missing.
type Listeners struct {
	// GRPC and HTTP serve what they are named after, Both serve both.
	GRPC, HTTP, Both []net.Listener
	// UDP and TCP serve DNS, at one address.
	UDP net.PacketConn
	TCP net.Listener
}

// Close closes all of them, for one who opened them and has no agent yet.
func (l Listeners) Close() error {
	var errs []error
	for _, some := range [][]net.Listener{l.GRPC, l.HTTP, l.Both} {
		for _, one := range some {
			errs = append(errs, one.Close())
		}
	}
	if l.UDP != nil {
		errs = append(errs, l.UDP.Close(), l.TCP.Close())
	}
	return errors.Join(errs...)
}

// Agent is all that runs in one agent process.
type Agent struct {
	cfg     Config
	node    *Node
	catalog *catalog.Catalog
	// parts run until the node has left.
	parts []func(context.Context) error
}

// New returns an Agent that does nothing before Run.
func New(cfg Config) (*Agent, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = prometheus.NewRegistry()
	}
	a := &Agent{cfg: cfg}
	cfg.Node.Log, cfg.Node.Metrics = cfg.Log, cfg.Metrics
	cfg.Catalog.Log, cfg.Catalog.Metrics = cfg.Log, cfg.Metrics
	var err error
	if a.node, err = NewNode(cfg.Node); err != nil {
		return nil, err
	}
	if a.catalog, err = catalog.New(cfg.Catalog); err != nil {
		return nil, err
	}
	a.parts = append(a.parts, a.catalog.Run)
	if err := errors.Join(a.addLocal(), a.addDNS()); err != nil {
		return nil, err
	}
	return a, nil
}

// addLocal adds the API for programs, where there is a listener for it.
func (a *Agent) addLocal() error {
	l := a.cfg.Listen
	if len(l.GRPC)+len(l.HTTP)+len(l.Both) == 0 {
		return nil
	}
	discovery, err := a.discovery()
	if err != nil {
		return err
	}
	server, err := local.New(local.Config{
		Catalog: a.catalog, View: a.catalog.View, Node: a.node, GRPC: l.GRPC, HTTP: l.HTTP, Both: l.Both,
		HandleHTTP:   func(mux *http.ServeMux) { mux.HandleFunc("GET /v1/agent", a.answerStatus) },
		RegisterGRPC: discovery.Register,
		Gatherer:     a.cfg.Metrics, Log: a.cfg.Log,
	})
	if err != nil {
		return err
	}
	a.parts = append(a.parts, discovery.Run, server.Run)
	return nil
}

// discovery serves the catalog by xDS, from the last known view if need be.
func (a *Agent) discovery() (*xds.Server, error) {
	return xds.New(xds.Config{
		Source: catalogSource{a.catalog},
		Home: func() xds.Client {
			c := a.client()
			return xds.Client{Locality: c.Locality, Network: c.Network}
		},
		Translation: xds.Translation{RegionOrder: a.cfg.RegionOrder},
		Log:         a.cfg.Log, Metrics: xds.NewMetrics(a.cfg.Metrics),
	})
}

// catalogSource is a catalog that tells nothing before it knows something.
type catalogSource struct{ *catalog.Catalog }

// Watch is the view's, once the catalog is ready.
func (s catalogSource) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	select {
	case <-s.Ready():
		return s.Catalog.Watch(ctx, q, fn)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// addDNS adds DNS, where there is a listener for it.
func (a *Agent) addDNS() error {
	if a.cfg.Listen.UDP == nil {
		return nil
	}
	server, err := dns.New(dns.Config{
		Catalog: a.catalog, Client: a.client, UDP: a.cfg.Listen.UDP, TCP: a.cfg.Listen.TCP,
		Log: a.cfg.Log, Metrics: a.cfg.Metrics,
	})
	if err != nil {
		return err
	}
	a.parts = append(a.parts, server.Run)
	return nil
}

// client is where programs on this machine are.
func (a *Agent) client() locality.Client {
	d := a.cfg.Node.Defaults
	return locality.Client{
		Locality: registry.Locality{Region: a.catalog.Region(), Zone: d.Zone}, Network: d.Network, Order: a.cfg.RegionOrder,
	}
}

// Run works until ctx ends and the node has left, and says whether it could.
// Programs are answered until then. When a part of the agent fails the others end
// at once, and everything stays registered.
func (a *Agent) Run(ctx context.Context) error {
	whole, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, whole := errgroup.WithContext(whole)
	g.Go(func() error {
		defer stop()
		return a.node.run(ctx, whole)
	})
	for _, run := range a.parts {
		g.Go(func() error {
			err := run(whole)
			if errors.Is(err, context.Canceled) && whole.Err() != nil {
				return nil
			}
			return err
		})
	}
	return g.Wait()
}

// Status tells how the agent is.
func (a *Agent) Status() Status {
	s := a.node.Status()
	s.View.Region = a.catalog.Region()
	if age := a.catalog.Age(); age >= 0 {
		s.View.Known, s.View.Age = true, age.Round(time.Millisecond).String()
	}
	return s
}

// answerStatus answers with the agent's [Status].
func (a *Agent) answerStatus(out http.ResponseWriter, _ *http.Request) {
	out.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(out).Encode(a.Status()); err != nil {
		a.cfg.Log.Debug("a status was not answered", "error", err)
	}
}
