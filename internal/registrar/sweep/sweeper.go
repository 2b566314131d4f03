package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/election"
	"github.com/aether-federation/aether/internal/registrar"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

const (
	// DefaultMaxShare of a cluster's endpoints that may be swept within a grace.
	DefaultMaxShare = 0.3
	// floor is how many may be swept whatever share they are: in a small cluster
	// one node is a large share.
	floor = 10
	// passes that must have seen a node absent.
	passes = 3
	// passesPerGrace, within these bounds, is how often is looked.
	passesPerGrace = 10
	minInterval    = 200 * time.Millisecond
	maxInterval    = 15 * time.Second
	// maxGap is after how many missed passes what was seen before is void.
	maxGap      = 4
	electionTTL = 10 * time.Second
	// maxGhosts are told in one answer.
	maxGhosts = 10000
)

// Store removes the endpoints of a node that is absent, guarded by that and by
// their revisions.
type Store interface {
	RemoveGhosts(ctx context.Context, node string, ghosts []etcd.Ghost) (removed int, err error)
}

// Census is who is absent.
type Census interface {
	Roll() registrar.Roll
}

// Config says what is swept.
type Config struct {
	// Origin is the cluster.
	Origin registry.Origin
	// Name of this registrar, for those who look at the election.
	Name string
	// Client of the own etcd, which holds the election.
	Client *etcd.Client
	Store  Store
	Census Census
	// Grace is how long a node must be absent; 0: the registrar's default.
	Grace time.Duration
	// MaxShare of the cluster's endpoints that may go within one grace, above 0
	// and up to 1; 0: DefaultMaxShare.
	MaxShare float64
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	if c.Client == nil || c.Store == nil || c.Census == nil {
		return errors.New("a sweeper needs a client, a store and a census")
	}
	if c.Grace < 0 {
		return errors.New("the grace of a sweeper must not be negative")
	}
	if c.MaxShare < 0 || c.MaxShare > 1 {
		return errors.New("the share that may be swept is from 0 to 1")
	}
	return c.Origin.Validate()
}

// Sweeper looks for ghosts, and removes them while it is elected.
type Sweeper struct {
	c        Config
	policy   Policy
	interval time.Duration
	metrics  metrics

	mu      sync.Mutex
	plan    Plan
	leading bool
}

var _ registrar.Sweeper = (*Sweeper)(nil)

// New returns a sweeper that does not run yet.
func New(c Config) (*Sweeper, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Grace == 0 {
		c.Grace = registrar.DefaultGrace
	}
	if c.MaxShare == 0 {
		c.MaxShare = DefaultMaxShare
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	c.Log = c.Log.With("component", "sweep", "region", c.Origin.Region, "cluster", c.Origin.Cluster)
	interval := min(max(c.Grace/passesPerGrace, minInterval), maxInterval)
	return &Sweeper{
		c: c, interval: interval, metrics: newMetrics(c.Metrics),
		plan:   Plan{Unproven: "nobody has looked yet"},
		policy: Policy{Grace: c.Grace, Passes: passes, MaxGap: maxGap * interval, MaxShare: c.MaxShare, Floor: floor},
	}, nil
}

// Run looks, and sweeps while it is elected, until ctx ends; it returns nil then.
func (s *Sweeper) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.look(ctx) })
	g.Go(func() error { return s.campaign(ctx) })
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

func (s *Sweeper) campaign(ctx context.Context) error {
	c := election.Config{
		Client: s.c.Client,
		Prefix: keyspace.SweepElectionPrefix(s.c.Origin.Region, s.c.Origin.Cluster),
		TTL:    electionTTL,
		Value:  s.c.Name,
		Log:    s.c.Log,
	}
	return election.Run(ctx, c, func(ctx context.Context, _ *election.Leadership) error {
		s.lead(true)
		defer s.lead(false)
		<-ctx.Done()
		return ctx.Err()
	})
}

func (s *Sweeper) lead(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading = on
}

// look makes a pass now and then. That two registrars sweep at once, when one has
// lost the election and does not know, does no harm: each removal is guarded.
func (s *Sweeper) look(ctx context.Context) error {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	var m Memory
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		m = s.pass(ctx, m)
	}
}

func (s *Sweeper) pass(ctx context.Context, m Memory) Memory {
	m, plan := s.policy.Pass(m, s.c.Census.Roll(), time.Now())
	slices.SortFunc(plan.Ghosts, func(a, b Ghost) int { return strings.Compare(a.Node, b.Node) })
	s.mu.Lock()
	held := s.plan.Held
	s.plan = plan
	leading := s.leading
	s.mu.Unlock()
	s.metrics.saw(plan, leading)
	if !leading {
		return m
	}
	if plan.Held != "" {
		if held == "" {
			s.c.Log.Error("sweep is held", "due", plan.Due, "endpoints", plan.Endpoints, "reason", plan.Held)
			s.metrics.held.Inc()
		}
		return m
	}
	if held != "" {
		s.c.Log.Info("sweep goes on")
	}
	return m.Removed(s.sweep(ctx, plan))
}

