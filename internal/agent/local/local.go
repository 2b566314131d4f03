package local

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

// DefaultStopTimeout is how long an orderly stop waits for calls under way.
const DefaultStopTimeout = 5 * time.Second

// Node takes what programs register. Its errors are or wrap a [registry.Error].
type Node interface {
	// Register adds endpoints to the node's, or replaces them. Unless ttl is 0, each
	// is dropped when it was not registered again for that long.
	Register(ctx context.Context, endpoints []registry.Endpoint, ttl time.Duration) error
	// Unregister drops endpoints that were registered here and returns how many
	// there were.
	Unregister(ctx context.Context, claims []registry.Claim) (removed int, err error)
	// SetHealth changes the health of endpoints of the node; NotFound, with nothing
	// changed, if one is not there.
	SetHealth(ctx context.Context, claims []registry.Claim, health registry.Health) error
}

// Catalog is what is read; the agent's catalog is one.
type Catalog interface {
	// Ready is closed once there is something to serve.
	Ready() <-chan struct{}
	Ages() map[string]time.Duration
	Regions() *registryv1.ListRegionsResponse
	// Mark adds how old the catalog is to the header of an answer.
	Mark(http.Header)
}

// Config says what is served and where.
type Config struct {
	Catalog Catalog
	// View is the catalog's.
	View *view.View
	// Node takes registrations; nil: none are taken.
	Node Node
	// GRPC, HTTP and Both are the listeners to serve on, each for what it is named
	// after. The server closes them.
	GRPC, HTTP, Both []net.Listener
	// TLS of GRPC and HTTP; nil: plain text. Both is plain text.
	TLS *tls.Config
	// HandleHTTP and RegisterGRPC, if they are not nil, add what else the agent
	// serves.
	HandleHTTP   func(*http.ServeMux)
	RegisterGRPC func(grpc.ServiceRegistrar)
	// Gatherer is what /metrics shows; nil: nothing.
	Gatherer prometheus.Gatherer
	// StopTimeout bounds an orderly stop. 0: DefaultStopTimeout.
	StopTimeout time.Duration
	Log         *slog.Logger
}

// Validate says in whole sentences what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, sentence string) {
		if !ok {
			errs = append(errs, errors.New(sentence))
		}
	}
	check(c.Catalog != nil && c.View != nil, "A local API needs a catalog to serve.")
	check(len(c.GRPC)+len(c.HTTP)+len(c.Both) > 0, "A local API needs a listener.")
	check(c.StopTimeout >= 0, "StopTimeout must not be negative.")
	return errors.Join(errs...)
}

// Server is the agent's local API.
type Server struct {
	cfg    Config
	reads  *serving.Reads
	health *health.Server
	// plain serve Both, the others GRPC and HTTP.
	grpc, plainGRPC *grpc.Server
	http, plainHTTP *http.Server
}

var (
	errNothingKnown = registry.Errorf(registry.Unavailable, "the agent knows nothing yet, because no registrar has answered: try again in a moment")
	errStopping     = registry.Errorf(registry.Unavailable, "the agent is stopping: connect again")
)

// New returns a server that is not running yet.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("component", "local")
	if cfg.Gatherer == nil {
		cfg.Gatherer = prometheus.NewRegistry()
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = DefaultStopTimeout
	}
	s := &Server{cfg: cfg, health: health.NewServer()}
	s.reads = serving.NewReads(serving.Readable{
		View: cfg.View, Ready: s.ready, Ages: cfg.Catalog.Ages, Regions: cfg.Catalog.Regions,
		Mark: cfg.Catalog.Mark, Stopping: errStopping,
	})
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	s.grpc, s.plainGRPC = s.newGRPC(cfg.TLS), s.newGRPC(nil)
	handler := s.handler()
	s.http, s.plainHTTP = serving.NewHTTP(handler, cfg.TLS, cfg.Log), serving.NewHTTP(handler, nil, cfg.Log)
	return s, nil
}

func (s *Server) newGRPC(t *tls.Config) *grpc.Server {
	server := grpc.NewServer(append(serving.GRPCOptions(s.cfg.Log, t),
		grpc.ChainStreamInterceptor(serving.EndHealth(s.reads.Stopped())))...)
	registryv1.RegisterRegistryServiceServer(server, rpc{Reads: s.reads, writes: writes{s.cfg.Node}})
	healthv1.RegisterHealthServer(server, s.health)
	reflection.Register(server)
	if s.cfg.RegisterGRPC != nil {
		s.cfg.RegisterGRPC(server)
	}
	return server
}

func (s *Server) ready() error {
	select {
	case <-s.cfg.Catalog.Ready():
		return nil
	default:
		return errNothingKnown
	}
}

// Run serves until ctx ends, then stops in order: streams ended, calls under way
// finished or, after the stop timeout, broken off. It returns nil then, and an
// error when it could not go on. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	run, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, run := errgroup.WithContext(run)
	for _, l := range s.cfg.GRPC {
		g.Go(func() error { return serving.ServeGRPC(s.grpc, l) })
	}
	for _, l := range s.cfg.HTTP {
		g.Go(func() error { return serving.ServeHTTP(s.http, l) })
	}
	for _, l := range s.cfg.Both {
		both := newSplit(l)
		g.Go(both.run)
		g.Go(func() error { return serving.ServeGRPC(s.plainGRPC, both.grpc) })
		g.Go(func() error { return serving.ServeHTTP(s.plainHTTP, both.http) })
	}
	g.Go(func() error { return s.announce(run) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-run.Done():
		}
		err := s.shutdown(context.WithoutCancel(ctx))
		end()
		return err
	})
	err := g.Wait()
	s.reads.Wait()
	return err
}

// announce says that the server is ready once it is.
func (s *Server) announce(ctx context.Context) error {
	select {
	case <-s.cfg.Catalog.Ready():
		s.setHealth(healthv1.HealthCheckResponse_SERVING)
	case <-ctx.Done():
	}
	return nil
}

func (s *Server) shutdown(ctx context.Context) error {
	s.health.Shutdown()
	s.reads.Stop()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopTimeout)
	defer cancel()
	var g errgroup.Group
	g.Go(func() error { return serving.Stop(ctx, s.grpc, s.http) })
	g.Go(func() error { return serving.Stop(ctx, s.plainGRPC, s.plainHTTP) })
	return g.Wait()
}

func (s *Server) setHealth(status healthv1.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", status)
	s.health.SetServingStatus(registryv1.RegistryService_ServiceDesc.ServiceName, status)
}
