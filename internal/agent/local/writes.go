package local

import (
	"context"
	"net/http"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// rpc serves registryv1.RegistryService.
type rpc struct {
	unserved
	*serving.Reads
	writes
}

// unserved refuses what an agent does not do: reports and the sweep are the
// registrar's. What is embedded less deep goes before it.
type unserved struct {
	registryv1.UnimplementedRegistryServiceServer
}

// ListPeers implements registryv1.RegistryServiceServer: an agent has none.
func (rpc) ListPeers(context.Context, *registryv1.ListPeersRequest) (*registryv1.ListPeersResponse, error) {
	return &registryv1.ListPeersResponse{}, nil
}

// writes hand to the node what programs register.
type writes struct{ node Node }

var errNoNode = registry.Errorf(registry.NotFound, "this agent takes no registrations: register at a registrar")

// Register implements registryv1.RegistryServiceServer, as do the methods below. It
// answers once the node has the endpoints: the registrar hears of them soon.
func (w writes) Register(ctx context.Context, req *registryv1.RegisterRequest) (*registryv1.RegisterResponse, error) {
	endpoints, err := serving.EndpointsOf(req.GetEndpoints(), wire.FromProto)
	if err != nil {
		return nil, err
	}
	ttl, err := ttlOf(req.GetTtl().AsDuration())
	if err != nil {
		return nil, err
	}
	return &registryv1.RegisterResponse{}, w.register(ctx, endpoints, ttl)
}

func (w writes) register(ctx context.Context, endpoints []registry.Endpoint, ttl time.Duration) error {
	if w.node == nil {
		return errNoNode
	}
	return w.node.Register(ctx, endpoints, ttl)
}

// ttlOf refuses what no program can mean; 0 is none.
func ttlOf(ttl time.Duration) (time.Duration, error) {
	if ttl < 0 || ttl > 0 && ttl < registry.MinTTL {
		return 0, registry.Invalidf("ttl", "is %v: use at least %v, or leave it out", ttl, registry.MinTTL)
	}
	return ttl, nil
}

// Unregister drops what was registered here.
func (w writes) Unregister(ctx context.Context, req *registryv1.UnregisterRequest) (*registryv1.UnregisterResponse, error) {
	claims, err := serving.EndpointsOf(req.GetEndpoints(), wire.ClaimFromProto)
	if err != nil {
		return nil, err
	}
	removed, err := w.unregister(ctx, claims)
	return &registryv1.UnregisterResponse{Removed: uint32(removed)}, err
}

func (w writes) unregister(ctx context.Context, claims []registry.Claim) (int, error) {
	if w.node == nil {
		return 0, errNoNode
	}
	return w.node.Unregister(ctx, claims)
}

// SetHealth changes the health of the node's endpoints.
func (w writes) SetHealth(ctx context.Context, req *registryv1.SetHealthRequest) (*registryv1.SetHealthResponse, error) {
	claims, err := serving.EndpointsOf(req.GetEndpoints(), wire.ClaimFromProto)
	if err != nil {
		return nil, err
	}
	health, err := serving.HealthOf(req.GetHealth())
	if err != nil {
		return nil, err
	}
	if w.node == nil {
		return nil, errNoNode
	}
	return &registryv1.SetHealthResponse{}, w.node.SetHealth(ctx, claims, health)
}

const indexPage = `aether agent

GET    /v1/services
GET    /v1/services/{service}/endpoints
PUT    /v1/services/{service}/protocols/{protocol}/endpoints/{ip}?ttl={duration}
DELETE /v1/services/{service}/protocols/{protocol}/endpoints/{ip}
GET    /v1/watch?service={service}    server-sent events
GET    /v1/regions
GET    /v1/agent                      how this agent is
GET    /metrics
GET    /livez
GET    /readyz

The Age header of an answer says how many seconds ago it was all that a registrar had.
`

// handler returns the handler of every HTTP path.
func (s *Server) handler() http.Handler {
	w := writes{s.cfg.Node}
	mux := http.NewServeMux()
	s.reads.Handle(mux)
	mux.HandleFunc("PUT "+serving.EndpointPath, serving.Answering(w.put, "ttl"))
	mux.HandleFunc("DELETE "+serving.EndpointPath, serving.Answering(w.remove, "node"))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", serving.Alive)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /{$}", func(out http.ResponseWriter, _ *http.Request) { serving.Plain(out, http.StatusOK, indexPage) })
	if s.cfg.HandleHTTP != nil {
		s.cfg.HandleHTTP(mux)
	}
	return serving.Logged(s.cfg.Log, serving.Refusing(mux))
}

func (s *Server) readyz(out http.ResponseWriter, _ *http.Request) {
	switch {
	case s.reads.Stopped().Err() != nil:
		serving.Plain(out, http.StatusServiceUnavailable, "stopping\n")
	case s.ready() != nil:
		serving.Plain(out, http.StatusServiceUnavailable, "no registrar has answered yet\n")
	default:
		serving.Plain(out, http.StatusOK, "ok\n")
	}
}

func (w writes) put(out http.ResponseWriter, r *http.Request) (serving.Message, error) {
	ttl, err := serving.TTLOf(r)
	if err == nil {
		ttl, err = ttlOf(ttl)
	}
	if err != nil {
		return nil, err
	}
	e, err := serving.EndpointOf(out, r)
	if err != nil {
		return nil, err
	}
	if err := w.register(r.Context(), []registry.Endpoint{e}, ttl); err != nil {
		return nil, serving.Single(err)
	}
	return &registryv1.RegisterResponse{}, nil
}

func (w writes) remove(_ http.ResponseWriter, r *http.Request) (serving.Message, error) {
	claim, err := serving.ClaimOf(r)
	if err != nil {
		return nil, err
	}
	removed, err := w.unregister(r.Context(), []registry.Claim{claim})
	if err != nil {
		return nil, serving.Single(err)
	}
	return &registryv1.UnregisterResponse{Removed: uint32(removed)}, nil
}
