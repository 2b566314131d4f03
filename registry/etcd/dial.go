package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/tlsnow"
)

const (
	// DefaultDialTimeout bounds one attempt to connect.
	DefaultDialTimeout = 3 * time.Second

	// etcd closes connections that are pinged more often than every 5 s.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// maxReconnect caps the pause between attempts; gRPC's own cap is two minutes.
	maxReconnect = 2 * time.Second
	retryDial    = 500 * time.Millisecond
)

// Client is etcd's own, named here for programs that only pass it on.
type Client = clientv3.Client

// DialConfig says how an etcd is reached.
type DialConfig struct {
	// Endpoints are host:port, http://host:port or https://host:port.
	Endpoints []string
	// TLS, when set, secures the connections. Endpoints that say https need
	// none: the system's authorities are trusted.
	TLS                *tls.Config
	Username, Password string
	// TLSNow and PasswordNow, when set, stand for TLS and Password, and are asked
	// for each connection and each time that etcd is told who this is.
	TLSNow      func() *tls.Config
	PasswordNow func() string
	// Timeout bounds one attempt; 0 means DefaultDialTimeout.
	Timeout time.Duration
	// Log is told of each attempt that found nobody. Nil: the default.
	Log *slog.Logger
}

// Dial returns a client of the region's own etcd once that has answered a
// linearizable read, and the store's ID, written where there was none. It tries
// until ctx ends; the error then is that of the last attempt and names the
// endpoints. What more attempts cannot mend, Denied, ends it at once. The caller
// closes the client, which reconnects by itself.
func Dial(ctx context.Context, c DialConfig) (client *clientv3.Client, storeID string, err error) {
	log := cmp.Or(c.Log, slog.Default())
	at := strings.Join(c.Endpoints, ",")
	retry := time.NewTicker(retryDial)
	defer retry.Stop()
	for {
		client, storeID, err = c.attempt(ctx)
		if err == nil {
			return client, storeID, nil
		}
		if registry.KindOf(err) == registry.Denied {
			return nil, "", err
		}
		log.Warn("etcd does not answer, trying again", "endpoints", at, "error", err)
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, "", err
		}
	}
}

func (c DialConfig) attempt(ctx context.Context) (*clientv3.Client, string, error) {
	timeout := cmp.Or(c.Timeout, DefaultDialTimeout)
	attempt, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := clientv3.New(c.client(context.WithoutCancel(ctx), timeout))
	if err != nil {
		return nil, "", registry.Errorf(kindOf(err), "connect to etcd at %s: %w", strings.Join(c.Endpoints, ","), err)
	}
	id, err := EnsureStoreID(attempt, client)
	if err != nil {
		return nil, "", errors.Join(err, client.Close())
	}
	return client, id, nil
}

// client is what clientv3 is told. Its lifetime is its own: ctx does not end.
func (c DialConfig) client(ctx context.Context, timeout time.Duration) clientv3.Config {
	options := []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect},
		MinConnectTimeout: timeout,
	})}
	if c.TLSNow != nil {
		c.TLS = c.TLSNow()
		options = append(options, grpc.WithTransportCredentials(tlsnow.Credentials(c.TLSNow)))
	}
	if c.PasswordNow != nil {
		c.Password = c.PasswordNow()
		options = append(options, grpc.WithChainUnaryInterceptor(c.authenticate))
	}
	return clientv3.Config{
		Context:              ctx,
		Endpoints:            c.Endpoints,
		DialTimeout:          timeout,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: pingTimeout,
		PermitWithoutStream:  true,
		TLS:                  c.TLS,
		Username:             c.Username,
		Password:             c.Password,
		Logger:               zap.NewNop(), // what it would log comes back as errors
		DialOptions:          options,
	}
}

// authenticate has the client tell the password of the moment, not that with which
// it was made.
func (c DialConfig) authenticate(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if r, ok := req.(*etcdserverpb.AuthenticateRequest); ok {
		req = &etcdserverpb.AuthenticateRequest{Name: r.Name, Password: c.PasswordNow()}
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}
