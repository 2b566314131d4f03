// Package remote is a registry behind a registrar: the Go client of its gRPC
// service. It keeps the contract of [registry.Registry], and shows besides how
// the registrar sees services, regions and its mirrors.
package remote

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/grpcerr"
	"github.com/aether-federation/aether/registry/tlsnow"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// maxAnswer is the largest answer that is taken: a List of everything.
	maxAnswer = 512 << 20
	// maxCall is how many endpoints a registrar takes in one call.
	maxCall = 10000
	// pingIdle is after how much silence the registrar is pinged, pingTimeout
	// how long it may take to answer.
	pingIdle    = 10 * time.Second
	pingTimeout = 5 * time.Second
	// maxBackoff between attempts to connect.
	maxBackoff = 3 * time.Second
)

// Registry is a registrar's registry. It is safe for concurrent use.
type Registry struct {
	conn   *grpc.ClientConn
	client registryv1.RegistryServiceClient
}

var _ registry.Registry = (*Registry)(nil)

type options struct {
	credentials credentials.TransportCredentials
	dial        []grpc.DialOption
	failover    bool
}

// Option changes how a Registry connects.
type Option func(*options)

// WithTLS connects with TLS. The default is plain text.
func WithTLS(cfg *tls.Config) Option {
	return func(o *options) { o.credentials = credentials.NewTLS(cfg) }
}

// WithTLSNow connects with the TLS of the moment, which now is asked for as in
// [tlsnow.Credentials].
func WithTLSNow(now func() *tls.Config) Option {
	return func(o *options) { o.credentials = tlsnow.Credentials(now) }
}

// WithDialOptions adds gRPC's own options.
func WithDialOptions(dial ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, dial...) }
}

// WithFailover takes target as a list even if it has one address, whose name may
// stand for several registrars.
func WithFailover() Option {
	return func(o *options) { o.failover = true }
}

// New returns the registry behind the registrar at target, host:port or any
// target of gRPC's. A target may be a list, as in "a:8443,b:8443", of registrars
// of one region: then calls go to one of those that say that they serve, chosen by
// chance, until it fails, and a call that fails may be repeated: it goes to another
// if there is one. Names are resolved to all of their addresses. It does not connect:
// the first call does. The caller closes it.
func New(target string, opts ...Option) (*Registry, error) {
	o := options{credentials: insecure.NewCredentials()}
	for _, opt := range opts {
		opt(&o)
	}
	retry := backoff.DefaultConfig
	retry.MaxDelay = maxBackoff
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(o.credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingIdle, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: pingTimeout}),
	}, o.dial...)
	at := target
	if o.failover || strings.Contains(target, ",") {
		var list []grpc.DialOption
		var err error
		if at, list, err = listTarget(target); err != nil {
			return nil, registry.Errorf(registry.Invalid, "connect to registrars: %w", err)
		}
		dial = append(dial, list...)
	}
	conn, err := grpc.NewClient(at, dial...)
	if err != nil {
		return nil, registry.Errorf(registry.Invalid, "connect to registrar %q: %w", target, err)
	}
	return &Registry{conn: conn, client: registryv1.NewRegistryServiceClient(conn)}, nil
}

// Conn returns the connection, for other services at the same address. It ends with
// Close.
func (r *Registry) Conn() grpc.ClientConnInterface { return r.conn }

// Close ends the connection and with it every call under way.
func (r *Registry) Close() error { return r.conn.Close() }

// Register implements [registry.Registry]. At most 10,000 endpoints are sent in
// one call; a key twice among more is found in the same call only.
func (r *Registry) Register(ctx context.Context, endpoints []registry.Endpoint) (registry.Revision, error) {
	return r.register(ctx, &registryv1.RegisterRequest{}, endpoints)
}

// RegisterFor is Register of endpoints that go when they are not registered again
// within ttl, which [registry.ValidateTTL] limits; about three times as often is
// right. Those that are registered together should be registered together again,
// which costs the registry no write.
func (r *Registry) RegisterFor(ctx context.Context, ttl time.Duration, endpoints []registry.Endpoint) (registry.Revision, error) {
	if err := registry.ValidateTTL(ttl, endpoints); err != nil {
		return "", err
	}
	return r.register(ctx, &registryv1.RegisterRequest{Ttl: durationpb.New(ttl)}, endpoints)
}

// register sends req with endpoints.
func (r *Registry) register(ctx context.Context, req *registryv1.RegisterRequest, endpoints []registry.Endpoint) (registry.Revision, error) {
	if len(endpoints) > maxCall {
		return "", tooMany(len(endpoints))
	}
	req.Endpoints = make([]*registryv1.Endpoint, len(endpoints))
	for i, e := range endpoints {
		if !e.IP.IsValid() {
			return "", noAddress(i)
		}
		req.Endpoints[i] = wire.ToProto(e)
	}
	answer, err := r.client.Register(ctx, req)
	if err != nil {
		return "", refuse(ctx, "register", req, err)
	}
	return registry.Revision(answer.GetRevision()), nil
}

