package catalog

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
	"unique"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

const (
	// DefaultStaleAfter is three proofs that did not come.
	DefaultStaleAfter = 15 * time.Second
	// DefaultSaveEvery spares the disk of a node while a fleet changes.
	DefaultSaveEvery = 5 * time.Second
	// regionsEvery is how often the registrar is asked for its regions, and
	// regionsTimeout how long it may take.
	regionsEvery   = 5 * time.Second
	regionsTimeout = 3 * time.Second
)

// Registrar is what a catalog follows; a [remote.Registry] is one.
type Registrar interface {
	Keep(ctx context.Context, f remote.Following) error
	Regions(ctx context.Context) ([]*registryv1.Region, error)
}

// Config of a Catalog.
type Config struct {
	Registrar Registrar
	// Services to know of; none: all.
	Services []string
	// Region that the agent is in, if it was configured: what another region's
	// registrars said is then not served from disk.
	Region string
	// File keeps the last known good view; empty: nothing is kept.
	File string
	// StaleAfter is how long no registrar may have answered before regions are
	// shown as stale. 0: DefaultStaleAfter.
	StaleAfter time.Duration
	// SaveEvery is how long a change may take to the disk. 0: DefaultSaveEvery.
	SaveEvery time.Duration
	Log       *slog.Logger
	// Metrics to register at; nil: none are shown.
	Metrics prometheus.Registerer
}

// Validate says in whole sentences what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, sentence string) {
		if !ok {
			errs = append(errs, errors.New(sentence))
		}
	}
	check(c.Registrar != nil, "A catalog needs a registrar to follow.")
	check(c.StaleAfter >= 0 && c.SaveEvery >= 0, "StaleAfter and SaveEvery must not be negative.")
	for _, service := range c.Services {
		errs = append(errs, registry.ValidateService(service))
	}
	return errors.Join(errs...)
}

// Catalog is what an agent knows of the registry. It is the registrar's view,
// whole versions of it, as of [Catalog.Age] ago.
type Catalog struct {
	*view.View
	cfg     Config
	query   registry.Query
	metrics *metrics
	ready   chan struct{}
	once    sync.Once
	// ask and changed wake those who ask for regions and who save.
	ask, changed chan struct{}

	// index and revision are Keep's.
	index    view.Index
	revision registry.Revision

	mu sync.RWMutex
	// proven is a moment at which the view was all that a registrar had.
	proven time.Time
	// alone: no registrar is followed, and the log says so.
	alone bool
	told  telling
	// counts endpoints by region.
	counts map[string]int
	// saved is the revision and the proof that the file has.
	saved saved
}

// telling is what a registrar said of its regions, and when it was asked.
type telling struct {
	asked   time.Time
	regions []*registryv1.Region
}

// New returns a catalog that knows nothing until it is run.
func New(cfg Config) (*Catalog, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.StaleAfter == 0 {
		cfg.StaleAfter = DefaultStaleAfter
	}
	if cfg.SaveEvery == 0 {
		cfg.SaveEvery = DefaultSaveEvery
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("component", "catalog")
	c := &Catalog{
		cfg: cfg, query: registry.Query{Services: cfg.Services}, ready: make(chan struct{}),
		ask: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		index: view.Index{}, counts: map[string]int{},
	}
	c.metrics = newMetrics(c, cfg.Metrics)
	c.View = view.New(view.Config{CutOff: c.metrics.cutOff.Inc})
	return c, nil
}

// Run reads what is on disk and follows registrars until ctx ends; then it saves
// what it knows and returns ctx's error. Another error says why it could not go on.
func (c *Catalog) Run(ctx context.Context) error {
	c.load()
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return c.View.Run(run) })
	g.Go(func() error { return c.follow(run) })
	g.Go(func() error { return c.askRegions(run) })
	g.Go(func() error { return c.keepSaved(run) })
	return errors.Join(g.Wait(), c.save())
}

