// Package etcdtest gives tests real etcds: embedded ones, which start in a
// quarter of a second, and processes of the real binary, which can be killed,
// stopped and continued. Each has free ports and a data directory of its own and
// ends with its test.
package etcdtest

import (
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/aether-federation/aether/internal/freeport"
)

// startTimeout bounds the start of one etcd: ready in 0.25 s on an idle machine.
const startTimeout = time.Minute

const dialTimeout = 5 * time.Second

// Server is an embedded etcd with one member. Its address and data outlive Stop
// and Restart.
type Server struct {
	tb   testing.TB
	cfg  *embed.Config
	etcd *embed.Etcd

	mu      sync.Mutex
	serving []*grpc.Server
}

// Option changes an etcd's configuration before it starts.
type Option func(*embed.Config)

// Start starts an embedded etcd and stops it when the test ends.
func Start(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(tb.TempDir(), "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	client, peer := freeURL(tb), freeURL(tb)
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	for _, option := range options {
		option(cfg)
	}
	s := &Server{tb: tb, cfg: cfg}
	cfg.ServiceRegister = s.serves // hands each gRPC server over before it serves
	s.Restart()
	tb.Cleanup(s.Stop)
	return s
}

// Endpoint is the address of the etcd's clients, as host:port.
func (s *Server) Endpoint() string { return s.cfg.ListenClientUrls[0].Host }

// Dir is the data directory. Only while stopped may a test change it.
func (s *Server) Dir() string { return s.cfg.Dir }

// Client returns a new client, closed when the test ends.
func (s *Server) Client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, s.Endpoint())
}

// Stop stops the etcd; its clients' calls fail from then on. They are cut off:
// etcd would wait seconds for their streams. Stopping twice is harmless.
func (s *Server) Stop() {
	if s.etcd == nil {
		return
	}
	s.mu.Lock()
	for _, g := range s.serving {
		g.Stop()
	}
	s.serving = nil
	s.mu.Unlock()
	s.etcd.Close()
	s.etcd = nil
}

func (s *Server) serves(g *grpc.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving = append(s.serving, g)
}

// Restart starts the etcd again, after Stop, at the same address with whatever
// its data directory holds.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	if _, err := os.Stat(filepath.Join(s.cfg.Dir, "member")); err == nil {
		s.cfg.ClusterState = embed.ClusterStateFlagExisting
	} else {
		s.cfg.ClusterState = embed.ClusterStateFlagNew
	}
	etcd, err := embed.StartEtcd(s.cfg)
	if err != nil {
		s.tb.Fatalf("start embedded etcd: %v", err)
	}
	s.etcd = etcd
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		s.tb.Fatalf("embedded etcd ended: %v", err)
	case <-time.After(startTimeout):
		s.tb.Fatalf("embedded etcd not ready after %v", startTimeout)
	}
}

// NewClient returns a client of the etcd at endpoint, closed when the test ends.
func NewClient(tb testing.TB, endpoints ...string) *clientv3.Client {
	tb.Helper()
	return newClient(tb, endpoints)
}

func newClient(tb testing.TB, endpoints []string, options ...grpc.DialOption) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: dialTimeout,
		DialOptions: options,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		tb.Fatalf("dial etcd at %v: %v", endpoints, err)
	}
	tb.Cleanup(func() { _ = c.Close() }) // closing twice, after the test's own Close, is fine
	return c
}

func freeURL(tb testing.TB) url.URL { return url.URL{Scheme: "http", Host: FreeAddress(tb)} }

// FreeAddress returns a loopback address that nothing listens at.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	address, err := freeport.Find()
	if err != nil {
		tb.Fatal(err)
	}
	return address.String()
}

// Copy is a copy of an etcd's data directory.
type Copy struct {
	tb  testing.TB
	dir string
}

// Backup copies the etcd's data as it is now; the etcd is stopped for it.
func Backup(tb testing.TB, s *Server) *Copy {
	tb.Helper()
	s.Stop()
	c := &Copy{tb: tb, dir: filepath.Join(tb.TempDir(), "backup")}
	if err := os.CopyFS(c.dir, os.DirFS(s.Dir())); err != nil {
		tb.Fatalf("copy etcd's data: %v", err)
	}
	s.Restart()
	return c
}

// Restore puts the copy in place of the etcd's data and restarts it, as an
// operator does who restores a backup: same name, same addresses, older content.
func (c *Copy) Restore(s *Server) {
	c.tb.Helper()
	s.Stop()
	if err := os.RemoveAll(s.Dir()); err != nil {
		c.tb.Fatal(err)
	}
	if err := os.CopyFS(s.Dir(), os.DirFS(c.dir)); err != nil {
		c.tb.Fatalf("restore etcd's data: %v", err)
	}
	s.Restart()
}

// WithTLS makes an etcd serve its clients by TLS with the certificate of these
// files. With clientCA it asks for theirs, whose common name is their user.
func WithTLS(cert, key, clientCA string) Option {
	return func(c *embed.Config) {
		for _, urls := range [][]url.URL{c.ListenClientUrls, c.AdvertiseClientUrls} {
			for i := range urls {
				urls[i].Scheme = "https"
			}
		}
		c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile = cert, key
		c.ClientTLSInfo.TrustedCAFile, c.ClientTLSInfo.ClientCertAuth = clientCA, clientCA != ""
	}
}
