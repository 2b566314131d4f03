package registrar

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
)

// guard stands before both listeners: it lets a call through, or says why not.
type guard struct {
	// policy is nil where everybody may do everything.
	policy  *access.Policy
	limiter *access.Limiter
	audit   *auditor
	metrics *Metrics
}

// caller is who makes a call, and from where.
type caller struct {
	identity access.Identity
	address  string
}

// name is what limits are kept by: the identity or, without one, the host.
func (c caller) name() string {
	if len(c.identity.Names) > 0 {
		return c.identity.String()
	}
	if host, _, err := net.SplitHostPort(c.address); err == nil {
		return host
	}
	return c.address
}

type callerKey struct{}

// callerOf returns who makes the call that ctx belongs to.
func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// enter decides on one call: whether the caller may, and whether not too often.
// The request is nil where it is not read yet.
func (g *guard) enter(ctx context.Context, operation string, a access.Action, req any) error {
	if a.Need == access.Probe {
		return nil
	}
	if err := g.limiter.Call(callerOf(ctx).name(), costOf(req), time.Now()); err != nil {
		g.metrics.limited.WithLabelValues("calls").Inc()
		return err
	}
	err := g.decide(ctx, a)
	if err != nil && a.Need >= access.Write {
		g.audit.record(ctx, operation, keysOf(req), err)
	}
	return err
}

// permit decides whether the caller may do a, which is a write, to these endpoints.
// One that is denied is audited.
func (g *guard) permit(ctx context.Context, operation string, a access.Action, keys []registry.Key) error {
	err := g.decide(ctx, a)
	if err != nil {
		g.audit.record(ctx, operation, keys, err)
	}
	return err
}

func (g *guard) decide(ctx context.Context, a access.Action) error {
	if g.policy == nil {
		return nil
	}
	err := g.policy.Decide(callerOf(ctx).identity, a)
	if err != nil {
		g.metrics.denied.Inc()
	}
	return err
}

// open counts a stream of the caller's, which done ends.
func (g *guard) open(ctx context.Context) (done func(), err error) {
	done, err = g.limiter.Open(callerOf(ctx).name(), time.Now())
	if err != nil {
		g.metrics.limited.WithLabelValues("streams").Inc()
	}
	return done, err
}

func identityOf(state *tls.ConnectionState) access.Identity {
	if state == nil || len(state.VerifiedChains) == 0 {
		return access.Identity{}
	}
	return access.Of(state.VerifiedChains[0][0])
}

func grpcCaller(ctx context.Context) caller {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}
	}
	c := caller{address: p.Addr.String()}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		c.identity = identityOf(&info.State)
	}
	return c
}

