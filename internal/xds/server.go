package xds

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/registry"
)

// Server is an xDS server. What it serves it follows at its source while somebody
// asks for it.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	statusv3.UnimplementedClientStatusDiscoveryServiceServer
	cfg   Config
	cache *cache
	// stopping ends, by stop, with all streams.
	stopping context.Context
	stop     context.CancelCauseFunc
	// streams are their handlers, and the goroutines that they receive in.
	streams sync.WaitGroup

	mu       sync.Mutex
	sessions map[*session]struct{}
}

var errStopping = registry.Errorf(registry.Unavailable, "the xDS server is stopping: connect again")

// New returns a server that serves nothing yet: see Register and Run.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, cache: newCache(cfg), sessions: map[*session]struct{}{}}
	s.stopping, s.stop = context.WithCancelCause(context.Background())
	cfg.Metrics.leftOut.watch(s.cache.unreachable)
	return s, nil
}

// Register puts the server's services on a gRPC server, before that serves: the
// aggregated discovery service and, for its status, the client status discovery
// service. Errors of both are those of package registry; the gRPC server turns them
// into statuses.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, s)
	statusv3.RegisterClientStatusDiscoveryServiceServer(r, s)
}

// Run follows the source until ctx ends, ends all streams, and returns nil once
// nothing of it runs any more. A stream that is sending ends when its connection
// does, at the latest. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	s.cache.run(ctx)
	s.mu.Lock()
	s.stop(errStopping)
	s.mu.Unlock()
	s.streams.Wait()
	return nil
}

// StreamAggregatedResources serves the state of the world.
func (s *Server) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.serve(stream.Context(), sotw{stream}, false)
}

// DeltaAggregatedResources serves deltas.
func (s *Server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.serve(stream.Context(), delta{stream}, true)
}

// wire is a stream of either protocol.
type wire interface {
	receive() (request, error)
	send(*response) error
}

// serve serves one stream until it ends, or the server does.
func (s *Server) serve(ctx context.Context, w wire, delta bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	session, err := s.open(ctx, delta)
	if err != nil {
		return err
	}
	defer s.close(session)
	requests := s.receive(ctx, cancel, w)
	var wait time.Duration
	for {
		r, got, err := session.wait(ctx, requests, wait)
		if err != nil {
			return ended(err)
		}
		if got {
			if err := session.take(r, s.cfg.now()); err != nil {
				return err
			}
		}
		if wait, err = s.answer(session, w); err != nil {
			return err
		}
	}
}

// ended is nil for a client that has no more to ask.
func ended(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// receive passes on what the client sends. The end of that ends ctx.
func (s *Server) receive(ctx context.Context, cancel context.CancelCauseFunc, w wire) <-chan request {
	requests := make(chan request)
	s.streams.Go(func() {
		for {
			r, err := w.receive()
			if err != nil {
				cancel(err)
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	})
	return requests
}

// answer sends what is due, and returns after how long to look again.
func (s *Server) answer(session *session, w wire) (time.Duration, error) {
	out, wait := session.due(s.cfg.now())
	for _, r := range out {
		if err := w.send(r); err != nil {
			return 0, err
		}
		s.cfg.Metrics.responses.WithLabelValues(r.kind.String()).Inc()
		s.cfg.Metrics.pushed.WithLabelValues(r.kind.String()).Add(float64(len(r.resources)))
	}
	return wait, nil
}

// open begins a stream, unless the server is stopping.
func (s *Server) open(ctx context.Context, delta bool) (*session, error) {
	n := &session{
		cache: s.cache, home: s.cfg.Home, log: s.cfg.Log, metrics: s.cfg.Metrics, delta: delta,
		from: clientOf(ctx), since: time.Now(), woken: newWatcher(), follows: map[string]bool{},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Err() != nil {
		return nil, errStopping
	}
	s.streams.Add(1)
	s.sessions[n] = struct{}{}
	return n, nil
}

func (s *Server) close(n *session) {
	defer s.streams.Done()
	n.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, n)
}

// clientOf is who a stream's client has proven to be, if anybody, and its address.
func clientOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	address := p.Addr.String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	if t, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		return access.Of(t.State.VerifiedChains[0][0]).String() + " at " + address
	}
	return address
}
