// Package report keeps the registry equal to what a node has, through whichever
// registrar answers: all of it after each change and, as a sign of life, a few
// times within the time for which the node counts as present.
//
// A report is always the node's full set, so nothing has to be remembered of what
// came through and what did not: after an outage of any length the next report
// puts right whatever differs, and what does not differ is not touched.
package report

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

const (
	// hold is how long changes gather, so that those of a moment are one report.
	hold = 50 * time.Millisecond
	// confirmAfter is when a report that changed something is repeated: a registrar
	// compares with its view, which may have been behind.
	confirmAfter = time.Second
	// defaultPresence is assumed before a registrar has said how long a node counts
	// as present; perPresence reports are made within that time.
	defaultPresence = 30 * time.Second
	perPresence     = 3
	// callTimeout bounds a report; minPause and maxPause the wait after one that
	// did not come through.
	callTimeout = 5 * time.Second
	minPause    = 100 * time.Millisecond
	maxPause    = 3 * time.Second
)

// Registrar takes reports; a [remote.Registry] does.
type Registrar interface {
	Report(context.Context, remote.Report) (remote.Reported, error)
	SetHealth(context.Context, []registry.Claim, registry.Health) (registry.Revision, error)
}

// Announcement is what a node has.
type Announcement struct {
	// Known: Endpoints is all of it. Otherwise the node is kept present, and
	// nothing else is changed.
	Known     bool
	Endpoints []registry.Endpoint
}

// Memory is what was announced last, over restarts.
type Memory interface {
	// Save is called before and after reports that change what was announced, with
	// the health of each endpoint.
	Save(map[registry.Key]registry.Health) error
	// Touch is called after reports that change nothing.
	Touch() error
}

// Config is what a Reporter needs.
type Config struct {
	Node      string
	Registrar Registrar
	// Announced is what an earlier agent of this node announced, as Memory holds it.
	Announced map[registry.Key]registry.Health
	Memory    Memory
	Log       *slog.Logger
	// Metrics, if not nil, get the reporter's.
	Metrics prometheus.Registerer
}

// Status is how reporting goes.
type Status struct {
	// Last is when a report came through; zero: none has.
	Last time.Time
	// Registrar is the address of the one that took the latest report, where its
	// Reported says so.
	Registrar string
	// Since is since when reports come through or, while Err is set, do not.
	Since time.Time
	// Err is why the latest report did not come through.
	Err error
	// PresenceTTL is how long the node counts as present after a report.
	PresenceTTL time.Duration
	// Conflicts are endpoints that another node holds. They are tried again with
	// each report.
	Conflicts map[registry.Key]error
	// Rival is since when the registry again and again differs from what this node
	// reported last: most likely another machine reports under its name. Zero: it
	// does not.
	Rival time.Time
	// PresenceOnly: the latest report was a sign of life and no more.
	PresenceOnly bool
}

// Reporter reports what is announced. It is safe for concurrent use.
type Reporter struct {
	cfg     Config
	metrics *metrics
	wake    chan struct{}

	mu     sync.Mutex
	next   Announcement
	number uint64 // of next
	status Status
	rival  rival
	// done is the number of the latest announcement that came through; advanced is
	// closed and replaced when it changes.
	done     uint64
	advanced chan struct{}

	// announced belongs to Run.
	announced map[registry.Key]registry.Health
}

// New returns a Reporter that reports nothing before Run, and nothing but its
// presence before Announce.
func New(cfg Config) *Reporter {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	r := &Reporter{
		cfg: cfg, wake: make(chan struct{}, 1), advanced: make(chan struct{}),
		announced: maps.Clone(cfg.Announced), status: Status{PresenceTTL: defaultPresence, Since: time.Now()},
	}
	if r.announced == nil {
		r.announced = map[registry.Key]registry.Health{}
	}
	r.metrics = newMetrics(cfg.Metrics)
	return r
}

// Announce says what the node has from now on. The endpoints are shared: they must
// not be changed any more.
func (r *Reporter) Announce(a Announcement) {
	r.mu.Lock()
	r.next = a
	r.number++
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Flush waits until what was announced last has come through, or ctx ends.
func (r *Reporter) Flush(ctx context.Context) error {
	r.mu.Lock()
	wanted := r.number
	r.mu.Unlock()
	for {
		r.mu.Lock()
		done, advanced := r.done, r.advanced
		r.mu.Unlock()
		if done >= wanted {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-advanced:
		}
	}
}

// Status tells how reporting goes.
func (r *Reporter) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Conflicts = maps.Clone(s.Conflicts)
	return s
}

// Run reports until ctx ends, and returns nil then.
func (r *Reporter) Run(ctx context.Context) error {
	pause := minPause
	for {
		wait, err := r.send(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			pause = minPause
		} else {
			pause = min(2*pause, maxPause)
			wait = pause/2 + rand.N(pause/2)
		}
		if !r.rest(ctx, wait, err == nil) {
			return nil
		}
	}
}

// rest waits for the time of the next report. A change comes before its time
// unless the last report failed: then the wait is short, and has to be kept.
func (r *Reporter) rest(ctx context.Context, d time.Duration, changes bool) bool {
	wake := r.wake
	if !changes {
		wake = nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
			return true
		case <-wake:
			t.Reset(min(d, hold))
			wake = nil
		}
	}
}

