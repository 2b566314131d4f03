package registrar

import (
	"context"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

// rpc serves registryv1.RegistryService.
type rpc struct {
	unserved
	*serving.Reads
	*service
}

// unserved refuses the methods that nothing else in rpc has: what is embedded less
// deep goes before it.
type unserved struct {
	registryv1.UnimplementedRegistryServiceServer
}

// newGRPC returns a gRPC server with the registry, health and reflection.
func newGRPC(cfg Config, s *service, h *health.Server) *grpc.Server {
	options := append(serving.GRPCOptions(cfg.Log, cfg.TLS),
		grpc.ChainUnaryInterceptor(s.guard.unary),
		grpc.ChainStreamInterceptor(s.guard.stream, serving.EndHealth(s.reads.Stopped())))
	server := grpc.NewServer(options...)
	registryv1.RegisterRegistryServiceServer(server, rpc{Reads: s.reads, service: s})
	healthv1.RegisterHealthServer(server, h)
	reflection.Register(server)
	return server
}

// Register implements registryv1.RegistryServiceServer, as do the methods below.
func (s rpc) Register(ctx context.Context, req *registryv1.RegisterRequest) (*registryv1.RegisterResponse, error) {
	endpoints, err := serving.EndpointsOf(req.GetEndpoints(), wire.FromProto)
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
	claims, err := serving.EndpointsOf(req.GetEndpoints(), wire.ClaimFromProto)
	if err != nil {
		return nil, err
	}
	removed, rev, err := s.unregister(ctx, claims)
	if err != nil {
		return nil, err
	}
	return &registryv1.UnregisterResponse{Revision: string(rev), Removed: uint32(removed)}, nil
}

func (s rpc) ListPeers(ctx context.Context, _ *registryv1.ListPeersRequest) (*registryv1.ListPeersResponse, error) {
	return s.listPeers(ctx)
}