func (g *guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx = withCaller(ctx, grpcCaller(ctx))
	a := access.Action{Need: needOf(info.FullMethod), Nodes: nodesOf(req)}
	if err := g.enter(ctx, operationOf(info.FullMethod), a, req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (g *guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx := withCaller(stream.Context(), grpcCaller(stream.Context()))
	a := access.Action{Need: needOf(info.FullMethod)}
	if err := g.enter(ctx, operationOf(info.FullMethod), a, nil); err != nil {
		return err
	}
	done, err := g.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	return handler(srv, serving.Bound(ctx, stream))
}

// operationOf is the last part of a gRPC method's name, as in set_health.
func operationOf(method string) string {
	var name strings.Builder
	for i, r := range method[strings.LastIndexByte(method, '/')+1:] {
		if i > 0 && unicode.IsUpper(r) {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToLower(r))
	}
	return name.String()
}

// needs of the registry's methods. What is not listed takes an admin, so that a
// new method is closed until somebody has thought of it.
var needs = map[string]access.Need{
	"Register": access.Write, "Unregister": access.Write, "Report": access.Write, "SetHealth": access.Write,
	"Sweep": access.Read, "List": access.Read, "Watch": access.Read, "ListServices": access.Read,
	"ListRegions": access.Read, "ListPeers": access.Read,
}

func needOf(method string) access.Need {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch {
	case service == healthv1.Health_ServiceDesc.ServiceName:
		return access.Probe
	case strings.HasPrefix(service, "grpc.reflection."), strings.HasPrefix(service, "envoy.service."):
		return access.Read
	case service != registryv1.RegistryService_ServiceDesc.ServiceName:
		return access.Administer
	}
	if need, known := needs[name]; known {
		return need
	}
	return access.Administer
}

// endpointBatch is a request about endpoints.
type endpointBatch interface {
	GetEndpoints() []*registryv1.Endpoint
}

// nodesOf returns the node of each endpoint that a request is about. Where the
// request itself is a node's, its endpoints are too unless they say otherwise.
func nodesOf(req any) []string {
	var nodes []string
	sender, isNodes := req.(interface{ GetNode() string })
	if isNodes {
		nodes = append(nodes, sender.GetNode())
	}
	batch, ok := req.(endpointBatch)
	if !ok {
		return nodes
	}
	for _, e := range batch.GetEndpoints() {
		if e.GetNode() != "" || !isNodes {
			nodes = append(nodes, e.GetNode())
		}
	}
	return nodes
}

// keysOf returns the endpoints that a request is about, as far as it names them.
func keysOf(req any) []registry.Key {
	batch, ok := req.(endpointBatch)
	if !ok {
		return nil
	}
	var keys []registry.Key
	for _, e := range batch.GetEndpoints() {
		if key, err := wire.KeyFromProto(e); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// costOf counts a call by its endpoints.
func costOf(req any) int {
	batch, ok := req.(endpointBatch)
	if !ok {
		return 1
	}
	return 1 + len(batch.GetEndpoints())/registry.MaxBatch
}

// guarded decides on each request before next has it.
func (w web) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		ctx := withCaller(r.Context(), caller{identity: identityOf(r.TLS), address: r.RemoteAddr})
		err := w.guard.enter(ctx, strings.ToLower(r.Method), access.Action{Need: webNeed(r)}, nil)
		if err != nil {
			serving.Fail(out, err)
			return
		}
		next.ServeHTTP(out, r.WithContext(ctx))
	})
}

func webNeed(r *http.Request) access.Need {
	switch {
	case r.URL.Path == "/livez", r.URL.Path == "/readyz":
		return access.Probe
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return access.Read
	default:
		return access.Write
	}
}

// auditor writes a line for each change that was asked for.
type auditor struct{ log *slog.Logger }

// auditedKeys is how many endpoints one line names.
const auditedKeys = 20

// record says who asked for what, and what became of it.
func (a *auditor) record(ctx context.Context, operation string, keys []registry.Key, err error) {
	if !a.log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	c := callerOf(ctx)
	outcome, names := "ok", make([]string, 0, min(len(keys), auditedKeys))
	for _, k := range keys[:min(len(keys), auditedKeys)] {
		names = append(names, k.Service+"/"+string(k.Protocol)+"/"+k.IP.String())
	}
	attrs := []slog.Attr{
		slog.String("who", c.identity.String()), slog.String("address", c.address), slog.String("operation", operation),
		slog.Int("count", len(keys)), slog.Any("endpoints", names),
	}
	if err != nil {
		outcome = registry.KindOf(err).String()
		attrs = append(attrs, slog.Any("error", err))
	}
	a.log.LogAttrs(ctx, slog.LevelInfo, "audit", append(attrs, slog.String("outcome", outcome))...)
}

// report records what a report changed, and apart from it what a conflict kept
// back. One that changes nothing is a sign of life and leaves no line.
func (a *auditor) report(ctx context.Context, what asked, err error) {
	var done, refused []registry.Key
	var conflict error
	for i, k := range what.keys {
		if what.conflicts[i] != nil {
			refused, conflict = append(refused, k), cmp.Or(conflict, what.conflicts[i])
		} else {
			done = append(done, k)
		}
	}
	if err != nil || len(done) > 0 && !what.nothing {
		a.record(ctx, "report", done, err)
	}
	if len(refused) > 0 {
		a.record(ctx, "report", refused, conflict)
	}
}
