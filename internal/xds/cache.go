package xds

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aether-federation/aether/registry"
)

const (
	// holdOff is how long after a change of a service the next ones are waited
	// for, and maxHoldOff how long a burst may put off the first of them. It is
	// short: views hold off themselves, and tell what they have at once.
	holdOff    = time.Millisecond
	maxHoldOff = 10 * time.Millisecond
	// retryWatch is how long to wait after a source ended a watch.
	retryWatch = 200 * time.Millisecond
)

// Source is where endpoints come from: a registrar's view, or an agent's.
type Source interface {
	// Watch is [registry.Registry]'s, of endpoints that are shared: fn does not
	// change them. It may wait until there is something to tell.
	Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error
	// Service returns the endpoints of one service, sorted by key, at least as new
	// as what a Watch has told. The slice is shared: it is read only.
	Service(name string) []*registry.Endpoint
}

// errPending: what there is is not known yet.
var errPending = errors.New("not known yet")

// cache follows the services that somebody asked for, and nothing else.
type cache struct {
	source      Source
	translation Translation
	log         *slog.Logger
	metrics     *Metrics
	// ctx ends, by stop, with everything that follows.
	ctx  context.Context
	stop context.CancelFunc
	// filled is signalled when there is something in dirty.
	filled chan struct{}

	mu       sync.Mutex
	followed sync.WaitGroup
	services map[string]*followed
	dirty    map[*followed]struct{}
	// first and last are when dirty got its first and its last.
	first, last time.Time
}

func newCache(cfg Config) *cache {
	c := &cache{
		source: cfg.Source, translation: cfg.Translation, log: cfg.Log, metrics: cfg.Metrics,
		filled: make(chan struct{}, 1), services: map[string]*followed{}, dirty: map[*followed]struct{}{},
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// everything is the name under which all services are followed, by name alone.
const everything = ""

// follow makes w one of those that a service's changes wake. Each follow is undone
// by one leave.
func (c *cache) follow(service string, w *watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.services[service]
	if f == nil {
		f = newFollowed(service)
		c.services[service] = f
		c.begin(f)
	}
	f.watchers[w] = struct{}{}
}

// begin follows f until it is stopped; c.mu is held.
func (c *cache) begin(f *followed) {
	ctx, cancel := context.WithCancel(c.ctx)
	f.stop = cancel
	if ctx.Err() == nil {
		c.followed.Go(func() { c.watch(ctx, f) })
	}
}

// leave undoes follow.
func (c *cache) leave(service string, w *watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.services[service]
	if f == nil {
		return
	}
	if delete(f.watchers, w); len(f.watchers) == 0 {
		f.stop()
		delete(c.services, service)
		delete(c.dirty, f)
	}
}

// watch follows f's source, again whenever it ends, until ctx does.
func (c *cache) watch(ctx context.Context, f *followed) {
	for {
		err := c.source.Watch(ctx, f.query(), func(e registry.Event) error {
			switch f.take(e) {
			case loaded:
				c.publish(f)
			case changed:
				c.mark(f)
			}
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		c.log.Debug("watch ended", "service", f.service, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryWatch):
		}
	}
}

// mark notes that f has changed.
func (c *cache) mark(f *followed) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(f.watchers) == 0 {
		return
	}
	if len(c.dirty) == 0 {
		c.first = now
		select {
		case c.filled <- struct{}{}:
		default:
		}
	}
	c.dirty[f], c.last = struct{}{}, now
}

// run publishes what changes until ctx ends, and ends all that is followed.
func (c *cache) run(ctx context.Context) {
	defer c.followed.Wait()
	defer c.close()
	timer := time.NewTimer(maxHoldOff)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.filled:
		case <-timer.C:
		}
		if wait := c.flush(time.Now()); wait > 0 {
			timer.Reset(wait)
		}
	}
}

// close ends what is followed: nothing new begins after it.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop()
}

// flush publishes what has changed if it is time to, and otherwise returns for how
// long to wait.
func (c *cache) flush(now time.Time) time.Duration {
	c.mu.Lock()
	if len(c.dirty) == 0 {
		c.mu.Unlock()
		return 0
	}
	due := c.last.Add(holdOff)
	if latest := c.first.Add(maxHoldOff); latest.Before(due) {
		due = latest
	}
	if wait := due.Sub(now); wait > 0 {
		c.mu.Unlock()
		return wait
	}
	changed := c.dirty
	c.dirty = map[*followed]struct{}{}
	c.mu.Unlock()
	for f := range changed {
		c.publish(f)
	}
	return 0
}

// publish shows what f has, unless it is being loaded, and wakes its watchers.
func (c *cache) publish(f *followed) {
	shown, names := f.show(c.source)
	if !shown {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range f.watchers {
		w.wake(f.service, names)
	}
}

// shownOf returns the newest state of a service that is followed, nil while none is
// known.
func (c *cache) shownOf(service string) *snapshot {
	c.mu.Lock()
	f := c.services[service]
	c.mu.Unlock()
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown
}

// names returns the services that there are, sorted, if everything is followed and
// was loaded.
func (c *cache) names() (names []string, known bool) {
	c.mu.Lock()
	f := c.services[everything]
	c.mu.Unlock()
	if f == nil {
		return nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.names, f.names != nil
}

// everyPort returns the name of each port of each service, if all are known.
func (c *cache) everyPort() ([]string, bool) {
	services, known := c.names()
	if !known {
		return nil, false
	}
	var all []string
	for _, service := range services {
		if c.shownOf(service) == nil {
			return nil, false
		}
		all = append(all, c.ports(service)...)
	}
	return all, true
}

// ports returns the name of each port of one service.
func (c *cache) ports(service string) []string {
	s := c.shownOf(service)
	if s == nil {
		return nil
	}
	names := make([]string, len(s.ports))
	for i, port := range s.ports {
		names[i] = Name{service, port}.String()
	}
	return names
}

// unreachable returns how many endpoints are left out, by the client's network.
func (c *cache) unreachable() map[string]int {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.services))
	c.mu.Unlock()
	out := map[string]int{}
	for _, f := range all {
		f.mu.Lock()
		s := f.shown
		f.mu.Unlock()
		if s != nil {
			s.unreachable(out)
		}
	}
	return out
}

// get returns a resource for c. The error is errPending as long as the service's
// endpoints are not known, and otherwise says why there is none.
func (c *cache) get(k kind, n Name, client Client) (*resource, error) {
	s := c.shownOf(n.Service)
	if s == nil {
		return nil, errPending
	}
	start := time.Now()
	r, fresh, err := s.get(k, n, client, c.translation)
	if fresh {
		c.metrics.built(k, time.Since(start), err)
	}
	return r, err
}
