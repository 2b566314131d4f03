package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/aether-federation/aether/registry/grpcerr"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

const (
	// maxMessage bounds one gRPC request.
	maxMessage = 16 << 20
	// pingIdle is after how much silence a client is pinged, and pingTimeout
	// how long it may take to answer before its connection is closed.
	pingIdle    = 30 * time.Second
	pingTimeout = 10 * time.Second
	// pingMin is how often a client may ping.
	pingMin = 5 * time.Second
	// HeaderTimeout is how long a client may take to send a request's header,
	// and BodyTimeout the whole request.
	HeaderTimeout = 10 * time.Second
	BodyTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute
)

// GRPCOptions are those of every gRPC server: limits, keepalive, TLS unless it is
// nil, calls logged, and errors as statuses.
func GRPCOptions(log *slog.Logger, t *tls.Config) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdle, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMin, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(logUnary(log)),
		grpc.ChainStreamInterceptor(logStream(log)),
	}
	if t != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(t)))
	}
	return options
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

// EndHealth ends watches of the server's health when stop does: a client that
// watches would otherwise hold up an orderly stop. Other streams end themselves.
func EndHealth(stop context.Context) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.FullMethod != healthv1.Health_Watch_FullMethodName {
			return handler(srv, stream)
		}
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(stop, cancel)()
		return handler(srv, Bound(ctx, stream))
	}
}

// Bound returns stream as one whose context is ctx.
func Bound(ctx context.Context, stream grpc.ServerStream) grpc.ServerStream {
	return boundStream{stream, ctx}
}

type boundStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s boundStream) Context() context.Context { return s.ctx }

// NewHTTP returns an HTTP server of h that no client can hold up.
func NewHTTP(h http.Handler, t *tls.Config, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: HeaderTimeout,
		ReadTimeout:       BodyTimeout,
		IdleTimeout:       idleTimeout,
		TLSConfig:         t,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// ServeGRPC serves on l until s is stopped.
func ServeGRPC(s *grpc.Server, l net.Listener) error {
	if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve grpc: %w", err)
	}
	return nil
}

// ServeHTTP serves on l, with the TLS that s has, until s is stopped.
func ServeHTTP(s *http.Server, l net.Listener) error {
	serve := func() error { return s.Serve(l) }
	if s.TLSConfig != nil {
		serve = func() error { return s.ServeTLS(l, "", "") }
	}
	if err := serve(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}

// Stop stops both servers: calls under way finish or, once ctx ends, are broken
// off.
func Stop(ctx context.Context, g *grpc.Server, h *http.Server) error {
	var both errgroup.Group
	both.Go(func() error {
		cut := context.AfterFunc(ctx, g.Stop)
		defer cut()
		g.GracefulStop()
		return nil
	})
	both.Go(func() error {
		if err := h.Shutdown(ctx); err != nil {
			return h.Close()
		}
		return nil
	})
	return both.Wait()
}
