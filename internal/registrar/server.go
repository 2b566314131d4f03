package registrar

import (
	"context"
	"fmt"
	"net"
	"net/http"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/serving"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Server is one registrar.
type Server struct {
	cfg     Config
	view    *View
	service *service
	health  *health.Server
	grpc    *grpc.Server
	http    *http.Server
}

// New returns a registrar that is not running yet.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Feed = counted{cfg.Feed, cfg.Census}
	s := &Server{cfg: cfg, view: newView(cfg), health: health.NewServer()}
	cfg.Metrics.view.watch(s.view)
	cfg.Metrics.census.watch(cfg.Census)
	s.service = &service{
		own: cfg.Origin, view: s.view, census: cfg.Census, store: cfg.Store,
		presence: cfg.Presence, sweeper: cfg.Sweeper, peers: cfg.Peers, metrics: cfg.Metrics,
		writeTimeout: cfg.WriteTimeout, guard: newGuard(cfg),
	}
	s.service.reads = serving.NewReads(s.service.readable())
	s.setHealth(healthv1.HealthCheckResponse_NOT_SERVING)
	s.grpc = newGRPC(cfg, s.service, s.health)
	s.http = serving.NewHTTP(newHTTP(cfg.Log, s.service, cfg.Gatherer), cfg.HTTPTLS, cfg.Log)
	return s, nil
}

// View returns the view that is served.
func (s *Server) View() *View { return s.view }

// Run serves until ctx ends, then stops in order: not ready any more, streams
// ended, calls under way finished or, after the stop timeout, broken off. It
// returns nil then, and an error when it could not go on. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	run, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, run := errgroup.WithContext(run)
	g.Go(func() error { return s.follow(run) })
	g.Go(func() error { return serving.ServeGRPC(s.grpc, s.crowded(s.cfg.GRPC)) })
	g.Go(func() error { return serving.ServeHTTP(s.http, s.crowded(s.cfg.HTTP)) })
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
	s.service.reads.Wait()
	return err
}

// follow runs the view until ctx ends.
func (s *Server) follow(ctx context.Context) error {
	err := s.view.run(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("follow the local etcd: %w", err)
}

// announce says that the server is ready once it is.
func (s *Server) announce(ctx context.Context) error {
	select {
	case <-s.view.Ready():
		s.setHealth(healthv1.HealthCheckResponse_SERVING)
		s.cfg.Log.Info("view loaded", "endpoints", s.view.size())
	case <-ctx.Done():
	}
	return nil
}

// crowded bounds the connections of each address.
func (s *Server) crowded(l net.Listener) net.Listener {
	return serving.Crowded(l, s.cfg.Limits.Connections, s.cfg.Log, s.cfg.Metrics.limited.WithLabelValues("connections"))
}

// newGuard says loudly when it has nothing to guard with.
func newGuard(cfg Config) *guard {
	if cfg.Access == nil {
		cfg.Log.Warn("no access control: whoever reaches the listeners may read and write everything")
	}
	return &guard{
		policy: cfg.Access, limiter: access.NewLimiter(cfg.Limits), audit: &auditor{cfg.Log}, metrics: cfg.Metrics,
	}
}

// shutdown stops serving: see Run.
func (s *Server) shutdown(ctx context.Context) error {
	s.cfg.Log.Info("stopping")
	s.health.Shutdown()
	s.service.reads.Stop()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopTimeout)
	defer cancel()
	return serving.Stop(ctx, s.grpc, s.http)
}

func (s *Server) setHealth(status healthv1.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", status)
	s.health.SetServingStatus(registryv1.RegistryService_ServiceDesc.ServiceName, status)
}
