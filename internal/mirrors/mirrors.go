// Package mirrors runs a region's replicator under elections, one for each peer,
// so that one registrar of the region mirrors to a peer and another follows when
// it ends. Whoever leads publishes how its mirror is, and every registrar can tell.
package mirrors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/election"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/replicator"
)

const (
	// electionShare of the lease TTL is an election's TTL, so that a successor has
	// most of the time to take the mirror over.
	electionShare = 3
	// maxElectionTTL bounds for how long nobody mirrors after a leader's death.
	maxElectionTTL = 10 * time.Second
)

// Config says what is mirrored where.
type Config struct {
	// Origin of this registrar. Its region is what is mirrored.
	Origin registry.Origin
	// Source is the region's own etcd, which holds the elections too.
	Source replicator.Source
	// Peers to mirror to; none is fine.
	Peers []replicator.Peer
	// LeaseTTL of the mirrors, in whole seconds.
	LeaseTTL time.Duration
	Log      *slog.Logger
	// Metrics is where the replicator's metrics are registered.
	Metrics prometheus.Registerer
}

// Mirrors are the outgoing mirrors of one region, as far as this process has to
// do with them.
type Mirrors struct {
	cfg        Config
	name       string
	replicator *replicator.Replicator

	mu sync.Mutex
	// leading holds the peers that this process mirrors to.
	leading map[string]bool
}

// New returns mirrors that do not run yet.
func New(c Config) (*Mirrors, error) {
	if err := c.Origin.Validate(); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this mirror's holder: %w", err)
	}
	name := fmt.Sprintf("%s/%s:%d", c.Origin.Cluster, host, os.Getpid())
	return &Mirrors{
		cfg:     c,
		name:    name,
		leading: map[string]bool{},
		replicator: &replicator.Replicator{
			Source: c.Source, Peers: c.Peers, Log: c.Log, Holder: name, Metrics: c.Metrics,
			LeaseTTLSeconds: int64(c.LeaseTTL / time.Second),
		},
	}, nil
}

// Run campaigns for each peer, and mirrors where it is elected, until ctx ends; it
// returns nil then. No peer delays another. The mirrors stay in place: a successor
// finds them with nearly the whole TTL left.
func (m *Mirrors) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, peer := range m.cfg.Peers {
		g.Go(func() error { return m.attend(ctx, peer) })
	}
	return g.Wait()
}

func (m *Mirrors) attend(ctx context.Context, peer replicator.Peer) error {
	value, err := m.publication(peer.Region).encode()
	if err != nil {
		return err
	}
	c := election.Config{
		Client: m.cfg.Source.Client(),
		Prefix: keyspace.MirrorElectionPrefix(m.cfg.Origin.Region, peer.Region),
		TTL:    min(m.cfg.LeaseTTL/electionShare, maxElectionTTL),
		Value:  value,
		Log:    m.cfg.Log.With("component", "election", "region", m.cfg.Origin.Region, "peer", peer.Region),
	}
	err = election.Run(ctx, c, func(ctx context.Context, l *election.Leadership) error {
		return m.lead(ctx, peer, l)
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lead mirrors to peer until ctx ends or another has taken over.
func (m *Mirrors) lead(ctx context.Context, peer replicator.Peer, l *election.Leadership) error {
	m.setLeading(peer.Region, true)
	defer m.setLeading(peer.Region, false)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := m.replicator.Mirror(ctx, peer, l); err != nil {
			return err
		}
		return errDone
	})
	g.Go(func() error { return m.publish(ctx, peer.Region, l) })
	if err := g.Wait(); !errors.Is(err, errDone) {
		return err
	}
	return nil
}

// errDone ends what accompanies a mirror that has ended.
var errDone = errors.New("done")

func (m *Mirrors) setLeading(peer string, leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading[peer] = leads
}

func (m *Mirrors) leads(peer string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leading[peer]
}
