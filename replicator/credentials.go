package replicator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Credentials prove to a peer's etcd who one is.
type Credentials struct {
	// TLS, Username and Password are as in [Peer].
	TLS                *tls.Config
	Username, Password string
	// Version differs whenever anything else in here does; for files, a digest of
	// their content will do.
	Version string
}

// credentialsEvery is how often a peer's credentials are looked at under a running
// mirror.
const credentialsEvery = 2 * time.Second

// errCredentials ends a session because the next one has other credentials.
var errCredentials = errors.New("credentials changed")

// Connect returns a client for a peer, or for any etcd that is described as one.
// The client connects when it is first used, and reconnects by itself; only with a
// password does Connect talk to the etcd, at most for timeout (3 s if zero). The
// caller closes it.
func Connect(ctx context.Context, peer Peer, timeout time.Duration) (*clientv3.Client, error) {
	if timeout == 0 {
		timeout = defaultDialTimeout
	}
	peer, _, err := peer.current()
	if err != nil {
		return nil, err
	}
	return dial(ctx, peer, timeout)
}

// current is the peer with the credentials of this moment, and their version.
func (p Peer) current() (Peer, string, error) {
	if p.Credentials == nil {
		return p, "", nil
	}
	c, err := p.Credentials()
	if err != nil {
		return p, "", fmt.Errorf("load credentials for peer %s: %w", p.Region, err)
	}
	p.TLS, p.Username, p.Password = c.TLS, c.Username, c.Password
	return p, c.Version, nil
}

// dial makes a client of a peer's etcd that outlives ctx.
func dial(ctx context.Context, peer Peer, timeout time.Duration, options ...grpc.DialOption) (*clientv3.Client, error) {
	options = append([]grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxResyncBackoff},
		MinConnectTimeout: timeout,
	})}, options...)
	client, err := clientv3.New(clientv3.Config{
		Context:              context.WithoutCancel(ctx),
		Endpoints:            peer.Endpoints,
		DialTimeout:          timeout,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: pingTimeout,
		PermitWithoutStream:  true,
		MaxCallSendMsgSize:   maxMessage,
		TLS:                  peer.TLS,
		Username:             peer.Username,
		Password:             peer.Password,
		Logger:               zap.NewNop(), // what it would log comes back as errors
		DialOptions:          options,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to peer %s at %s: %w", peer.Region, strings.Join(peer.Endpoints, ","), err)
	}
	return client, nil
}

// refresh takes over credentials that have changed: the client that was made with
// the former ones is let go. Credentials that cannot be loaded leave a client that
// there is as it is.
func (m *mirror) refresh() error {
	peer, version, err := m.peer.current()
	m.status.warn(warnCredentials, err)
	if err != nil {
		if m.client != nil {
			return nil
		}
		return err
	}
	if version != m.version {
		m.disconnect()
	}
	m.peer, m.version = peer, version
	return nil
}

// credentialsAlways ends the session when the peer's credentials change: the next
// one connects with the new ones and adopts the mirror as it is.
func (s *session) credentialsAlways(ctx context.Context) error {
	if s.peer.Credentials == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for sleep(ctx, credentialsEvery) {
		_, version, err := s.peer.current()
		if s.status.warn(warnCredentials, err) {
			s.log.Warn("going on with the credentials as they were", "error", err)
		}
		if err == nil && version != s.version {
			return errCredentials
		}
	}
	return ctx.Err()
}
