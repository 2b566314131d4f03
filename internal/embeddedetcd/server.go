// Package embeddedetcd runs one etcd member inside this process, for regions
// that have no etcd of their own: a first try, a demo, a small site.
package embeddedetcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/aether-federation/aether/internal/filelock"
)

const (
	// DefaultClientURL is where clients are served unless told otherwise.
	DefaultClientURL = "http://127.0.0.1:2379"

	// readyTimeout bounds the wait for a member of one, which elects itself
	// after about a second once its log is replayed.
	readyTimeout = time.Minute
	// retention is how long the history is kept: long enough for any mirror
	// that still has its leases to catch up from it.
	retention = "30m"
	// peerURL is what the member calls itself. It is the only member and never
	// calls, so that the port it listens on may be another at each start.
	peerURL   = "http://localhost:0"
	ownedOnly = 0o700
)

// Config says where a server keeps its data and listens.
type Config struct {
	// Dir holds the data, which survives restarts. One process at a time.
	Dir string
	// ClientURL is where clients are served; empty means [DefaultClientURL].
	// Port 0 takes a free one.
	ClientURL string
	Log       *slog.Logger
}

// Server is a running etcd.
type Server struct {
	etcd   *embed.Etcd
	log    core
	unlock func() error

	mu sync.Mutex
	// serving are the gRPC servers that clients are connected to.
	serving []*grpc.Server
}

// Start runs an etcd and returns once it serves. The caller stops it.
func Start(ctx context.Context, c Config) (*Server, error) {
	client, err := parseClientURL(cmp.Or(c.ClientURL, DefaultClientURL))
	if err != nil {
		return nil, err
	}
	if err := checkPort(client); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, ownedOnly); err != nil {
		return nil, fmt.Errorf("create etcd data directory: %w", err)
	}
	unlock, err := filelock.Take(filepath.Join(c.Dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w", c.Dir, err)
	}
	s := &Server{log: newCore(c.Log), unlock: unlock}
	if err := s.start(ctx, c, client); err != nil {
		return nil, errors.Join(err, unlock())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, c Config, client *url.URL) error {
	etcd, err := embed.StartEtcd(s.embedConfig(c, client))
	if err != nil {
		return fmt.Errorf("start embedded etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case <-etcd.Server.ReadyNotify():
		s.etcd = etcd
		return nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	etcd.Close()
	return fmt.Errorf("wait for embedded etcd: %w", err)
}

// Endpoint returns the URL at which clients are served.
func (s *Server) Endpoint() string { return "http://" + s.etcd.Clients[0].Addr().String() }

// Err returns the channel on which a fault tells that the server has ended.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Stop ends the server and waits for it. Clients are cut off at once: the streams
// of other regions' replicators never end by themselves, and etcd would wait seven
// seconds for them. It is called once.
func (s *Server) Stop() error {
	s.log.stopping.Store(true)
	s.mu.Lock()
	for _, g := range s.serving {
		g.Stop()
	}
	s.mu.Unlock()
	s.etcd.Close()
	return s.unlock()
}

// serves notes a gRPC server; etcd hands each over before it serves.
func (s *Server) serves(g *grpc.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = append(s.serving, g)
}

func (s *Server) embedConfig(c Config, client *url.URL) *embed.Config {
	peer, _ := url.Parse("http://127.0.0.1:0")
	advertised, _ := url.Parse(peerURL)
	e := embed.NewConfig()
	e.Name = "aether"
	e.Dir = filepath.Join(c.Dir, "etcd")
	// Two stores of one name and URL have one cluster ID unless their tokens
	// differ. Only the first start of a data directory reads it.
	e.InitialClusterToken = randomToken()
	e.ListenClientUrls, e.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	e.ListenPeerUrls, e.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*advertised}
	e.InitialCluster = e.InitialClusterFromName(e.Name)
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModePeriodic, retention
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(s.log))
	e.ServiceRegister = s.serves
	return e
}

func randomToken() string {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never fails.
	return hex.EncodeToString(b[:])
}

func parseClientURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("parse embedded etcd client URL %q: %w", s, err)
	}
	if u.Scheme != "http" || u.Port() == "" || u.Hostname() == "" {
		return nil, fmt.Errorf("embedded etcd client URL %q: want http://host:port", s)
	}
	return u, nil
}

// checkPort finds a taken port early: etcd's own message is the last of many.
func checkPort(u *url.URL) error {
	l, err := net.Listen("tcp", u.Host)
	if err != nil {
		return fmt.Errorf("listen for etcd clients at %s: %w; choose another URL with --embedded-etcd-client-url, or use the etcd that runs there with --etcd-endpoints", u.Host, err)
	}
	return l.Close()
}
