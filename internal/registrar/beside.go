package registrar

import (
	"context"

	"google.golang.org/grpc"

	"github.com/aether-federation/aether/registry"
)

var _ grpc.ServiceRegistrar = (*Server)(nil)

// RegisterService puts another service beside the registry, before Run. Access
// control and limits guard it too. Its streams are to end by themselves when the
// context of Run does, or the stop waits for them until its timeout.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, service any) {
	s.grpc.RegisterService(desc, service)
}

// Watch is the embedded view's, once that is ready: what it has before is not all
// there is.
func (v *View) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	select {
	case <-v.Ready():
		return v.View.Watch(ctx, q, fn)
	case <-ctx.Done():
		return ctx.Err()
	}
}
