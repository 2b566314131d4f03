package probe

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry"
)

// firstWithin is over what time the first questions to new endpoints are spread.
const firstWithin = time.Second

// Config is what a Prober needs.
type Config struct {
	// Changed is called after each result that changes a Verdict's Known or Healthy,
	// each first result, and when suspicion begins or ends. It must not block, and
	// may call the Prober.
	Changed func()
	Log     *slog.Logger
	// Metrics, if not nil, get the prober's.
	Metrics prometheus.Registerer
}

// Prober asks endpoints how they are. It is safe for concurrent use.
type Prober struct {
	cfg     Config
	asker   *asker
	metrics *metrics
	wake    chan struct{}

	mu      sync.Mutex
	panel   *panel
	wanted  map[registry.Key]Check
	running map[registry.Key]*round
}

// round is the questions to one endpoint.
type round struct {
	check Check
	now   chan struct{}
	stop  context.CancelFunc
}

// New returns a Prober that asks nobody before Run.
func New(cfg Config) *Prober {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	p := &Prober{
		cfg: cfg, asker: newAsker(), wake: make(chan struct{}, 1),
		panel: newPanel(), running: map[registry.Key]*round{},
	}
	p.metrics = newMetrics(cfg.Metrics, p)
	return p
}

// Set says which endpoints are asked from now on, each by a check that is valid
// with its defaults. known are those whose health has been established before, and
// is kept until results speak against it.
func (p *Prober) Set(checks map[registry.Key]Check, known map[registry.Key]bool) {
	p.mu.Lock()
	p.wanted = checks
	p.panel.set(checks, known)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Verdicts returns what is known of each endpoint that was set, and since when the
// machine suspects itself; zero: it does not. While it does, no endpoint that was
// healthy becomes unhealthy.
func (p *Prober) Verdicts() (verdicts map[registry.Key]Verdict, suspect time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	verdicts = make(map[registry.Key]Verdict, len(p.panel.cases))
	for key, t := range p.panel.cases {
		verdicts[key] = t.Verdict
	}
	return verdicts, p.panel.suspect
}

// Run asks until ctx ends, and returns nil then.
func (p *Prober) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			p.arrange(ctx, g)
			select {
			case <-ctx.Done():
				return nil
			case <-p.wake:
			}
		}
	})
	return g.Wait()
}

// arrange begins and ends rounds so that they are those that are wanted.
func (p *Prober) arrange(ctx context.Context, g *errgroup.Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, r := range p.running {
		if check, stays := p.wanted[key]; !stays || check != r.check {
			r.stop()
			delete(p.running, key)
		}
	}
	for key, check := range p.wanted {
		if p.running[key] != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		r := &round{check: check, now: make(chan struct{}, 1), stop: stop}
		p.running[key] = r
		g.Go(func() error {
			defer stop()
			p.repeat(ctx, key, r)
			return nil
		})
	}
}

// repeat asks one endpoint until ctx ends.
func (p *Prober) repeat(ctx context.Context, key registry.Key, r *round) {
	timer := time.NewTimer(rand.N(min(r.check.Interval, firstWithin)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.now:
		}
		start := time.Now()
		err := p.asker.ask(ctx, r.check)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		p.took(key, Result{At: now, Took: now.Sub(start), Err: err})
		timer.Reset(jitter(r.check.Interval))
	}
}

// jitter keeps questions that began together from staying together.
func jitter(d time.Duration) time.Duration { return d - d/10 + rand.N(d/5+1) }

// took has the panel judge by a result, and asks those that it wants to hear.
func (p *Prober) took(key registry.Key, r Result) {
	p.metrics.took(r)
	p.mu.Lock()
	suspected := !p.panel.suspect.IsZero()
	changed, ask := p.panel.take(key, r)
	for _, k := range ask {
		if other := p.running[k]; other != nil {
			select {
			case other.now <- struct{}{}:
			default: // it will be asked already
			}
		}
	}
	suspects := !p.panel.suspect.IsZero()
	p.mu.Unlock()
	p.tell(suspected, suspects, changed)
}

func (p *Prober) tell(suspected, suspects, changed bool) {
	switch {
	case suspects && !suspected:
		p.cfg.Log.Warn("all probes fail at once: this machine suspects itself and keeps what it announced last")
	case suspected && !suspects:
		p.cfg.Log.Info("probes succeed again: this machine does not suspect itself any more")
	}
	if changed {
		p.cfg.Changed()
	}
}