// follow keeps the view equal to a registrar's. What cannot be mended by itself,
// such as a certificate that may not read, may be by somebody: the agent goes on
// serving, and asks again.
func (c *Catalog) follow(ctx context.Context) error {
	for {
		err := c.cfg.Registrar.Keep(ctx, remote.Following{
			Query: c.query, Held: held{c}, Tell: c.tell, Proven: c.prove, Interrupted: c.interrupted,
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.cfg.Log.Error("follow registrar", "error", err)
		if err := pause(ctx, c.cfg.StaleAfter); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// interrupted logs the beginning of each outage; attempts in it are for whoever
// looks for them.
func (c *Catalog) interrupted(err error) {
	c.metrics.interruptions.Inc()
	c.mu.Lock()
	level := slog.LevelWarn
	if c.alone {
		level = slog.LevelDebug
	}
	c.alone = true
	c.mu.Unlock()
	c.cfg.Log.Log(context.Background(), level, "no registrar is followed; what is known is served", "error", err, "age", c.Age().Round(time.Second))
}

// tell makes one step of the registrar's view the next version.
func (c *Catalog) tell(step remote.Step) error {
	changes := make([]view.Change, len(step.Changes))
	for i, change := range step.Changes {
		intern(change.Endpoint)
		changes[i] = view.Change(change)
	}
	c.revision = step.Revision
	c.publish(changes)
	wake(c.changed)
	return nil
}

// publish applies changes, one for each key, and shows what has come of them.
func (c *Catalog) publish(changes []view.Change) {
	slices.SortFunc(changes, view.CompareChanges)
	effective := make([]view.Change, 0, len(changes))
	for batch := range view.ByService(changes) {
		service := batch[0].Endpoint.Service
		before := c.index[service]
		effective = append(effective, c.index.Merge(service, batch)...)
		c.count(before, -1)
		c.count(c.index[service], 1)
	}
	c.Publish(c.index, effective, view.SeenAt(string(c.revision)))
}

func (c *Catalog) count(endpoints []*registry.Endpoint, sign int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range endpoints {
		if c.counts[e.Region] += sign; c.counts[e.Region] == 0 {
			delete(c.counts, e.Region)
		}
	}
}

// prove notes that the view was all that a registrar had.
func (c *Catalog) prove(at time.Time) {
	c.mu.Lock()
	first := c.told.asked.IsZero() || at.Sub(c.proven) > c.cfg.StaleAfter
	again := c.alone
	c.alone = false
	if at.After(c.proven) {
		c.proven = at
	}
	c.mu.Unlock()
	if first || again {
		c.cfg.Log.Info("in step with a registrar", "revision", c.revision)
		wake(c.ask)
	}
	c.readyOnceKnown()
}

// readyOnceKnown makes the catalog ready once a registrar has told both what there
// is and which region is the own one: without that nothing could be put in order.
func (c *Catalog) readyOnceKnown() {
	c.mu.RLock()
	known := !c.proven.IsZero() && c.region() != ""
	c.mu.RUnlock()
	if known {
		c.once.Do(func() { close(c.ready) })
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Ready is closed once there is something to serve: what a registrar said, now or
// in a former life.
func (c *Catalog) Ready() <-chan struct{} { return c.ready }

// held is what Keep is shown of a catalog.
type held struct{ c *Catalog }

func (h held) Revision() registry.Revision { return h.c.revision }

func (h held) Services() iter.Seq[string] { return maps.Keys(h.c.index) }

func (h held) Endpoints(service string) iter.Seq[*registry.Endpoint] {
	return slices.Values(h.c.index[service])
}

// intern makes e share one copy of each string that many endpoints have.
func intern(e *registry.Endpoint) {
	one := func(s *string) { *s = unique.Make(*s).Value() }
	for _, s := range []*string{&e.Region, &e.Cluster, &e.Service, (*string)(&e.Protocol), &e.Zone, &e.Node, &e.Network} {
		one(s)
	}
	for i := range e.Ports {
		one(&e.Ports[i].Name)
	}
}
