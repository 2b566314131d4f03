package replicator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/aether-federation/aether/registry/keyspace"
)

// DefaultLeaseTTLSeconds is the TTL, in seconds, of the leases that mirrored keys
// are on when a Replicator names none.
const DefaultLeaseTTLSeconds = 30

const (
	defaultDialTimeout   = 3 * time.Second
	defaultResyncBackoff = 200 * time.Millisecond
	// maxResyncBackoff caps the pause between sessions and between connection
	// attempts, so that a peer is mirrored again within seconds of its return.
	maxResyncBackoff = 2 * time.Second
	// minLeaseTTLSeconds is what etcd raises a shorter TTL to, with its default
	// election timeout of 1 s.
	minLeaseTTLSeconds = 2
)

// Source is the etcd whose subtree is mirrored.
type Source interface {
	// Client reaches the origin's etcd. It stays the source's to close, and is
	// open as long as the replicator runs.
	Client() *clientv3.Client
	// OwnPrefix is the region's subtree, /aether/v1/regions/<region>/.
	OwnPrefix() string
}

// Leadership is proof that this process is the one to mirror to a peer.
type Leadership interface {
	// Verify returns nil if leadership is held, by a linearizable read of the
	// origin's etcd.
	Verify(ctx context.Context) error
}

// Replicator mirrors a source into its peers. The zero values of all fields but
// Source mean defaults. Fields must not change once Start or Mirror was called.
type Replicator struct {
	Source Source
	Peers  []Peer
	// Log gets what an operator should know; slog.Default if nil.
	Log *slog.Logger
	// DialTimeout bounds one attempt to connect to a peer; 3 s if zero.
	DialTimeout time.Duration
	// ResyncBackoff is the first pause after a session failed. It doubles up to
	// 2 s and has jitter; 200 ms if zero.
	ResyncBackoff time.Duration
	// LeaseTTLSeconds is for how long, after the last keepalive, a peer keeps the
	// mirror; DefaultLeaseTTLSeconds if zero, 2 at least.
	LeaseTTLSeconds int64
	// AuditPeriod is how long one look at a whole mirror takes, in which drift
	// from its origin is found and mended; 15 minutes if zero.
	AuditPeriod time.Duration
	// Holder names this process in the owner key on the peers; host and process
	// ID if empty.
	Holder string
	// Metrics, if set, is where the metrics are registered.
	Metrics prometheus.Registerer

	// intercept, if set, is called around each request to a peer: where a test
	// puts its faults.
	intercept grpc.UnaryClientInterceptor

	once    sync.Once
	initErr error
	metrics *metrics
	mu      sync.Mutex
	status  map[string]*status
	// claims are the stores that mirrors of this replicator write to, by ID.
	claims map[string]string
}

// NeedLeaderElection reports that only one replicator of a region may run at a
// time. It makes a Replicator a controller-runtime LeaderElectionRunnable.
func (r *Replicator) NeedLeaderElection() bool { return true }

// Start mirrors to all peers until ctx ends, and returns nil then. A peer that
// can't be reached, or refuses, delays only itself. It returns an error at once
// when the configuration is wrong. When a mirror is taken over by another
// replicator, Start leaves it alone until that one no longer renews it.
func (r *Replicator) Start(ctx context.Context) error {
	if err := r.init(); err != nil {
		return err
	}
	var g errgroup.Group
	for _, peer := range r.Peers {
		g.Go(func() error { return r.attend(ctx, peer) })
	}
	return g.Wait()
}

// attend mirrors to one peer, standing by while somebody else does.
func (r *Replicator) attend(ctx context.Context, peer Peer) error {
	for ctx.Err() == nil {
		err := r.Mirror(ctx, peer, nil)
		if !errors.Is(err, ErrFenced) {
			return err
		}
		m, err := r.mirror(peer, nil)
		if err != nil {
			return err
		}
		m.standBy(ctx)
	}
	return nil
}

// Mirror mirrors to one peer until ctx ends, and returns nil then, or ErrFenced
// once another replicator has taken over. lead, if set, is asked for proof of
// leadership before each takeover, and Mirror returns its error when it has none;
// it is for programs that elect a leader for each peer.
func (r *Replicator) Mirror(ctx context.Context, peer Peer, lead Leadership) error {
	if err := r.init(); err != nil {
		return err
	}
	m, err := r.mirror(peer, lead)
	if err != nil {
		return err
	}
	return m.run(ctx)
}

func (r *Replicator) init() error {
	r.once.Do(func() {
		r.mu.Lock() // Status may be asked at any time
		defer r.mu.Unlock()
		r.initErr = r.validate()
		r.metrics = newMetrics(r.Metrics)
		r.status = map[string]*status{}
		r.claims = map[string]string{}
		if r.Log == nil {
			r.Log = slog.Default()
		}
	})
	return r.initErr
}

func (r *Replicator) validate() error {
	if r.Source == nil {
		return errors.New("replicator has no source")
	}
	origin, err := originOf(r.Source.OwnPrefix())
	if err != nil {
		return err
	}
	if r.LeaseTTLSeconds != 0 && r.LeaseTTLSeconds < minLeaseTTLSeconds {
		return fmt.Errorf("lease TTL is %d s: etcd needs %d s at least", r.LeaseTTLSeconds, minLeaseTTLSeconds)
	}
	return validatePeers(r.Peers, origin)
}

// originOf returns the region whose subtree prefix is.
func originOf(prefix string) (string, error) {
	origin, found := strings.CutPrefix(strings.TrimSuffix(prefix, "/"), keyspace.RegionsPrefix)
	if !found || origin == "" || strings.Contains(origin, "/") || keyspace.RegionPrefix(origin) != prefix {
		return "", fmt.Errorf("source's prefix is %q: want %s<region>/", prefix, keyspace.RegionsPrefix)
	}
	return origin, nil
}

func (r *Replicator) ttlSeconds() int64 {
	if r.LeaseTTLSeconds == 0 {
		return DefaultLeaseTTLSeconds
	}
	return r.LeaseTTLSeconds
}

func (r *Replicator) ttl() time.Duration { return time.Duration(r.ttlSeconds()) * time.Second }

func (r *Replicator) dialTimeout() time.Duration {
	if r.DialTimeout == 0 {
		return defaultDialTimeout
	}
	return r.DialTimeout
}

// callTimeout bounds one request to a peer: long enough for a batch to a peer
// that is busy, short enough that a session ends, and the next begins, well
// within the TTL.
func (r *Replicator) callTimeout() time.Duration {
	return min(max(r.ttl()/3, 2*time.Second), 10*time.Second)
}

func (r *Replicator) holder() string {
	if r.Holder != "" {
		return r.Holder
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// claim enters that peer's mirror writes to the store with this ID, and returns
// the peer that does already, if another.
func (r *Replicator) claim(id, peer string) (other string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if holder, ok := r.claims[id]; ok && holder != peer {
		return holder
	}
	r.claims[id] = peer
	return ""
}

func (r *Replicator) unclaim(peer string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, holder := range r.claims {
		if holder == peer {
			delete(r.claims, id)
		}
	}
}
