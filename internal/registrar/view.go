package registrar

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/aether-federation/aether/internal/view"
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

// View is the merged view of all regions, in memory: what its core decides, for
// its readers.
type View struct {
	*view.View
	feed    Feed
	log     *slog.Logger
	metrics *Metrics
	kick    chan struct{}
	ready   chan struct{}
	once    sync.Once

	mu     sync.RWMutex
	core   *core
	resets int
}

// newView returns a view of what cfg's feed tells. It is empty until run.
func newView(cfg Config) *View {
	v := &View{
		View:    view.New(view.Config{Buffer: cfg.WatchBuffer, CutOff: cfg.Metrics.cutOff.Inc}),
		feed:    cfg.Feed,
		log:     cfg.Log,
		metrics: cfg.Metrics,
		kick:    make(chan struct{}, 1),
		ready:   make(chan struct{}),
		core:    newCore(cfg.Origin.Region, cfg.BlindAfter),
	}
	v.core.lastResort = cfg.LastResort
	return v
}

// run follows the feed until ctx ends.
func (v *View) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return v.feed.Run(ctx, v.update) })
	g.Go(func() error { return v.watchLeases(ctx) })
	g.Go(func() error { return v.View.Run(ctx) })
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
	seen := u.Revision
	if u.Reset {
		v.Forget() // the store may be another
		seen = 0
	}
	notes := v.advance(v.core.apply(u, time.Now()), seen)
	first = first && v.core.loaded
	v.mu.Unlock()
	v.tell(notes)
	if first || len(u.Mirrors) > 0 {
		v.wake()
	}
	return nil
}

// advance publishes a step, with which the local etcd's revision seen is reached;
// v.mu is held.
func (v *View) advance(s step, seen int64) []note {
	v.Publish(v.core.index, s.changes, seen)
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
		notes := v.advance(v.core.settle(time.Now()), 0)
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
	notes := v.advance(v.core.read(d.region, d.lease, r, r.Answered), 0)
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
