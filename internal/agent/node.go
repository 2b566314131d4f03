package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/internal/agent/report"
	"github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/internal/agent/state"
	"github.com/aether-federation/aether/registry"
)

// MaxEndpoints is how many endpoints one node may have: what one report takes.
const MaxEndpoints = 10000

// NodeConfig is what a Node needs.
type NodeConfig struct {
	// Name of the node.
	Name string
	// Registrar takes the reports.
	Registrar report.Registrar
	// Files and directories with services.
	Files []string
	// Poll of the files; 0: the default of package source.
	Poll     time.Duration
	Defaults source.Defaults
	// State remembers over restarts; the zero Dir: nothing does.
	State state.Dir
	Leave Leave
	Log   *slog.Logger
	// Metrics, if not nil, get the node's.
	Metrics prometheus.Registerer
}

// Validate tells what is missing or wrong.
func (c NodeConfig) Validate() error {
	if c.Name == "" {
		return errors.New("a node needs a name")
	}
	if c.Registrar == nil {
		return errors.New("a node needs a registrar that takes its reports")
	}
	return registry.ValidateNode(c.Name)
}

// Node keeps the registry equal to what runs on this machine. It is safe for
// concurrent use.
type Node struct {
	cfg      NodeConfig
	files    *source.Files
	local    *source.Local
	prober   *probe.Prober
	reporter *report.Reporter
	metrics  *nodeMetrics
	// known is the health of endpoints that an earlier agent announced lately.
	known map[registry.Key]bool
	wake  chan struct{}

	mu     sync.Mutex
	byFile source.State
	phase  phase
	// started: see situation.
	started bool
	// sources is what the sources have together, as the prober knows it.
	sources   source.State
	byKey     map[registry.Key]source.Declared
	announced report.Announcement
	// standing is what was announced last: the registry has it, also while the
	// presence alone is reported.
	standing map[registry.Key]registry.Health
}

// NewNode returns a Node that does nothing before Run.
func NewNode(cfg NodeConfig) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	n := &Node{cfg: cfg, wake: make(chan struct{}, 1)}
	memory := memory{cfg.State}
	announced, lately := memory.load(cfg.Log)
	if lately {
		n.known, n.standing = healthOf(announced), announced
	}
	n.files = source.NewFiles(source.FilesConfig{Paths: cfg.Files, Defaults: cfg.Defaults, State: cfg.State, Poll: cfg.Poll, Log: cfg.Log})
	n.local = source.NewLocal(cfg.State, cfg.Log)
	n.prober = probe.New(probe.Config{Changed: n.stir, Log: cfg.Log, Metrics: cfg.Metrics})
	n.reporter = report.New(report.Config{
		Node: cfg.Name, Registrar: cfg.Registrar, Announced: announced, Memory: memory, Log: cfg.Log, Metrics: cfg.Metrics,
	})
	n.metrics = newNodeMetrics(cfg.Metrics)
	return n, nil
}

// stir has the node decide again.
func (n *Node) stir() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, leaves as the configuration says, and returns once that
// is done. The error is of leaving, or nil.
func (n *Node) Run(ctx context.Context) error {
	return n.run(ctx, context.WithoutCancel(ctx))
}

// run is Run, but ends at once when whole does: then the process is broken, and the
// one that follows will find everything registered.
func (n *Node) run(ctx, whole context.Context) error {
	inner, stop := context.WithCancel(whole)
	defer stop()
	g, inner := errgroup.WithContext(inner)
	g.Go(func() error { return n.files.Run(inner, n.told) })
	g.Go(func() error { return n.local.Run(inner, func(source.State) { n.stir() }) })
	g.Go(func() error { return n.prober.Run(inner) })
	g.Go(func() error { return n.reporter.Run(inner) })
	g.Go(func() error { return n.decide(inner) })
	g.Go(func() error {
		defer stop()
		select {
		case <-inner.Done():
			return nil
		case <-ctx.Done():
			return n.leave(inner)
		}
	})
	return g.Wait()
}

// told takes the state of the files.
func (n *Node) told(s source.State) {
	n.mu.Lock()
	before := n.byFile.Problems
	n.byFile = s
	n.mu.Unlock()
	for _, p := range s.Problems {
		if !slices.Contains(before, p) {
			n.cfg.Log.Warn("a source is wrong, and what it said before stands", "where", p.Where, "problem", p.Text)
		}
	}
	if len(before) > 0 && len(s.Problems) == 0 {
		n.cfg.Log.Info("nothing is wrong in the sources any more")
	}
	n.stir()
}

// decide announces what follows from what is known, whenever that changes.
func (n *Node) decide(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
			n.refresh()
		}
	}
}

func (n *Node) refresh() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gather()
	verdicts, _ := n.prober.Verdicts()
	a := situation{
		node: n.cfg.Name, sources: n.sources, verdicts: verdicts,
		given: n.local.Health(), phase: n.phase, started: n.started,
	}.announce()
	n.started = n.started || a.Known
	if a.Known != n.announced.Known || !slices.EqualFunc(a.Endpoints, n.announced.Endpoints, registry.Endpoint.Equal) || n.phase == gone {
		n.announced = a
		n.reporter.Announce(a)
		n.stands(a, verdicts)
	}
	n.metrics.took(n.sources, a.Known, n.standing)
}

// stands notes what is announced, and logs what is new in it.
func (n *Node) stands(a report.Announcement, verdicts map[registry.Key]probe.Verdict) {
	if !a.Known {
		return
	}
	now := healthsIn(a)
	if n.phase == running { // leaving is logged as a whole
		newsOf(n.standing, now).say(n.cfg.Log, verdicts)
	}
	n.standing = now
}

// gather merges the sources and tells the prober of it.
func (n *Node) gather() {
	now := limit(source.Merge(n.byFile, n.local.State()), MaxEndpoints)
	if reflect.DeepEqual(now, n.sources) {
		return
	}
	n.sources = now
	checks := map[registry.Key]probe.Check{}
	n.byKey = make(map[registry.Key]source.Declared, len(now.Declared))
	for _, d := range now.Declared {
		n.byKey[d.Endpoint.Key] = d
		if d.Check != nil {
			checks[d.Endpoint.Key] = *d.Check
		}
	}
	n.prober.Set(checks, n.known)
	if !now.Known {
		return
	}
	declared := func(k registry.Key) bool {
		_, is := n.byKey[k]
		return is
	}
	if err := n.local.Retain(declared); err != nil {
		n.cfg.Log.Warn("the health that was given to endpoints is not remembered", "error", err)
	}
}

// limit leaves out what one report would not take.
func limit(s source.State, most int) source.State {
	if len(s.Declared) > most {
		s.Problems = append(s.Problems, source.Problem{
			Where: s.Declared[most].From,
			Text:  fmt.Sprintf("there are %d endpoints, and a node may have %d: the rest is left out", len(s.Declared), most),
		})
		s.Declared = s.Declared[:most]
	}
	return s
}
