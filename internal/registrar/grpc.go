package registrar

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry/grpcerr"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

const (
	// pingIdle is after how much silence a client is pinged, and pingTimeout
	// how long it may take to answer before its connection is closed.
	pingIdle    = 30 * time.Second
	pingTimeout = 10 * time.Second
	// pingMin is how often a client may ping.
	pingMin = 5 * time.Second
)

// rpc serves registryv1.RegistryService.
type rpc struct {
	registryv1.UnimplementedRegistryServiceServer
	*service
}

// newGRPC returns a gRPC server with the registry, health and reflection.
func newGRPC(cfg Config, s *service, h *health.Server) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdle, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(logUnary(cfg.Log), s.guard.unary),
		grpc.ChainStreamInterceptor(logStream(cfg.Log), s.guard.stream, endHealth(s.stopContext)),
	}
	if cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	server := grpc.NewServer(options...)
	registryv1.RegisterRegistryServiceServer(server, rpc{service: s})
	healthv1.RegisterHealthServer(server, h)
	reflection.Register(server)
	return server
}

func logUnary(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start := time.Now()
		answer, err := handler(ctx, req)
		logCall(ctx, log, info.FullMethod, start, err)
		return answer, grpcerr.ToStatus(err)
	}
}

func logStream(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		start := time.Now()
		err := handler(srv, stream)
		logCall(stream.Context(), log, info.FullMethod, start, err)
		return grpcerr.ToStatus(err)
	}
}

// endHealth ends watches of the server's health when stop does: a client that
// watches would otherwise hold up an orderly stop. Other streams end themselves.
func endHealth(stop context.Context) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.FullMethod != healthv1.Health_Watch_FullMethodName {
			return handler(srv, stream)
		}
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(stop, cancel)()
		return handler(srv, boundStream{stream, ctx})
	}
}

// boundStream is a stream that ends with ctx.
type boundStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s boundStream) Context() context.Context { return s.ctx }

func logCall(ctx context.Context, log *slog.Logger, method string, start time.Time, err error) {
	if !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	attrs := []slog.Attr{slog.String("method", method), slog.Duration("took", time.Since(start))}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	log.LogAttrs(ctx, slog.LevelDebug, "grpc call", attrs...)
}

// Register implements registryv1.RegistryServiceServer, as do the methods below.
func (s rpc) Register(ctx context.Context, req *registryv1.RegisterRequest) (*registryv1.RegisterResponse, error) {
	endpoints, err := endpointsOf(req.GetEndpoints(), wire.FromProto)
	if err != nil {
		return nil, err
	}
	rev, err := s.register(ctx, req.GetTtl().AsDuration(), endpoints)
	if err != nil {
		return nil, err
	}
	return &registryv1.RegisterResponse{Revision: string(rev)}, nil
}

func (s rpc) Unregister(ctx context.Context, req *registryv1.UnregisterRequest) (*registryv1.UnregisterResponse, error) {
	claims, err := endpointsOf(req.GetEndpoints(), wire.ClaimFromProto)
	if err != nil {
		return nil, err
	}
	removed, rev, err := s.unregister(ctx, claims)
	if err != nil {
		return nil, err
	}
	return &registryv1.UnregisterResponse{Revision: string(rev), Removed: uint32(removed)}, nil
}

func (s rpc) List(_ context.Context, req *registryv1.ListRequest) (*registryv1.ListResponse, error) {
	if len(req.GetServices()) == 0 {
		return s.list(nil)
	}
	q, err := s.query(req.GetServices())
	if err != nil {
		return nil, err
	}
	return s.view.encodings.list(s.view.Snapshot(q), s.view.ages())
}

func (s rpc) ListServices(context.Context, *registryv1.ListServicesRequest) (*registryv1.ListServicesResponse, error) {
	return s.services()
}

func (s rpc) ListRegions(context.Context, *registryv1.ListRegionsRequest) (*registryv1.ListRegionsResponse, error) {
	return s.regions()
}

func (s rpc) ListPeers(ctx context.Context, _ *registryv1.ListPeersRequest) (*registryv1.ListPeersResponse, error) {
	return s.listPeers(ctx)
}

// watchStream is the stream of a Watch.
type watchStream = grpc.BidiStreamingServer[registryv1.WatchRequest, registryv1.WatchResponse]

// Watch ends when the client does, when the client is too slow, and when the
// registrar stops. A send that is blocked must not keep it: so each delivery is
// sent beside it, by a goroutine that an idle stream does not have, and that ends
// with the stream's context, which ends after the return.
func (s rpc) Watch(stream watchStream) error {
	sub, err := s.open(stream)
	if err != nil {
		return err
	}
	defer sub.close()
	ended, sent := make(chan error, 1), make(chan error, 1)
	s.streams.Go(func() {
		if err := s.receive(stream, sub); err != nil {
			ended <- err
		}
	})
	waiting := sub.notify
	for {
		select {
		case err := <-ended:
			return err
		case <-sub.cutoff:
			return errCutOff
		case <-s.stopContext.Done():
			return errStopping
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-waiting:
			if d, ok := sub.take(); ok {
				waiting = nil
				s.streams.Go(func() { sent <- send(stream, d) })
			}
		case err := <-sent:
			if err != nil {
				return err
			}
			waiting = sub.notify
		}
	}
}

// open reads the first request of a stream.
func (s rpc) open(stream watchStream) (*subscription, error) {
	req, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := s.loaded(stream.Context()); err != nil {
		return nil, err
	}
	q, err := s.query(req.GetServices())
	if err != nil {
		return nil, err
	}
	h, err := heldOf(req.GetHeld())
	if err != nil {
		return nil, err
	}
	if h != nil {
		s.view.reach(stream.Context(), h.seen)
	}
	return s.view.subscribe(q, h), nil
}

// receive takes changes of the query until the client has no more, which is not
// the end of the stream.
func (s rpc) receive(stream watchStream, sub *subscription) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		q, err := queryOf(req.GetServices())
		if err != nil {
			return err
		}
		sub.requery(q, req.GetHeld() != nil)
	}
}

func send(stream watchStream, d delivery) error {
	for m := range d.messages() {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}
