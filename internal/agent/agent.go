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
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/serving"
)

// closeFor bounds the wait for requests under way when the agent stops.
const closeFor = time.Second

// Config is what an Agent is made of.
type Config struct {
	Node *Node
	// HTTP are the listeners at which programs on this machine ask.
	HTTP []net.Listener
	// Gatherer has the metrics.
	Gatherer prometheus.Gatherer
	Log      *slog.Logger
}

// Agent is all that runs in one agent process.
type Agent struct{ cfg Config }

// New returns an Agent that does nothing before Run.
func New(cfg Config) (*Agent, error) {
	if cfg.Node == nil || cfg.Gatherer == nil {
		return nil, errors.New("an agent needs a node and metrics")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Agent{cfg: cfg}, nil
}

func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agent", a.status)
	mux.HandleFunc("GET /livez", serving.Alive)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.cfg.Gatherer, promhttp.HandlerOpts{}))
	return serving.Logged(a.cfg.Log, serving.Refusing(mux))
}

// status answers with the node's [Status].
func (a *Agent) status(out http.ResponseWriter, _ *http.Request) {
	out.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(out).Encode(a.cfg.Node.Status()); err != nil {
		a.cfg.Log.Debug("a status was not answered", "error", err)
	}
}

// Run works until ctx ends and the node has left, and says whether it could.
// Programs are answered until then. It closes the listeners. When a part of the
// agent fails the others end at once, and everything stays registered.
func (a *Agent) Run(ctx context.Context) error {
	whole, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, whole := errgroup.WithContext(whole)
	g.Go(func() error {
		defer stop()
		return a.cfg.Node.run(ctx, whole)
	})
	handler := a.handler()
	for _, l := range a.cfg.HTTP {
		g.Go(func() error { return a.serve(whole, l, handler) })
	}
	return g.Wait()
}

// serve answers at one listener until ctx ends.
func (a *Agent) serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := serving.NewHTTP(h, nil, a.cfg.Log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serving.ServeHTTP(server, l) })
	g.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeFor)
		defer cancel()
		if server.Shutdown(last) != nil {
			return server.Close()
		}
		return nil
	})
	return g.Wait()
}
