package registrar

import (
	"context"

	"google.golang.org/grpc"

	"github.com/aether-federation/aether/registry"
)

var _ grpc.ServiceRegistrar = (*Server)(nil)

// RegisterService puts another service beside the registry, before Run. It is served
// to whom access control lets read, and ends its streams by itself when ctx of Run
// ends.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, service any) {
	s.grpc.RegisterService(desc, service)
}

// Watch keeps the contract of [registry.Registry], for readers in this process: the
// endpoints that it tells are shared and read only. It waits until the view is
// ready.
func (v *View) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	select {
	case <-v.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	sub := v.subscribe(q, nil)
	defer sub.close()
	for {
		d, err := sub.next(ctx)
		if err != nil {
			return err
		}
		if err := d.tell(fn); err != nil {
			return err
		}
	}
}

// tell calls fn with each of d's events.
func (d delivery) tell(fn func(registry.Event) error) error {
	if d.snapshot != nil {
		if err := fn(registry.Event{Kind: registry.Reset}); err != nil {
			return err
		}
	}
	for c := range d.all() {
		e := registry.Event{Kind: c.kind, Endpoint: *c.endpoint, Revision: d.revision}
		if c.kind == registry.Delete {
			e.Endpoint = registry.Endpoint{Key: c.endpoint.Key}
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	if d.snapshot != nil {
		return fn(registry.Event{Kind: registry.Synced, Revision: d.revision})
	}
	return nil
}