// sweep removes what is due and returns how many endpoints went.
func (s *Sweeper) sweep(ctx context.Context, plan Plan) int {
	removed, err := s.remove(ctx, plan)
	if err != nil {
		s.c.Log.Warn("cannot sweep, trying again", "error", err)
	}
	return len(removed)
}

// remove removes what is due, node by node.
func (s *Sweeper) remove(ctx context.Context, plan Plan) (removed []registry.Key, err error) {
	for _, g := range plan.Ghosts {
		if !g.Due {
			continue
		}
		ghosts := ghostsOf(g)
		n, err := s.c.Store.RemoveGhosts(ctx, g.Node, ghosts)
		s.metrics.removed.Add(float64(n))
		for _, ghost := range ghosts[:n] {
			removed = append(removed, ghost.Key)
		}
		if err != nil {
			s.metrics.errors.Inc()
			return removed, fmt.Errorf("sweep node %s: %w", g.Node, err)
		}
		s.c.Log.Warn("swept the endpoints of an absent node", "node", g.Node,
			"removed", n, "seen", len(g.Holdings), "absent", g.Absent.Round(time.Second))
	}
	return removed, nil
}

// Accept implements [registrar.Sweeper]: once, it removes what the last pass found
// to be due, whatever the brake says and whoever is elected. Each removal is
// guarded as in any sweep.
func (s *Sweeper) Accept(ctx context.Context, most int) (removed []registry.Key, err error) {
	s.mu.Lock()
	plan := s.plan
	s.mu.Unlock()
	switch {
	case plan.Unproven != "":
		return nil, registry.Errorf(registry.Unavailable, "who is absent is not known: %s", plan.Unproven)
	case plan.Due > most:
		return nil, registry.Errorf(registry.Conflict, "%d endpoints are due by now, more than the %d that were accepted: look again", plan.Due, most)
	}
	s.c.Log.Warn("an accepted sweep passes the brake", "due", plan.Due, "accepted", most)
	removed, err = s.remove(ctx, plan)
	if err == nil { // what went is not told as due until the next pass
		s.mu.Lock()
		s.plan = plan.swept(len(removed))
		s.mu.Unlock()
	}
	return removed, err
}

func ghostsOf(g Ghost) []etcd.Ghost {
	out := make([]etcd.Ghost, len(g.Holdings))
	for i, h := range g.Holdings {
		out[i] = etcd.Ghost{Key: h.Endpoint.Key, ModRevision: h.ModRevision}
	}
	return out
}

// States of a sweeper, as Sweep tells them.
const (
	StateSweeping = "sweeping"
	StateWatching = "watching"
	StateUnproven = "unproven"
	StateHeld     = "held"
)

// Sweep tells what the last pass found: the absent nodes' endpoints, which of them
// are due, and why nothing is removed where that is so.
func (s *Sweeper) Sweep() *registryv1.SweepResponse {
	s.mu.Lock()
	plan, leading := s.plan, s.leading
	s.mu.Unlock()
	answer := &registryv1.SweepResponse{Endpoints: uint32(plan.Endpoints), Due: uint32(plan.Due), Grace: durationpb.New(s.policy.Grace)}
	switch {
	case plan.Unproven != "":
		answer.State, answer.Reason = StateUnproven, plan.Unproven
	case plan.Held != "":
		answer.State, answer.Reason = StateHeld, plan.Held
	case leading:
		answer.State = StateSweeping
	default:
		answer.State, answer.Reason = StateWatching, "another registrar of the cluster sweeps"
	}
	for _, g := range plan.Ghosts {
		reason := "node " + g.Node + " is absent, for less than the grace so far"
		if g.Due {
			reason = "node " + g.Node + " is absent for longer than the grace"
		}
		for _, h := range sorted(g.Holdings) {
			if len(answer.Ghosts) == maxGhosts {
				return answer
			}
			answer.Ghosts = append(answer.Ghosts, &registryv1.Ghost{
				Endpoint: wire.ToProto(*h.Endpoint), Absent: durationpb.New(g.Absent.Round(time.Millisecond)), Due: g.Due, Reason: reason,
			})
		}
	}
	return answer
}

// sorted returns holdings in the order of their keys, as people look for them.
func sorted(holdings []registrar.Holding) []registrar.Holding {
	return slices.SortedFunc(slices.Values(holdings), func(a, b registrar.Holding) int {
		return a.Endpoint.Key.Compare(b.Endpoint.Key)
	})
}
