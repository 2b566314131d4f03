package view

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

const (
	// catchUp is how long a reader that has seen more than this registrar waits
	// for it; catchUpBeat is how often that is looked at.
	catchUp     = time.Second
	catchUpBeat = 20 * time.Millisecond
	// MaxHeld is how many services a reader may hold when it resumes.
	MaxHeld = 10000
)

// Held is what a reader holds from before: what differs from it is all that it
// needs to be told. Its digests tell that of any registrar, whatever that has
// seen itself: deletions that nobody remembers show in them too.
type Held struct {
	seen    int64
	digests map[string]uint64
}

// HeldOf returns nil for a reader that holds nothing.
func HeldOf(m *registryv1.Held) (*Held, error) {
	if m == nil {
		return nil, nil
	}
	if len(m.GetDigests()) > MaxHeld {
		return nil, registry.Invalidf("held.digests", "there are %d: name at most %d, or hold nothing", len(m.GetDigests()), MaxHeld)
	}
	return &Held{seen: SeenAt(m.GetRevision()), digests: m.GetDigests()}, nil
}

// SeenAt returns the local etcd's revision of a view's, 0 if it says none.
func SeenAt(revision string) int64 {
	seen, err := strconv.ParseInt(revision[strings.LastIndexByte(revision, '-')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return seen
}

// Reach waits until v has been told of the local etcd's revision, for catchUp at
// most: a reader that comes from another registrar must not be set back by one
// that lags a little, nor kept waiting by one whose etcd was restored.
func (v *View) Reach(ctx context.Context, h *Held) {
	if h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	tick := time.NewTicker(catchUpBeat)
	defer tick.Stop()
	for !v.hasSeen(h.seen) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (v *View) hasSeen(seen int64) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.seen >= seen
}

// differing returns the services of q that are not what h says; v.mu is held for
// writing.
func (v *View) differing(q registry.Query, h *Held) []string {
	names := q.Services
	if len(names) == 0 {
		names = slices.AppendSeq(slices.Collect(maps.Keys(v.index)), maps.Keys(h.digests))
	}
	var out []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if v.digests.of(v.index, name) != h.digests[name] {
			out = append(out, name)
		}
	}
	return out
}

// digests keeps the digest of each service that was asked for, with what it is
// of: slices in an index never change.
type digests map[string]digest

type digest struct {
	of  []*registry.Endpoint
	sum uint64
}

func (d digests) of(ix Index, service string) uint64 {
	endpoints := ix[service]
	if len(endpoints) == 0 {
		delete(d, service)
		return 0
	}
	known, found := d[service]
	if found && len(known.of) == len(endpoints) && &known.of[0] == &endpoints[0] {
		return known.sum
	}
	next := digest{of: endpoints}
	for _, e := range endpoints {
		next.sum += wire.Digest(*e)
	}
	if len(d) > 2*len(ix) {
		clear(d) // of services that are gone
	}
	d[service] = next
	return next.sum
}
