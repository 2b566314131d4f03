package xds

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/aether-federation/aether/registry"
)

// followed is one service, or the names of all, as its source tells of it. It keeps
// no endpoints: the source has them.
type followed struct {
	// service is empty for all.
	service string
	// stop and watchers are guarded by the cache's lock.
	stop     context.CancelFunc
	watchers map[*watcher]struct{}

	mu sync.Mutex
	// loading: a snapshot is being told; loaded: one was told to its end.
	loading, loaded bool
	// mentioned are services of which there was word, of all.
	mentioned map[string]struct{}
	// shown is what a service has, names are all services that there are.
	shown *snapshot
	names []string
}

func newFollowed(service string) *followed {
	return &followed{service: service, watchers: map[*watcher]struct{}{}, mentioned: map[string]struct{}{}}
}

// all reports whether f is about all services.
func (f *followed) all() bool { return f.service == everything }

func (f *followed) query() registry.Query {
	if f.all() {
		return registry.Query{}
	}
	return registry.Query{Services: []string{f.service}}
}

// news is what an event brings.
type news uint8

const (
	nothing news = iota
	// changed: there is something to show, and more may follow.
	changed
	// loaded: all of it is there.
	loaded
)

// take notes an event.
func (f *followed) take(e registry.Event) news {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Kind {
	case registry.Reset:
		f.loading = true
		return nothing
	case registry.Synced:
		f.loading, f.loaded = false, true
		return loaded
	}
	if f.all() && !f.mention(e) || f.loading {
		return nothing
	}
	return changed
}

// mention notes the service of an event, and reports whether it may be new or gone;
// f.mu is held.
func (f *followed) mention(e registry.Event) bool {
	_, known := f.mentioned[e.Endpoint.Service]
	f.mentioned[e.Endpoint.Service] = struct{}{}
	return !known || e.Kind == registry.Delete
}

// show makes what readers get of what the source has, and reports whether it could,
// and whether there may be other names than before.
func (f *followed) show(from Source) (shown, names bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.loaded || f.loading {
		return false, false
	}
	if f.all() {
		return f.showNames(from)
	}
	before := f.shown
	f.shown = newSnapshot(f.service, from.Service(f.service))
	return true, before == nil || !slices.Equal(before.ports, f.shown.ports)
}

// showNames is show of all services: only other names are worth showing.
func (f *followed) showNames(from Source) (shown, names bool) {
	maps.DeleteFunc(f.mentioned, func(service string, _ struct{}) bool { return len(from.Service(service)) == 0 })
	now := slices.Sorted(maps.Keys(f.mentioned))
	if f.names != nil && slices.Equal(now, f.names) {
		return false, false
	}
	f.names = append([]string{}, now...)
	return true, true
}
