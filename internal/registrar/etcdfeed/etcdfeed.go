// Package etcdfeed shows a registrar what registry/etcd's feed tells, in the
// registrar's own terms.
package etcdfeed

import (
	"context"
	"time"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
)

// Feed is a [registrar.Feed] made of an etcd.Feed.
type Feed struct{ feed *etcd.Feed }

var _ registrar.Feed = Feed{}

// New returns feed as a registrar reads it.
func New(feed *etcd.Feed) Feed { return Feed{feed} }

// Run implements [registrar.Feed].
func (f Feed) Run(ctx context.Context, fn func(registrar.Update) error) error {
	return f.feed.Run(ctx, func(u etcd.Update) error { return fn(update(u)) })
}

// TimeToLive implements [registrar.Feed].
func (f Feed) TimeToLive(ctx context.Context, lease int64) (left, granted time.Duration, err error) {
	left, granted, err = f.feed.TimeToLive(ctx, lease)
	if registry.KindOf(err) == registry.NotFound {
		return -1, 0, nil
	}
	return left, granted, err
}

func update(u etcd.Update) registrar.Update {
	out := registrar.Update{Reset: u.Reset, Synced: u.Synced, Progress: u.Progress, At: u.At, Revision: u.Revision}
	if len(u.Endpoints) > 0 {
		out.Endpoints = make([]registrar.EndpointChange, len(u.Endpoints))
	}
	for i, c := range u.Endpoints {
		out.Endpoints[i] = registrar.EndpointChange(c)
	}
	for _, c := range u.Presence {
		out.Presence = append(out.Presence, registrar.PresenceChange(c))
	}
	for _, c := range u.Mirrors {
		if m, ok := mirror(c); ok {
			out.Mirrors = append(out.Mirrors, m)
		}
	}
	return out
}

// mirror returns false for a leaf that decides nothing. A state that does not
// parse is not complete.
func mirror(c etcd.MirrorChange) (registrar.MirrorChange, bool) {
	m := registrar.MirrorChange{Origin: c.Origin, Deleted: c.Deleted}
	switch c.Leaf {
	case keyspace.State:
		m.Leaf = registrar.LeafState
		m.Complete = c.State.GetPhase() == mirrorv1.Phase_PHASE_COMPLETE
		m.Checkpoint = c.State.GetCheckpoint()
	case keyspace.Live:
		m.Leaf = registrar.LeafLive
		m.Lease = c.LeaseID
	default:
		return m, false
	}
	return m, true
}
