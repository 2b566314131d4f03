package registrar

import (
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aether-federation/aether/registry"
	"golang.org/x/sync/errgroup"
)

const (
	// beat is how often regions are judged and leases looked at.
	beat = 250 * time.Millisecond
	// readEvery is how often a lease is read that is not at risk.
	readEvery = time.Second
	// readTimeout bounds one reading.
	readTimeout = time.Second
	// readers is how many leases are read at once.
	readers = 16
)

// View is the merged view of all regions, in memory. Readers see one version of
// it, whole; a version is never changed, only followed by the next.
type View struct {
	feed    Feed
	log     *slog.Logger
	metrics *Metrics
	buffer  int
	// instance makes revisions of two views differ.
	instance string
	kick     chan struct{}
	ready    chan struct{}
	once     sync.Once

	mu      sync.RWMutex
	core    *core
	version uint64
	// seen is the local etcd's revision that was told, changed that of version.
	seen, changed int64
	resets        int
	fan           fan
	outbox        outbox
	digests       digests

	encodings *encodings
}

// newView returns a view of what cfg's feed tells. It is empty until run.
func newView(cfg Config) *View {
	v := &View{
		feed:     cfg.Feed,
		log:      cfg.Log,
		metrics:  cfg.Metrics,
		buffer:   cfg.WatchBuffer,
		instance: rand.Text()[:8],
		kick:     make(chan struct{}, 1),
		ready:    make(chan struct{}),
		core:     newCore(cfg.Origin.Region, cfg.BlindAfter),
		fan:      newFan(),
		outbox:   newOutbox(),
		digests:  digests{},

		encodings: newEncodings(),
	}
	v.core.lastResort = cfg.LastResort
	return v
}

// run follows the feed until ctx ends.
func (v *View) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return v.feed.Run(ctx, v.update) })
	g.Go(func() error { return v.watchLeases(ctx) })
	g.Go(func() error { return v.publish(ctx) })
	return g.Wait()
}

// update takes one update of the feed.
func (v *View) update(u Update) error {
	v.mu.Lock()
	first := !v.core.loaded
	if u.Reset {
		v.resets++
		if v.resets > 1 {
			v.metrics.resyncs.Inc()
		}
	}
	v.seen = max(v.seen, u.Revision)
	if u.Reset {
		v.seen = 0 // the store may be another
	}
	notes := v.advance(v.core.apply(u, time.Now()))
	first = first && v.core.loaded
	v.mu.Unlock()
	v.tell(notes)
	if first || len(u.Mirrors) > 0 {
		v.wake()
	}
	return nil
}

// advance makes a step the next version, for the subscribers to be told; v.mu is
// held.
func (v *View) advance(s step) []note {
	if len(s.changes) > 0 {
		v.version++
		v.changed = v.seen
		v.outbox.add(s.changes, time.Now())
		if v.outbox.calm {
			v.flush(time.Now())
		}
	}
	return s.notes
}

// tell logs and counts regions that came or went.
func (v *View) tell(notes []note) {
	for _, n := range notes {
		if n.shown {
			v.metrics.shown.WithLabelValues(n.region).Inc()
			v.log.Info("region shown", "peer_region", n.region, "endpoints", n.endpoints)
			continue
		}
		v.metrics.withdrawals.WithLabelValues(n.region, string(n.cause)).Inc()
		v.metrics.withdrawn.WithLabelValues(n.region, string(n.cause)).Add(float64(n.endpoints))
		if n.cause == Deleted {
			v.log.Warn("mass withdrawal", "peer_region", n.region, "endpoints", n.endpoints, "left", n.left, "cause", string(n.cause), "reason", n.reason)
			continue
		}
		v.log.Warn("region withdrawn", "peer_region", n.region, "endpoints", n.endpoints, "cause", string(n.cause), "reason", n.reason)
	}
}

func (v *View) wake() {
	select {
	case v.kick <- struct{}{}:
	default:
	}
}

// watchLeases reads the leases that prove origins alive, and judges regions as
// time passes, until ctx ends.
func (v *View) watchLeases(ctx context.Context) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-v.kick:
		}
		loaded := v.isLoaded()
		v.readLeases(ctx)
		v.mu.Lock()
		notes := v.advance(v.core.settle(time.Now()))
		v.mu.Unlock()
		v.tell(notes)
		if loaded {
			v.once.Do(func() { close(v.ready) })
		}
	}
}

