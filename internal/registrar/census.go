package registrar

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/aether-federation/aether/registry"
)

// DefaultGrace is how long a node, or a whole cluster, may be absent before
// something follows from it: a restart of registrars, or of etcd, is shorter.
const DefaultGrace = 5 * time.Minute

// CensusConfig says whose census it is.
type CensusConfig struct {
	Origin registry.Origin
	// Grace before a cluster without presence is served as unhealthy. 0:
	// DefaultGrace.
	Grace time.Duration
	// BlindAfter is as in [Config].
	BlindAfter time.Duration
	Log        *slog.Logger
}

// Census is who holds which endpoint in the own region, and which nodes are
// present, by what the feed tells. It stands between the feed and the view, and
// changes what the view is told in one respect: the endpoints of another cluster
// of the own region, none of whose registrars and nodes was present for the
// grace, are unhealthy.
type Census struct {
	cfg CensusConfig

	mu      sync.Mutex
	books   *books
	loading *books // nil: no load is under way
	proven  time.Time
	// epoch counts the loads.
	epoch int
	// gone is since when another cluster has no presence; dead are those for
	// which this lasted for the grace.
	gone map[string]time.Time
	dead map[string]bool
}

// Holding is an endpoint as the local etcd has it.
type Holding struct {
	// Endpoint is read only.
	Endpoint    *registry.Endpoint
	ModRevision int64
}

// Roll is a census of the own cluster, by nodes that are absent.
type Roll struct {
	// Current: it is what the local etcd held lately, by proof. Without, it
	// proves no absence.
	Current bool
	// Epoch changes when the census was taken anew, so that what was true
	// between is not known.
	Epoch int
	// Registrars of the own cluster that are present.
	Registrars int
	// Endpoints of the own cluster, with a node or without.
	Endpoints int
	// Absent nodes that hold endpoints.
	Absent map[string][]Holding
}

// books are what a census is kept in.
type books struct {
	held map[registry.Key]*Holding
	// nodes are the own cluster's holdings by node.
	nodes map[string]map[*Holding]struct{}
	// sizes counts the endpoints of each cluster.
	sizes map[string]int
	// present nodes of the own cluster.
	present map[string]bool
	// registrars of the own cluster, and lives, the presence keys of each.
	registrars map[string]bool
	lives      map[string]map[PresenceChange]struct{}
}

func newBooks() *books {
	return &books{
		held: map[registry.Key]*Holding{}, nodes: map[string]map[*Holding]struct{}{}, sizes: map[string]int{},
		present: map[string]bool{}, registrars: map[string]bool{}, lives: map[string]map[PresenceChange]struct{}{},
	}
}

// NewCensus returns a census that knows nothing yet.
func NewCensus(c CensusConfig) *Census {
	c.Grace = orDefault(c.Grace, DefaultGrace)
	c.BlindAfter = orDefault(c.BlindAfter, DefaultBlindAfter)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Census{cfg: c, books: newBooks(), gone: map[string]time.Time{}, dead: map[string]bool{}}
}

// Present reports whether a node of the own cluster is present. While that is
// not known, it is.
func (c *Census) Present(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.current(time.Now()) || c.books.present[node]
}

// Known reports whether key is thought to exist. While that is not known, it is.
func (c *Census) Known(key registry.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.current(time.Now()) || c.books.held[key] != nil
}

// holdings returns what a node of the own cluster holds and whether it is
// present. It is Unavailable while that is not known.
func (c *Census) holdings(node string) (held map[registry.Key]*registry.Endpoint, present bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.current(time.Now()) {
		return nil, false, registry.Errorf(registry.Unavailable, "the registrar's etcd does not answer, so what node %q has is not known: report again", node)
	}
	held = make(map[registry.Key]*registry.Endpoint, len(c.books.nodes[node]))
	for h := range c.books.nodes[node] {
		held[h.Endpoint.Key] = h.Endpoint
	}
	return held, c.books.present[node], nil
}

// silent returns for how long the own etcd has been away, 0 while it is not known to
// be: before it was ever read, and while it is being read anew.
func (c *Census) silent(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch == 0 || c.loading != nil || c.current(now) {
		return 0
	}
	return now.Sub(c.proven)
}

// Roll takes the census of the own cluster.
func (c *Census) Roll() Roll {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.books
	r := Roll{
		Current: c.current(time.Now()), Epoch: c.epoch, Registrars: len(b.registrars),
		Endpoints: b.sizes[c.cfg.Origin.Cluster], Absent: map[string][]Holding{},
	}
	for node, held := range b.nodes {
		if b.present[node] {
			continue
		}
		for h := range held {
			r.Absent[node] = append(r.Absent[node], *h)
		}
	}
	return r
}

// current reports whether the books are proven to be current; c.mu is held.
func (c *Census) current(now time.Time) bool {
	return c.epoch > 0 && c.loading == nil && now.Sub(c.proven) <= c.cfg.BlindAfter
}

// counted is a feed whose updates pass through a census.
type counted struct {
	Feed
	census *Census
}

// Run implements [Feed].
func (f counted) Run(ctx context.Context, fn func(Update) error) error {
	return f.Feed.Run(ctx, func(u Update) error {
		more := f.census.take(&u, time.Now())
		if err := fn(u); err != nil || len(more) == 0 {
			return err
		}
		return fn(Update{Endpoints: more})
	})
}

