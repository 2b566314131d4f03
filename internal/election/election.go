// Package election makes a role that one process of many may have into a
// function call: Run calls it once elected, with a context that ends with the
// leadership.
package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	// MinTTL is the shortest TTL that etcd grants with its default timeouts.
	MinTTL = 2 * time.Second

	retryPause = 500 * time.Millisecond
)

// Config says what is campaigned for and how.
type Config struct {
	// Client reaches the etcd that decides. It stays the caller's.
	Client *clientv3.Client
	// Prefix is the range of the candidates' keys; it ends in "/".
	Prefix string
	// TTL is for how long a leader that fell silent keeps its role; MinTTL at
	// least.
	TTL time.Duration
	// Value is what the leader's key holds at first, for those who look.
	Value string
	// Log is told of elections won and lost.
	Log *slog.Logger
}

// Leadership is a role while it is held.
type Leadership struct {
	client   *clientv3.Client
	election *concurrency.Election
}

// ErrLost: somebody else has, or may have, the role.
var ErrLost = errors.New("leadership is lost")

// Verify returns nil if the role is held, by a linearizable read.
func (l *Leadership) Verify(ctx context.Context) error {
	got, err := l.client.Get(ctx, l.election.Key())
	if err != nil {
		return fmt.Errorf("verify leadership: %w", err)
	}
	if len(got.Kvs) == 0 || got.Kvs[0].CreateRevision != l.election.Rev() {
		return ErrLost
	}
	return nil
}

// Publish replaces the value of the leader's key; it fails when the role is lost.
func (l *Leadership) Publish(ctx context.Context, value string) error {
	if err := l.election.Proclaim(ctx, value); err != nil {
		return fmt.Errorf("publish leader's value: %w", err)
	}
	return nil
}

// Run campaigns until elected, calls lead, and campaigns again when lead has
// returned, until ctx ends; it returns ctx's error then. The context that lead
// gets ends when the session is lost: etcd did not confirm it for a TTL or, before
// its first confirmation, for the client's dial timeout and a second. The role is
// given up before the next campaign, so that others need not wait for the TTL.
func Run(ctx context.Context, c Config, lead func(context.Context, *Leadership) error) error {
	for ctx.Err() == nil {
		if err := term(ctx, c, lead); err != nil && ctx.Err() == nil {
			c.Log.Warn("election broke off, campaigning again", "election", c.Prefix, "error", err)
			pause(ctx)
		}
	}
	return ctx.Err()
}

// term is one session: a campaign and, if it is won, one call of lead.
func term(ctx context.Context, c Config, lead func(context.Context, *Leadership) error) error {
	leases := clientv3.NewLease(c.Client)
	defer leases.Close() // ends the keepalives, not the lease
	s, err := newSession(ctx, c, leases)
	if err != nil {
		return err
	}
	defer closeSession(s, c)
	held, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(s.Ctx(), end)()
	e := concurrency.NewElection(s, strings.TrimSuffix(c.Prefix, "/"))
	if err := e.Campaign(held, c.Value); err != nil {
		return fmt.Errorf("campaign: %w", err)
	}
	c.Log.Info("elected", "election", c.Prefix)
	err = lead(held, &Leadership{client: c.Client, election: e})
	c.Log.Info("leadership ended", "election", c.Prefix, "error", err)
	return err
}

// newSession opens a session with keepalives over a stream of its own. All sessions
// of a client would else share one, and while the member at its other end hangs,
// each new session would die of that as the one before did.
func newSession(ctx context.Context, c Config, leases clientv3.Lease) (*concurrency.Session, error) {
	client := clientv3.NewCtxClient(context.Background())
	client.KV, client.Watcher, client.Lease = c.Client.KV, c.Client.Watcher, leases
	// A call of its own for the lease: NewSession has no deadline.
	call, cancel := context.WithTimeout(ctx, c.ttl())
	defer cancel()
	lease, err := c.Client.Grant(call, int64(c.ttl()/time.Second))
	if err != nil {
		return nil, fmt.Errorf("grant lease for election: %w", err)
	}
	s, err := concurrency.NewSession(client, concurrency.WithLease(lease.ID), concurrency.WithContext(ctx),
		concurrency.WithTTL(int(c.ttl()/time.Second)))
	if err != nil {
		return nil, fmt.Errorf("open election session: %w", err)
	}
	return s, nil
}

// closeSession gives the role up at once; when that does not get through, its TTL
// does it.
func closeSession(s *concurrency.Session, c Config) {
	s.Orphan() // stops the keepalives
	ctx, cancel := context.WithTimeout(context.Background(), MinTTL)
	defer cancel()
	if _, err := c.Client.Revoke(ctx, s.Lease()); err != nil {
		c.Log.Debug("give up election", "election", c.Prefix, "error", err)
	}
}

func (c Config) ttl() time.Duration { return max(c.TTL, MinTTL) }

func pause(ctx context.Context) {
	t := time.NewTimer(retryPause + rand.N(retryPause))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Leader returns the value of the leader's key, and false when nobody leads.
func Leader(ctx context.Context, c *clientv3.Client, prefix string) (value string, elected bool, err error) {
	got, err := c.Get(ctx, prefix, clientv3.WithFirstCreate()...)
	if err != nil {
		return "", false, fmt.Errorf("read leader of %s: %w", prefix, err)
	}
	if len(got.Kvs) == 0 {
		return "", false, nil
	}
	return string(got.Kvs[0].Value), true, nil
}