func (v *View) isLoaded() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.core.loaded
}

// due is a lease to read.
type due struct {
	region string
	lease  int64
}

// due lists the leases to read now; v.mu is held. It is empty while the feed is
// blind: what the local etcd says then would not be put beside what it holds.
func (v *View) due(now time.Time) []due {
	if !v.core.current(now) {
		return nil
	}
	var all []due
	for _, r := range v.core.regions {
		l := r.facts.lease
		if !r.own && r.facts.live && (l.atRisk(now) || now.Sub(l.asked) >= readEvery) {
			all = append(all, due{region: r.name, lease: l.id})
		}
	}
	return all
}

func (v *View) readLeases(ctx context.Context) {
	v.mu.RLock()
	leases := v.due(time.Now())
	v.mu.RUnlock()
	var g errgroup.Group
	g.SetLimit(readers)
	for _, d := range leases {
		g.Go(func() error {
			v.readLease(ctx, d)
			return nil
		})
	}
	g.Wait() // each reading reports for itself
}

func (v *View) readLease(ctx context.Context, d due) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r := Reading{Asked: time.Now()}
	var err error
	if r.TTL, r.Granted, err = v.feed.TimeToLive(ctx, d.lease); err != nil {
		v.metrics.readErrors.Inc()
		v.log.Debug("read lease", "peer_region", d.region, "error", err)
		return
	}
	r.Answered = time.Now()
	v.mu.Lock()
	notes := v.advance(v.core.read(d.region, d.lease, r, r.Answered))
	v.mu.Unlock()
	v.tell(notes)
}

// Ready is closed once the view has been loaded and the lease of each region in
// it has been asked for, so that what is served from then on is all there is.
func (v *View) Ready() <-chan struct{} { return v.ready }

// isReady reports whether Ready is closed.
func (v *View) isReady() bool {
	select {
	case <-v.ready:
		return true
	default:
		return false
	}
}

// revision names the current version; v.mu is held.
func (v *View) revision() registry.Revision {
	return registry.Revision(v.instance + "-" + strconv.FormatUint(v.version, 10) + "-" + strconv.FormatInt(v.changed, 10))
}

// Snapshot is one version of the part of a view that was asked for. Its slices
// are shared: they are read only.
type Snapshot struct {
	// Services in the order of their names, each sorted by key.
	Services [][]*registry.Endpoint
	Revision registry.Revision
}

// Len returns the number of endpoints.
func (s Snapshot) Len() int {
	n := 0
	for _, endpoints := range s.Services {
		n += len(endpoints)
	}
	return n
}

// Snapshot returns what q asks for.
func (v *View) Snapshot(q registry.Query) Snapshot {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.snapshot(q)
}

// snapshot is Snapshot with v.mu held.
func (v *View) snapshot(q registry.Query) Snapshot {
	names := q.Services
	if len(names) == 0 {
		names = slices.Collect(maps.Keys(v.core.index))
	}
	return v.snapshotOf(names)
}

// snapshotOf returns the named services; v.mu is held.
func (v *View) snapshotOf(names []string) Snapshot {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	s := Snapshot{Revision: v.revision(), Services: make([][]*registry.Endpoint, 0, len(names))}
	for _, name := range names {
		if endpoints := v.core.index[name]; len(endpoints) > 0 {
			s.Services = append(s.Services, endpoints)
		}
	}
	return s
}

// Regions tells of every region that is known, sorted by name.
func (v *View) Regions() []RegionStatus {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.core.status(time.Now())
}

// ages returns how long ago each region was proven alive.
func (v *View) ages() map[string]time.Duration {
	v.mu.RLock()
	defer v.mu.RUnlock()
	now := time.Now()
	ages := make(map[string]time.Duration, len(v.core.regions))
	for name, r := range v.core.regions {
		ages[name] = v.core.age(r, now)
	}
	return ages
}

// size returns the number of endpoints that are shown.
func (v *View) size() int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := 0
	for _, r := range v.core.regions {
		n += r.served
	}
	return n
}

// stats tells the version and the number of subscribers.
func (v *View) stats() (version uint64, subscribers int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.version, v.fan.len()
}