// take notes u and changes it as said of [Census]. It returns what else has
// changed: the endpoints of clusters that died or came back.
func (c *Census) take(u *Update, now time.Time) []EndpointChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	if u.Reset {
		c.loading = newBooks()
	}
	b := c.books
	if c.loading != nil {
		b = c.loading
	}
	for _, p := range u.Presence {
		b.presence(c.cfg.Origin, p)
	}
	for i := range u.Endpoints {
		if u.Endpoints[i].Endpoint.Region == c.cfg.Origin.Region {
			b.endpoint(c.cfg.Origin, &u.Endpoints[i], c.dead)
		}
	}
	blind := now.Sub(c.proven) > c.cfg.BlindAfter
	if u.Synced && c.loading != nil {
		c.books, c.loading = c.loading, nil
		c.epoch++
		c.proven = now
	}
	if u.Progress {
		c.proven = later(c.proven, u.At)
	}
	if c.loading != nil || !u.Synced && !u.Progress {
		return nil
	}
	if blind {
		clear(c.gone) // what is absent now may have been there meanwhile
	}
	return c.judgeClusters(now)
}

// judgeClusters finds the clusters that died or came back.
func (c *Census) judgeClusters(now time.Time) []EndpointChange {
	var changes []EndpointChange
	for cluster := range c.dead {
		if c.books.sizes[cluster] == 0 {
			delete(c.dead, cluster)
			delete(c.gone, cluster)
		}
	}
	for cluster := range c.books.sizes {
		if cluster == c.cfg.Origin.Cluster {
			continue
		}
		dead := c.lost(cluster, now)
		if dead == c.dead[cluster] {
			continue
		}
		c.dead[cluster] = dead
		changes = append(changes, c.cluster(cluster, dead)...)
		if dead {
			c.cfg.Log.Warn("cluster lost: its endpoints are served as unhealthy", "cluster", cluster, "endpoints", c.books.sizes[cluster])
		} else {
			c.cfg.Log.Info("cluster is back", "cluster", cluster, "endpoints", c.books.sizes[cluster])
		}
	}
	return changes
}

// lost reports whether a cluster has had no presence for the grace. One that is
// dead stays so until something of it is present.
func (c *Census) lost(cluster string, now time.Time) bool {
	if len(c.books.lives[cluster]) > 0 {
		delete(c.gone, cluster)
		return false
	}
	since, ok := c.gone[cluster]
	if !ok {
		c.gone[cluster] = now
		since = now
	}
	return c.dead[cluster] || now.Sub(since) >= c.cfg.Grace
}

// cluster returns all endpoints of a cluster as they are served from now on.
func (c *Census) cluster(cluster string, dead bool) []EndpointChange {
	var changes []EndpointChange
	for _, h := range c.books.held {
		if h.Endpoint.Cluster != cluster {
			continue
		}
		e := *h.Endpoint
		if dead {
			e = lostEndpoint(e)
		}
		changes = append(changes, EndpointChange{Endpoint: e, ModRevision: h.ModRevision})
	}
	return changes
}

// Dead lists, sorted, the clusters of the own region that are served as unhealthy.
func (c *Census) Dead() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for cluster, dead := range c.dead {
		if dead {
			all = append(all, cluster)
		}
	}
	slices.Sort(all)
	return all
}

// lostEndpoint is how an endpoint of a cluster that died is served.
func lostEndpoint(e registry.Endpoint) registry.Endpoint {
	e.Health = registry.Unhealthy
	return e
}

// endpoint notes a change, and changes it if its cluster is dead.
func (b *books) endpoint(own registry.Origin, c *EndpointChange, dead map[string]bool) {
	key := c.Endpoint.Key
	b.drop(own, key)
	if c.Delete {
		return
	}
	h := &Holding{Endpoint: &c.Endpoint, ModRevision: c.ModRevision}
	if dead[key.Cluster] {
		e := c.Endpoint
		h.Endpoint = &e
		c.Endpoint = lostEndpoint(e)
	}
	b.held[key] = h
	b.sizes[key.Cluster]++
	if node := h.Endpoint.Node; node != "" && key.Origin == own {
		if b.nodes[node] == nil {
			b.nodes[node] = map[*Holding]struct{}{}
		}
		b.nodes[node][h] = struct{}{}
	}
}

func (b *books) drop(own registry.Origin, key registry.Key) {
	h := b.held[key]
	if h == nil {
		return
	}
	delete(b.held, key)
	if b.sizes[key.Cluster]--; b.sizes[key.Cluster] == 0 {
		delete(b.sizes, key.Cluster)
	}
	if node := h.Endpoint.Node; node != "" && key.Origin == own {
		delete(b.nodes[node], h)
		if len(b.nodes[node]) == 0 {
			delete(b.nodes, node)
		}
	}
}

// presence notes a node or registrar that came or went.
func (b *books) presence(own registry.Origin, p PresenceChange) {
	if p.Origin.Region != own.Region {
		return
	}
	gone := p.Deleted
	p.Deleted = false
	if p.Origin == own && p.Node != "" {
		set(b.present, p.Node, !gone)
	}
	if p.Origin == own && p.Registrar != "" {
		set(b.registrars, p.Registrar, !gone)
	}
	lives := b.lives[p.Origin.Cluster]
	if lives == nil {
		lives = map[PresenceChange]struct{}{}
		b.lives[p.Origin.Cluster] = lives
	}
	if gone {
		delete(lives, p)
	} else {
		lives[p] = struct{}{}
	}
}

func set(in map[string]bool, name string, there bool) {
	if there {
		in[name] = true
	} else {
		delete(in, name)
	}
}
