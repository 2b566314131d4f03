package registrar

import (
	"log/slog"
	"net/http"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/registry"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const indexPage = `aether registrar

GET    /v1/services
GET    /v1/services/{service}/endpoints
PUT    /v1/services/{service}/protocols/{protocol}/endpoints/{ip}?ttl={time}
DELETE /v1/services/{service}/protocols/{protocol}/endpoints/{ip}
GET    /v1/watch?service={service}    server-sent events
GET    /v1/regions
GET    /v1/peers
GET    /metrics
GET    /livez
GET    /readyz
`

// web serves the HTTP paths.
type web struct{ *service }

// newHTTP returns the handler of every HTTP path.
func newHTTP(log *slog.Logger, s *service, gatherer prometheus.Gatherer) http.Handler {
	w := web{s}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+serving.EndpointPath, serving.Answering(w.put, "ttl"))
	mux.HandleFunc("DELETE "+serving.EndpointPath, serving.Answering(w.remove, "node"))
	mux.HandleFunc("GET /v1/peers", serving.Answering(w.showPeers))
	s.reads.Handle(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", serving.Alive)
	mux.HandleFunc("GET /readyz", w.readyz)
	mux.HandleFunc("GET /{$}", func(out http.ResponseWriter, _ *http.Request) { serving.Plain(out, http.StatusOK, indexPage) })
	return serving.Logged(log, w.guarded(serving.Refusing(mux)))
}

func (w web) readyz(out http.ResponseWriter, _ *http.Request) {
	switch {
	case w.reads.Stopped().Err() != nil:
		serving.Plain(out, http.StatusServiceUnavailable, "stopping\n")
	case !w.view.isReady():
		serving.Plain(out, http.StatusServiceUnavailable, "loading the view\n")
	default:
		serving.Plain(out, http.StatusOK, "ok\n")
	}
}

func (w web) put(out http.ResponseWriter, r *http.Request) (serving.Message, error) {
	e, err := serving.EndpointOf(out, r)
	if err != nil {
		return nil, err
	}
	ttl, err := serving.TTLOf(r)
	if err != nil {
		return nil, err
	}
	rev, err := w.register(r.Context(), ttl, []registry.Endpoint{e})
	if err != nil {
		return nil, serving.Single(err)
	}
	return &registryv1.RegisterResponse{Revision: string(rev)}, nil
}

func (w web) remove(_ http.ResponseWriter, r *http.Request) (serving.Message, error) {
	claim, err := serving.ClaimOf(r)
	if err != nil {
		return nil, err
	}
	removed, rev, err := w.unregister(r.Context(), []registry.Claim{claim})
	if err != nil {
		return nil, serving.Single(err)
	}
	return &registryv1.UnregisterResponse{Revision: string(rev), Removed: uint32(removed)}, nil
}

func (w web) showPeers(_ http.ResponseWriter, r *http.Request) (serving.Message, error) {
	return serving.Reply(w.listPeers(r.Context()))
}
