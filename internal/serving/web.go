package serving

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
)

// EndpointPath names one endpoint.
const EndpointPath = "/v1/services/{service}/protocols/{protocol}/endpoints/{ip}"

// maxBody bounds one HTTP request's body.
const maxBody = 64 << 10

// Handle gives mux the paths that read.
func (r *Reads) Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/services", Answering(r.webServices))
	mux.HandleFunc("GET /v1/services/{service}/endpoints", Answering(r.webEndpoints))
	mux.HandleFunc("GET /v1/regions", Answering(r.webRegions))
	mux.HandleFunc("GET /v1/watch", r.webWatch)
}

func (r *Reads) webServices(out http.ResponseWriter, req *http.Request) (Message, error) {
	r.Mark(out.Header())
	return Reply(r.ListServices(req.Context(), nil))
}

func (r *Reads) webEndpoints(out http.ResponseWriter, req *http.Request) (Message, error) {
	r.Mark(out.Header())
	answer, err := r.list([]string{req.PathValue("service")})
	return Reply(answer, Renamed(err, "service"))
}

func (r *Reads) webRegions(out http.ResponseWriter, req *http.Request) (Message, error) {
	r.Mark(out.Header())
	return Reply(r.ListRegions(req.Context(), nil))
}

// Logged logs each request once it has been answered.
func Logged(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		start := time.Now()
		next.ServeHTTP(out, r)
		log.LogAttrs(r.Context(), slog.LevelDebug, "http request",
			slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Duration("took", time.Since(start)))
	})
}

// Refusing answers in JSON for paths and methods that mux does not have.
func Refusing(mux *http.ServeMux) http.Handler {
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
			Fail(out, &StatusError{http.StatusMethodNotAllowed, registry.Errorf(registry.Invalid, "%s is not served here: use %s", r.Method, allow)})
			return
		}
		Fail(out, registry.Errorf(registry.NotFound, "there is no path %q: GET / lists the paths", r.URL.Path))
	})
}

// refusal catches what a mux says of a request that it does not serve.
type refusal struct{ header http.Header }

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) Write(p []byte) (int, error) { return len(p), nil }
func (r *refusal) WriteHeader(int)             {}

// Alive answers that the process lives.
func Alive(out http.ResponseWriter, _ *http.Request) { Plain(out, http.StatusOK, "ok\n") }

// EndpointOf reads the endpoint that a PUT of [EndpointPath] brings.
func EndpointOf(out http.ResponseWriter, r *http.Request) (registry.Endpoint, error) {
	body, err := io.ReadAll(http.MaxBytesReader(out, r.Body, maxBody))
	if err != nil {
		return registry.Endpoint{}, bodyError(err)
	}
	m := &registryv1.Endpoint{}
	if len(body) > 0 {
		if err := unmarshal.Unmarshal(body, m); err != nil {
			return registry.Endpoint{}, registry.Invalidf("body", "is not the JSON of an endpoint: %s", plainText(err))
		}
	}
	if err := address(m, r); err != nil {
		return registry.Endpoint{}, err
	}
	return wire.FromProto(m)
}

// ClaimOf reads what a DELETE of [EndpointPath] removes, and for which node.
func ClaimOf(r *http.Request) (registry.Claim, error) {
	m := &registryv1.Endpoint{Node: r.URL.Query().Get("node")}
	if err := address(m, r); err != nil {
		return registry.Claim{}, err
	}
	return wire.ClaimFromProto(m)
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

// Single takes out of err that its endpoint was the first of one.
func Single(err error) error {
	e, ok := errors.AsType[*registry.Error](err)
	if !ok {
		return err
	}
	field := strings.TrimPrefix(strings.TrimPrefix(e.Field, "endpoints[0]"), ".")
	return &registry.Error{Kind: e.Kind, Field: field, Err: e.Err}
}

func bodyError(err error) error {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &StatusError{http.StatusRequestEntityTooLarge, registry.Invalidf("body", "is larger than %d bytes", tooLarge.Limit)}
	}
	return registry.Invalidf("body", "read request: %w", err)
}

// TTLOf reads the query's ttl; 0: there is none.
func TTLOf(r *http.Request) (time.Duration, error) {
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
