package registrar

import (
	"context"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
)

// Feed tells what the local etcd holds.
type Feed interface {
	// Run calls fn, from one goroutine, with a Reset, the whole content, a
	// Synced, and then every change, until ctx ends or fn returns an error. It
	// starts over with another Reset when it could not follow. While what it
	// told is proven to be current it says so with a Progress at least once a
	// second; silence means that nothing is known.
	Run(ctx context.Context, fn func(Update) error) error
	// TimeToLive asks how long a lease has left, in whole seconds rounded
	// towards zero, and with how many it was granted. A negative ttl: the lease
	// is gone, or overdue.
	TimeToLive(ctx context.Context, lease int64) (ttl, granted time.Duration, err error)
}

// Update is one step of a Feed. Its endpoints belong to the receiver.
type Update struct {
	// Reset voids all that was told before; a new load begins, and counts once
	// a Synced ends it.
	Reset, Synced bool
	// Progress: what was told so far is what the local etcd held at a moment no
	// earlier than At.
	Progress bool
	At       time.Time
	// Revision of the local etcd up to which everything was told; 0: not known.
	Revision  int64
	Endpoints []EndpointChange
	Mirrors   []MirrorChange
	Presence  []PresenceChange
}

// EndpointChange is one endpoint written or deleted. A deletion has only its
// Key.
type EndpointChange struct {
	Delete   bool
	Endpoint registry.Endpoint
	// ModRevision of the key in the local etcd.
	ModRevision int64
}

// PresenceChange is a node or a registrar that came or, with Deleted, went.
type PresenceChange struct {
	Origin registry.Origin
	// Node or Registrar is its name.
	Node, Registrar string
	Deleted         bool
}

// Leaf is a key that an origin keeps beside its mirror.
type Leaf uint8

// The leaves that decide what is shown.
const (
	// LeafState says whether the mirror is complete.
	LeafState Leaf = iota + 1
	// LeafLive exists, on a lease, while the origin lives.
	LeafLive
)

// MirrorChange is one leaf of an origin's mirror written or deleted.
type MirrorChange struct {
	Origin  string
	Leaf    Leaf
	Deleted bool
	// Complete and Checkpoint are a LeafState's.
	Complete   bool
	Checkpoint int64
	// Lease is a LeafLive's.
	Lease int64
}

// Store takes the writes. Its errors are or wrap a [registry.Error].
type Store interface {
	Register(ctx context.Context, endpoints []registry.Endpoint) (registry.Revision, error)
	// RegisterFor registers endpoints that go when they are not registered again
	// within ttl.
	RegisterFor(ctx context.Context, ttl time.Duration, endpoints []registry.Endpoint) (registry.Revision, error)
	Unregister(ctx context.Context, claims []registry.Claim) (removed int, rev registry.Revision, err error)
	// SetHealth changes the health of endpoints that exist, else NotFound.
	SetHealth(ctx context.Context, claims []registry.Claim, health registry.Health) (registry.Revision, error)
	// Reconcile stores and removes what differs from a node's report; a
	// conflict keeps back its own endpoint alone.
	Reconcile(ctx context.Context, store []registry.Endpoint, remove []registry.Claim) (registry.Outcome, error)
}

// Presence keeps nodes present.
type Presence interface {
	// Touch takes a sign of life of nodes and returns once each is present.
	Touch(ctx context.Context, nodes ...string) error
	// TTL is how long a node is present after that.
	TTL() time.Duration
}

// Sweeper tells how the sweep of the own cluster stands.
type Sweeper interface {
	Sweep() *registryv1.SweepResponse
	// Accept removes what is due, past the brake, if it is at most that many
	// endpoints, else it is a Conflict. It returns those that went, with an
	// error too.
	Accept(ctx context.Context, most int) (removed []registry.Key, err error)
}

// Peers tells of the outgoing mirrors of this region, whichever registrar
// leads them.
type Peers interface {
	Peers(ctx context.Context) ([]*registryv1.Peer, error)
}
