package main

import (
	"context"
	"time"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
)

// feed is etcd's Feed in the words of the registrar, which knows no etcd.
type feed struct {
	*etcd.Feed
	store *etcd.Store
}

// Run implements [registrar.Feed].
func (f feed) Run(ctx context.Context, fn func(registrar.Update) error) error {
	return f.Feed.Run(ctx, func(u etcd.Update) error { return fn(update(u)) })
}

// TimeToLive implements [registrar.Feed].
func (f feed) TimeToLive(ctx context.Context, lease int64) (ttl, granted time.Duration, err error) {
	ttl, granted, err = etcd.TimeToLive(ctx, f.store.Client(), lease)
	if registry.KindOf(err) == registry.NotFound {
		return -time.Second, 0, nil
	}
	return ttl, granted, err
}

func update(u etcd.Update) registrar.Update {
	out := registrar.Update{Reset: u.Reset, Synced: u.Synced, Progress: u.Progress, Revision: u.Revision}
	for _, e := range u.Endpoints {
		out.Endpoints = append(out.Endpoints, registrar.EndpointChange(e))
	}
	for _, m := range u.Mirrors {
		if c, ok := mirrorChange(m); ok {
			out.Mirrors = append(out.Mirrors, c)
		}
	}
	return out
}

// mirrorChange leaves out the fence, which decides nothing here.
func mirrorChange(m etcd.MirrorChange) (registrar.MirrorChange, bool) {
	out := registrar.MirrorChange{Origin: m.Origin, Deleted: m.Deleted, Lease: m.LeaseID}
	switch m.Leaf {
	case keyspace.State:
		out.Leaf = registrar.LeafState
		out.Complete = m.State.GetPhase() == mirrorv1.Phase_PHASE_COMPLETE
		out.Checkpoint = m.State.GetCheckpoint()
	case keyspace.Live:
		out.Leaf = registrar.LeafLive
	default:
		return out, false
	}
	return out, true
}