// Unregister implements [registry.Registry], with Register's limit.
func (r *Registry) Unregister(ctx context.Context, claims []registry.Claim) (int, registry.Revision, error) {
	if len(claims) > maxCall {
		return 0, "", tooMany(len(claims))
	}
	req := &registryv1.UnregisterRequest{Endpoints: make([]*registryv1.Endpoint, len(claims))}
	for i, c := range claims {
		if !c.IP.IsValid() {
			return 0, "", noAddress(i)
		}
		req.Endpoints[i] = wire.ClaimToProto(c)
	}
	answer, err := r.client.Unregister(ctx, req)
	if err != nil {
		return 0, "", refuse(ctx, "unregister", req, err)
	}
	return int(answer.GetRemoved()), registry.Revision(answer.GetRevision()), nil
}

func tooMany(n int) error {
	return registry.Invalidf("endpoints", "there are %d: send at most %d in one call", n, maxCall)
}

func noAddress(i int) error {
	return registry.Invalidf(fmt.Sprintf("endpoints[%d].ip", i), "is empty: give an IPv4 or IPv6 address")
}

// refuse is fail for a request that may be what could not be sent.
func refuse(ctx context.Context, call string, req proto.Message, err error) error {
	if _, marshalErr := proto.Marshal(req); marshalErr != nil {
		return registry.Invalidf("endpoints", "encode request: %w", marshalErr)
	}
	if status.Code(err) == codes.ResourceExhausted && registry.KindOf(grpcerr.FromStatus(err)) != registry.Limited {
		return registry.Invalidf("endpoints", "the request is larger than the registrar takes: send fewer at a time: %w", err)
	}
	return fail(ctx, call, err)
}

// fail returns err of a call as a registry's error; when ctx has ended, ctx's.
func fail(ctx context.Context, call string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", call, ctx.Err())
	}
	return grpcerr.FromStatus(err)
}

// Listing is a snapshot with the age of what it shows.
type Listing struct {
	registry.Snapshot
	// Age by region: how long ago it was last proven alive, as the registrar
	// sees it.
	Age map[string]time.Duration
}

// List implements [registry.Registry].
func (r *Registry) List(ctx context.Context, q registry.Query) (registry.Snapshot, error) {
	l, err := r.Listing(ctx, q)
	return l.Snapshot, err
}

// Listing is List with ages.
func (r *Registry) Listing(ctx context.Context, q registry.Query) (Listing, error) {
	answer, err := r.client.List(ctx, &registryv1.ListRequest{Services: q.Services})
	if err != nil {
		return Listing{}, fail(ctx, "list", err)
	}
	l := Listing{Age: map[string]time.Duration{}}
	l.Revision = registry.Revision(answer.GetRevision())
	l.Endpoints = make([]registry.Endpoint, 0, len(answer.GetEndpoints()))
	for _, m := range answer.GetEndpoints() {
		e, err := wire.FromProto(m)
		if err != nil {
			return Listing{}, registry.Errorf(registry.Internal, "read answer: %w", err)
		}
		l.Endpoints = append(l.Endpoints, e)
		l.Age[e.Region] = m.GetAge().AsDuration()
	}
	return l, nil
}

// Services returns every service that the registrar serves, sorted by name, and
// the revision at which it did.
func (r *Registry) Services(ctx context.Context) ([]*registryv1.Service, registry.Revision, error) {
	answer, err := r.client.ListServices(ctx, &registryv1.ListServicesRequest{})
	if err != nil {
		return nil, "", fail(ctx, "list services", err)
	}
	return answer.GetServices(), registry.Revision(answer.GetRevision()), nil
}

// Regions returns every region as the registrar sees it, sorted by name.
func (r *Registry) Regions(ctx context.Context) ([]*registryv1.Region, error) {
	answer, err := r.client.ListRegions(ctx, &registryv1.ListRegionsRequest{})
	if err != nil {
		return nil, fail(ctx, "list regions", err)
	}
	return answer.GetRegions(), nil
}

// Peers returns the outgoing mirrors of the registrar's region.
func (r *Registry) Peers(ctx context.Context) ([]*registryv1.Peer, error) {
	answer, err := r.client.ListPeers(ctx, &registryv1.ListPeersRequest{})
	if err != nil {
		return nil, fail(ctx, "list peers", err)
	}
	return answer.GetPeers(), nil
}
