package registrar

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/protobuf/types/known/durationpb"
)

// report is what a node says of itself.
type report struct {
	node         string
	endpoints    []registry.Endpoint
	empty        bool
	presenceOnly bool
}

// reportOf reads a request and refuses what cannot be meant.
func reportOf(own registry.Origin, req *registryv1.ReportRequest) (report, error) {
	r := report{node: req.GetNode(), empty: req.GetEmpty(), presenceOnly: req.GetPresenceOnly()}
	if r.node == "" {
		return r, registry.Invalidf("node", "is empty: say which node reports")
	}
	if err := registry.ValidateNode(r.node); err != nil {
		return r, err
	}
	if len(req.GetEndpoints()) > 0 && (r.empty || r.presenceOnly) || r.empty && r.presenceOnly {
		return r, registry.Invalidf("endpoints", "a report has endpoints, or is empty, or is for presence only: choose one")
	}
	endpoints, err := serving.EndpointsOf(req.GetEndpoints(), wire.FromProto)
	if err != nil {
		return r, err
	}
	for i := range endpoints {
		switch endpoints[i].Node {
		case "", r.node:
			endpoints[i].Node = r.node
		default:
			return r, registry.Invalidf(fmt.Sprintf("endpoints[%d].node", i), "%q is not the node %q that reports: leave it out", endpoints[i].Node, r.node)
		}
	}
	r.endpoints, err = registry.Prepare(own, endpoints)
	return r, err
}

// difference is what has to be done so that held becomes what r says: what to
// store, by index in r.endpoints, and what to remove. With all, everything is
// stored, because held may be older than the node's presence.
func (r report) difference(held map[registry.Key]*registry.Endpoint, all bool) (store []int, remove []registry.Claim) {
	gone := maps.Clone(held)
	for i, e := range r.endpoints {
		was := held[e.Key]
		delete(gone, e.Key)
		if all || was == nil || !was.Equal(e.KeepDraining(*was)) {
			store = append(store, i)
		}
	}
	for key := range gone {
		remove = append(remove, registry.Claim{Key: key, Node: r.node})
	}
	slices.SortFunc(remove, func(a, b registry.Claim) int { return a.Key.Compare(b.Key) })
	return store, remove
}

// report takes a node's report. The node is present from then on even if the
// report is refused because it is empty, or because what the node has is not known
// at the moment.
func (s *service) report(ctx context.Context, req *registryv1.ReportRequest) (*registryv1.ReportResponse, error) {
	r, err := reportOf(s.own, req)
	if err != nil {
		return nil, err
	}
	if err := s.guard.permit(ctx, "report", access.Action{Need: access.Write, Nodes: []string{r.node}}, keysOf(req)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience(len(req.GetEndpoints())))
	defer cancel()
	start := time.Now()
	answer, a, err := s.reconcile(ctx, r)
	err = writeError(ctx, err)
	s.metrics.wrote("report", start, err)
	s.guard.audit.report(ctx, a, err)
	return answer, err
}

// asked is what a report asks for beyond what is there.
type asked struct {
	keys []registry.Key
	// conflicts keep back keys, by their index.
	conflicts map[int]error
	// nothing of it differed from what was stored.
	nothing bool
}

func (s *service) reconcile(ctx context.Context, r report) (*registryv1.ReportResponse, asked, error) {
	if err := s.writable(); err != nil {
		return nil, asked{}, err
	}
	held, present, unknown := s.census.holdings(r.node)
	answer := &registryv1.ReportResponse{}
	if s.presence != nil {
		answer.PresenceTtl = durationpb.New(s.presence.TTL())
		if err := s.presence.Touch(ctx, r.node); err != nil {
			return nil, asked{}, err
		}
	}
	if r.presenceOnly {
		return answer, asked{}, nil
	}
	if unknown != nil {
		return nil, asked{}, unknown
	}
	if len(r.endpoints) == 0 && !r.empty && len(held) > 0 {
		return nil, asked{}, registry.Invalidf("endpoints", "the report is empty, but node %q has %d endpoints: if they are gone, say so with empty; if it is not known, report presence only", r.node, len(held))
	}
	store, remove := r.difference(held, !present)
	if len(store) == 0 && len(remove) == 0 {
		return answer, asked{}, nil
	}
	a, err := s.commit(ctx, r.pick(store), remove, answer)
	if err != nil {
		return nil, a, err
	}
	return answer, a, nil
}

// pick returns the endpoints with these indexes.
func (r report) pick(indexes []int) []registry.Endpoint {
	out := make([]registry.Endpoint, len(indexes))
	for i, n := range indexes {
		out[i] = r.endpoints[n]
	}
	return out
}

