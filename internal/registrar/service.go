package registrar

import (
	"context"
	"errors"
	"strings"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/internal/serving"
	"github.com/aether-federation/aether/registry"
)

// service is what both gRPC and HTTP offer: reads from the view, writes to the
// store.
type service struct {
	own          registry.Origin
	view         *View
	census       *Census
	store        Store
	presence     Presence
	sweeper      Sweeper
	peers        Peers
	metrics      *Metrics
	guard        *guard
	reads        *serving.Reads
	writeTimeout time.Duration
}

var (
	errLoading  = registry.Errorf(registry.Unavailable, "the registrar is loading its view: try again in a moment")
	errStopping = registry.Errorf(registry.Unavailable, "the registrar is stopping: connect again")
)

// register registers endpoints, with a ttl that is not zero for that long.
func (s *service) register(ctx context.Context, ttl time.Duration, endpoints []registry.Endpoint) (registry.Revision, error) {
	keys, nodes := make([]registry.Key, len(endpoints)), make([]string, len(endpoints))
	for i, e := range endpoints {
		keys[i], nodes[i] = e.Key, e.Node
	}
	if err := s.guard.permit(ctx, "register", access.Action{Need: access.Write, Nodes: nodes}, keys); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience(len(keys)))
	defer cancel()
	start := time.Now()
	var rev registry.Revision
	err := s.writable()
	if err == nil {
		err = s.vouch(ctx, endpoints)
	}
	switch {
	case err != nil:
	case ttl != 0:
		rev, err = s.store.RegisterFor(ctx, ttl, endpoints)
	default:
		rev, err = s.store.Register(ctx, endpoints)
	}
	err = writeError(ctx, err)
	s.metrics.wrote("register", start, err)
	s.guard.audit.record(ctx, "register", keys, err)
	return rev, err
}

func (s *service) unregister(ctx context.Context, claims []registry.Claim) (int, registry.Revision, error) {
	keys, nodes := make([]registry.Key, len(claims)), make([]string, len(claims))
	for i, c := range claims {
		keys[i], nodes[i] = c.Key, c.Node
	}
	if err := s.guard.permit(ctx, "unregister", access.Action{Need: access.Write, Nodes: nodes}, keys); err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience(len(keys)))
	defer cancel()
	start := time.Now()
	var removed int
	var rev registry.Revision
	err := s.writable()
	if err == nil {
		removed, rev, err = s.store.Unregister(ctx, claims)
	}
	err = writeError(ctx, err)
	s.metrics.wrote("unregister", start, err)
	s.guard.audit.record(ctx, "unregister", keys, err)
	return removed, rev, err
}

// patiencePer is after how many endpoints a call may last as long again, so that a
// busy etcd takes the largest ones too.
const patiencePer = 4000

// patience bounds a write of so many endpoints.
func (s *service) patience(endpoints int) time.Duration {
	return s.writeTimeout * time.Duration(1+endpoints/patiencePer)
}

// writable fails at once while the own etcd is known to be away: a write would only
// wait for its deadline, and leave open whether it took place.
func (s *service) writable() error {
	if silent := s.census.silent(time.Now()); silent > 0 {
		return registry.Errorf(registry.Unavailable, "the registrar's etcd has not answered for %v, so nothing was written: try again", silent.Round(time.Second))
	}
	return nil
}

// writeError makes the end of a write's own deadline an Unavailable error.
func writeError(ctx context.Context, err error) error {
	if err != nil && registry.KindOf(err) == registry.Internal && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return registry.Errorf(registry.Unavailable, "the registrar's etcd does not answer; whether the write took place is not known, repeat it: %w", err)
	}
	return err
}

// readable is what of s is read.
func (s *service) readable() serving.Readable {
	return serving.Readable{
		View: s.view.View, Ready: s.ready, Loaded: s.view.Ready(), Ages: s.view.ages, Regions: s.regions,
		Open: s.guard.open, Stopping: errStopping,
	}
}

func (s *service) ready() error {
	if !s.view.isReady() {
		return errLoading
	}
	return nil
}

func (s *service) regions() *registryv1.ListRegionsResponse {
	answer := regionsAnswer(s.view.Regions())
	for _, r := range answer.GetRegions() {
		if dead := s.census.Dead(); r.GetRegion() == s.own.Region && len(dead) > 0 {
			lost := "nothing is present of cluster " + strings.Join(dead, ", ") + ": its endpoints are served as unhealthy"
			r.Reason = strings.TrimPrefix(r.Reason+"; "+lost, "; ")
		}
	}
	return answer
}

func (s *service) listPeers(ctx context.Context) (*registryv1.ListPeersResponse, error) {
	if s.peers == nil {
		return &registryv1.ListPeersResponse{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.writeTimeout)
	defer cancel()
	peers, err := s.peers.Peers(ctx)
	if err != nil {
		return nil, err
	}
	return &registryv1.ListPeersResponse{Peers: peers}, nil
}