// send makes one report of what is announced, and returns when the next is due.
func (r *Reporter) send(ctx context.Context) (wait time.Duration, err error) {
	r.mu.Lock()
	next, number := r.next, r.number
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := r.rememberDrains(next); err != nil {
		r.cfg.Log.Warn("a restart would not know what drains", "error", err)
	}
	start := time.Now()
	answer, err := r.cfg.Registrar.Report(ctx, r.request(next))
	if err == nil && next.Known {
		err = r.liftDrains(ctx, next, answer.Conflicts)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = registry.Errorf(registry.Unavailable, "no registrar took the report within %v: %w", callTimeout, err)
	}
	r.metrics.sent(start, answer, err)
	if err == nil {
		r.remember(next)
	}
	r.took(next, number, answer, err)
	if err != nil {
		return 0, err
	}
	if answer.Written+answer.Removed > 0 {
		return confirmAfter, nil
	}
	return r.heartbeat(), nil
}

func (r *Reporter) request(a Announcement) remote.Report {
	if !a.Known {
		return remote.Report{Node: r.cfg.Node, PresenceOnly: true}
	}
	return remote.Report{Node: r.cfg.Node, Endpoints: a.Endpoints, Empty: len(a.Endpoints) == 0}
}

// heartbeat is when a report is due that has nothing new, a tenth more or less.
func (r *Reporter) heartbeat() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.status.PresenceTTL / perPresence
	return d - d/10 + rand.N(d/10+1)
}

// took notes what came of a report.
func (r *Reporter) took(a Announcement, number uint64, answer remote.Reported, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, was := time.Now(), r.status
	if (err == nil) != (was.Err == nil) || was.Last.IsZero() {
		r.status.Since = now
	}
	r.status.Err = err
	if err != nil {
		if was.Err == nil || registry.KindOf(was.Err) != registry.KindOf(err) {
			r.cfg.Log.Warn("reports do not come through", "error", err)
		}
		return
	}
	if was.Err != nil || was.Last.IsZero() {
		r.cfg.Log.Info("reports come through", "endpoints", len(a.Endpoints), "known", a.Known)
	}
	r.status.Last, r.status.PresenceOnly, r.status.Registrar = now, !a.Known, answer.Registrar
	if answer.PresenceTTL > 0 {
		r.status.PresenceTTL = answer.PresenceTTL
	}
	r.conflicts(a, answer.Conflicts)
	r.rivalry(a, answer, now)
	r.done = number
	close(r.advanced)
	r.advanced = make(chan struct{})
}

// conflicts notes them, and logs each once.
func (r *Reporter) conflicts(a Announcement, found map[int]error) {
	if !a.Known {
		return
	}
	now := make(map[registry.Key]error, len(found))
	for i, err := range found {
		key := a.Endpoints[i].Key
		now[key] = err
		if r.status.Conflicts[key] == nil {
			r.cfg.Log.Warn("an endpoint is held by another node", "service", key.Service, "ip", key.IP, "error", err)
		}
	}
	r.status.Conflicts = now
	r.metrics.conflicts.Set(float64(len(now)))
}

// rivalry notes whether another agent reports under this node's name, and logs it
// when that begins or ends.
func (r *Reporter) rivalry(a Announcement, answer remote.Reported, now time.Time) {
	r.rival.took(a, answer, now)
	was := r.status.Rival
	r.status.Rival = r.rival.since
	switch {
	case was.IsZero() && !r.rival.since.IsZero():
		r.cfg.Log.Error("the registry differs again and again from what this node reported: does another machine have its name? each removes what the other has", "node", r.cfg.Node)
		r.metrics.rival.Set(1)
	case !was.IsZero() && r.rival.since.IsZero():
		r.cfg.Log.Info("the registry stays as this node reported it again", "node", r.cfg.Node)
		r.metrics.rival.Set(0)
	}
}

// rememberDrains notes what begins to drain before that is reported: a registry
// keeps a drain whatever later reports say, so it must be known who began it.
func (r *Reporter) rememberDrains(a Announcement) error {
	changed := false
	for _, e := range a.Endpoints {
		if e.Health == registry.Draining && r.announced[e.Key] != registry.Draining {
			r.announced[e.Key], changed = registry.Draining, true
		}
	}
	if !changed || r.cfg.Memory == nil {
		return nil
	}
	return r.cfg.Memory.Save(r.announced)
}

// liftDrains ends the drains that this node began and that are over. A drain that
// somebody else began stays.
func (r *Reporter) liftDrains(ctx context.Context, a Announcement, conflicts map[int]error) error {
	over := map[registry.Health][]registry.Claim{}
	for i, e := range a.Endpoints {
		if e.Health != registry.Draining && r.announced[e.Key] == registry.Draining && conflicts[i] == nil {
			over[e.Health] = append(over[e.Health], registry.Claim{Key: e.Key, Node: r.cfg.Node})
		}
	}
	for _, health := range slices.Sorted(maps.Keys(over)) {
		if _, err := r.cfg.Registrar.SetHealth(ctx, over[health], health); err != nil {
			return err
		}
	}
	return nil
}

// remember notes what was announced.
func (r *Reporter) remember(a Announcement) {
	now := make(map[registry.Key]registry.Health, len(a.Endpoints))
	for _, e := range a.Endpoints {
		now[e.Key] = max(e.Health, registry.Healthy)
	}
	changed := a.Known && !maps.Equal(now, r.announced)
	if changed {
		r.announced = now
	}
	var err error
	switch {
	case r.cfg.Memory == nil:
	case changed:
		err = r.cfg.Memory.Save(now)
	default:
		err = r.cfg.Memory.Touch()
	}
	if err != nil {
		r.cfg.Log.Warn("a restart would not know what was announced", "error", err)
	}
}