// commit stores and removes, and puts what came of it into answer.
func (s *service) commit(ctx context.Context, store []registry.Endpoint, remove []registry.Claim, answer *registryv1.ReportResponse) (asked, error) {
	var a asked
	for i := range store {
		a.keys = append(a.keys, store[i].Key)
	}
	for i := range remove {
		a.keys = append(a.keys, remove[i].Key)
	}
	out, err := s.store.Reconcile(ctx, store, remove)
	if err != nil {
		return a, err
	}
	a.conflicts, a.nothing = out.Conflicts, out.Written+out.Removed == 0
	answer.Revision = string(out.Revision)
	answer.Written, answer.Removed = uint32(out.Written), uint32(out.Removed)
	for _, i := range slices.Sorted(maps.Keys(out.Conflicts)) {
		answer.Conflicts = append(answer.Conflicts, &registryv1.Conflict{
			Endpoint: wire.KeyToProto(store[i].Key), Message: out.Conflicts[i].Error(),
		})
	}
	return a, nil
}

// vouch makes the nodes present that endpoints are registered for: who registers
// for a node says that it lives, for one TTL.
func (s *service) vouch(ctx context.Context, endpoints []registry.Endpoint) error {
	if s.presence == nil {
		return nil
	}
	nodes := map[string]bool{}
	for i := range endpoints {
		if n := endpoints[i].Node; n != "" && registry.ValidateNode(n) == nil {
			nodes[n] = true
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return s.presence.Touch(ctx, slices.Sorted(maps.Keys(nodes))...)
}

func (s *service) setHealth(ctx context.Context, claims []registry.Claim, health registry.Health) (registry.Revision, error) {
	keys, nodes := make([]registry.Key, len(claims)), make([]string, len(claims))
	for i, c := range claims {
		keys[i], nodes[i] = c.Key, c.Node
	}
	if err := s.guard.permit(ctx, "set_health", access.Action{Need: access.Write, Nodes: nodes}, keys); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience(len(keys)))
	defer cancel()
	start := time.Now()
	var rev registry.Revision
	err := s.writable()
	if err == nil {
		rev, err = s.store.SetHealth(ctx, claims, health)
	}
	err = writeError(ctx, err)
	s.metrics.wrote("set_health", start, err)
	s.guard.audit.record(ctx, "set_health", keys, err)
	return rev, err
}

// Report implements registryv1.RegistryServiceServer, as do the methods below.
func (s rpc) Report(ctx context.Context, req *registryv1.ReportRequest) (*registryv1.ReportResponse, error) {
	return s.report(ctx, req)
}

func (s rpc) SetHealth(ctx context.Context, req *registryv1.SetHealthRequest) (*registryv1.SetHealthResponse, error) {
	claims, err := serving.EndpointsOf(req.GetEndpoints(), wire.ClaimFromProto)
	if err != nil {
		return nil, err
	}
	health, err := serving.HealthOf(req.GetHealth())
	if err != nil {
		return nil, err
	}
	rev, err := s.setHealth(ctx, claims, health)
	if err != nil {
		return nil, err
	}
	return &registryv1.SetHealthResponse{Revision: string(rev)}, nil
}

func (s rpc) Sweep(ctx context.Context, req *registryv1.SweepRequest) (*registryv1.SweepResponse, error) {
	if req.GetDryRun() == (req.GetAccept() > 0) {
		return nil, registry.Invalidf("dry_run", "or accept has to be set, not both: the cluster's sweeper sweeps by itself")
	}
	const accept = "sweep_accept"
	if !req.GetDryRun() {
		if err := s.guard.permit(ctx, accept, access.Action{Need: access.Administer}, nil); err != nil {
			return nil, err
		}
	}
	if s.sweeper == nil {
		return nil, registry.Errorf(registry.NotFound, "this registrar does not sweep")
	}
	if req.GetDryRun() {
		return s.sweeper.Sweep(), nil
	}
	removed, err := s.acceptSweep(ctx, accept, int(req.GetAccept()))
	if err != nil {
		return nil, err
	}
	answer := s.sweeper.Sweep()
	answer.Removed = uint32(removed)
	return answer, nil
}

// acceptSweep lets at most so many endpoints pass the brake.
func (s *service) acceptSweep(ctx context.Context, operation string, most int) (removed int, err error) {
	if err := s.writable(); err != nil {
		return 0, err
	}
	start := time.Now()
	keys, err := s.sweeper.Accept(ctx, most)
	s.metrics.wrote(operation, start, err)
	s.guard.audit.record(ctx, operation, keys, err)
	return len(keys), err
}
