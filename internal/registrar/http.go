package registrar

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
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
type web struct {
	*service
	log *slog.Logger
}

// newHTTP returns the handler of every HTTP path.
func newHTTP(log *slog.Logger, s *service, gatherer prometheus.Gatherer) http.Handler {
	w := web{service: s, log: log}
	mux := http.NewServeMux()
	const endpoint = "/v1/services/{service}/protocols/{protocol}/endpoints/{ip}"
	mux.HandleFunc("PUT "+endpoint, answering(w.put, "ttl"))
	mux.HandleFunc("DELETE "+endpoint, answering(w.remove, "node"))
	mux.HandleFunc("GET /v1/services", answering(w.listServices))
	mux.HandleFunc("GET /v1/services/{service}/endpoints", answering(w.endpoints))
	mux.HandleFunc("GET /v1/regions", answering(w.listRegions))
	mux.HandleFunc("GET /v1/peers", answering(w.showPeers))
	mux.HandleFunc("GET /v1/watch", w.watch)
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", w.readyz)
	mux.HandleFunc("GET /{$}", func(out http.ResponseWriter, _ *http.Request) { plain(out, http.StatusOK, indexPage) })
	return w.logged(w.guarded(refusing(mux)))
}

// logged logs each request once it has been answered.
func (w web) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		start := time.Now()
		next.ServeHTTP(out, r)
		w.log.LogAttrs(r.Context(), slog.LevelDebug, "http request",
			slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Duration("took", time.Since(start)))
	})
}

// refusing answers for paths and methods that mux does not have.
func refusing(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		handler, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(out, r)
			return
		}
		refusal := &refusal{header: http.Header{}}
		handler.ServeHTTP(refusal, r)
		if allow := refusal.header.Get("Allow"); allow != "" {
			out.Header().Set("Allow", allow)
			writeFailure(out, http.StatusMethodNotAllowed, registry.Errorf(registry.Invalid, "%s is not served here: use %s", r.Method, allow))
			return
		}
		writeFailure(out, http.StatusNotFound, registry.Errorf(registry.NotFound, "there is no path %q: GET / lists the paths", r.URL.Path))
	})
}

// refusal catches what a mux says of a request that it does not serve.
type refusal struct{ header http.Header }

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) Write(p []byte) (int, error) { return len(p), nil }
func (r *refusal) WriteHeader(int)             {}

func (w web) readyz(out http.ResponseWriter, _ *http.Request) {
	switch {
	case w.stopContext.Err() != nil:
		plain(out, http.StatusServiceUnavailable, "stopping\n")
	case !w.view.isReady():
		plain(out, http.StatusServiceUnavailable, "loading the view\n")
	default:
		plain(out, http.StatusOK, "ok\n")
	}
}

func (w web) put(out http.ResponseWriter, r *http.Request) (message, error) {
	body, err := io.ReadAll(http.MaxBytesReader(out, r.Body, maxBody))
	if err != nil {
		return nil, bodyError(err)
	}
	m := &registryv1.Endpoint{}
	if len(body) > 0 {
		if err := unmarshal.Unmarshal(body, m); err != nil {
			return nil, registry.Invalidf("body", "is not the JSON of an endpoint: %s", plainText(err))
		}
	}
	if err := address(m, r); err != nil {
		return nil, err
	}
	e, err := wire.FromProto(m)
	if err != nil {
		return nil, err
	}
	ttl, err := ttlOf(r)
	if err != nil {
		return nil, err
	}
	rev, err := w.register(r.Context(), ttl, []registry.Endpoint{e})
	if err != nil {
		return nil, single(err)
	}
	return &registryv1.RegisterResponse{Revision: string(rev)}, nil
}

// ttlOf reads the query's ttl; 0: there is none.
func ttlOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("ttl")
	if text == "" {
		return 0, nil
	}
	ttl, err := time.ParseDuration(text)
	if err != nil || ttl <= 0 {
		return 0, registry.Invalidf("ttl", "%q is not a time such as 30s", text)
	}
	return ttl, nil
}

func (w web) remove(_ http.ResponseWriter, r *http.Request) (message, error) {
	m := &registryv1.Endpoint{Node: r.URL.Query().Get("node")}
	if err := address(m, r); err != nil {
		return nil, err
	}
	claim, err := wire.ClaimFromProto(m)
	if err != nil {
		return nil, err
	}
	removed, rev, err := w.unregister(r.Context(), []registry.Claim{claim})
	if err != nil {
		return nil, single(err)
	}
	return &registryv1.UnregisterResponse{Revision: string(rev), Removed: uint32(removed)}, nil
}

// address puts into m what r's path says. What m says already must not differ.
func address(m *registryv1.Endpoint, r *http.Request) error {
	ip, instance, has := strings.Cut(r.PathValue("ip"), "@")
	if has && instance == "" {
		return registry.Invalidf("instance", "is empty after '@': leave out the '@'")
	}
	if sameIP(m.Ip, ip) {
		ip = m.Ip
	}
	for _, f := range []struct {
		name, path string
		value      *string
	}{
		{"service", r.PathValue("service"), &m.Service},
		{"protocol", r.PathValue("protocol"), &m.Protocol},
		{"ip", ip, &m.Ip},
		{"instance", instance, &m.Instance},
	} {
		if *f.value != "" && *f.value != f.path {
			return registry.Invalidf(f.name, "%q is not the %q of the path: leave it out of the body", *f.value, f.path)
		}
		*f.value = f.path
	}
	return nil
}

// sameIP reports whether a and b write one address in two ways.
func sameIP(a, b string) bool {
	x, err := registry.ParseIP(a)
	if err != nil {
		return false
	}
	y, err := registry.ParseIP(b)
	return err == nil && x == y
}

// single takes out of err that its endpoint was the first of one.
func single(err error) error {
	e, ok := errors.AsType[*registry.Error](err)
	if !ok {
		return err
	}
	field := strings.TrimPrefix(strings.TrimPrefix(e.Field, "endpoints[0]"), ".")
	return &registry.Error{Kind: e.Kind, Field: field, Err: e.Err}
}

func bodyError(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &statusError{http.StatusRequestEntityTooLarge, registry.Invalidf("body", "is larger than %d bytes", tooLarge.Limit)}
	}
	return registry.Invalidf("body", "read request: %w", err)
}

func (w web) listServices(http.ResponseWriter, *http.Request) (message, error) {
	return reply(w.services())
}

func (w web) endpoints(_ http.ResponseWriter, r *http.Request) (message, error) {
	answer, err := w.list([]string{r.PathValue("service")})
	return reply(answer, renamed(err, "service"))
}

func (w web) listRegions(http.ResponseWriter, *http.Request) (message, error) {
	return reply(w.regions())
}

func (w web) showPeers(_ http.ResponseWriter, r *http.Request) (message, error) {
	return reply(w.listPeers(r.Context()))
}
