package registrar

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
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
	writeTimeout time.Duration
	// stopContext ends, by stop, when streams have to end.
	stopContext context.Context
	stop        context.CancelFunc
	// streams are the goroutines of streams; they end soon after their streams.
	streams sync.WaitGroup
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
	if err := s.guard.permit(ctx, "register", access.Action{Need: access.Write, Nodes: nodes}); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.writeTimeout)
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
	if err := s.guard.permit(ctx, "unregister", access.Action{Need: access.Write, Nodes: nodes}); err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.writeTimeout)
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

// loadWait is how long a watch that comes early is kept until the view is loaded: it
// would come again and again otherwise, with all others.
const loadWait = 5 * time.Second

// loaded waits for the view.
func (s *service) loaded(ctx context.Context) error {
	late := time.NewTimer(loadWait)
	defer late.Stop()
	select {
	case <-s.view.Ready():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopContext.Done():
		return errStopping
	case <-late.C:
		return errLoading
	}
}

func (s *service) list(services []string) (*registryv1.ListResponse, error) {
	q, err := s.query(services)
	if err != nil {
		return nil, err
	}
	return listAnswer(s.view.Snapshot(q), s.view.ages()), nil
}

// query reads a query once there is something to ask.
func (s *service) query(services []string) (registry.Query, error) {
	if !s.view.isReady() {
		return registry.Query{}, errLoading
	}
	return queryOf(services)
}

func (s *service) services() (*registryv1.ListServicesResponse, error) {
	if !s.view.isReady() {
		return nil, errLoading
	}
	return servicesAnswer(s.view.Snapshot(registry.Query{})), nil
}

func (s *service) regions() (*registryv1.ListRegionsResponse, error) {
	if !s.view.isReady() {
		return nil, errLoading
	}
	answer := regionsAnswer(s.view.Regions())
	for _, r := range answer.GetRegions() {
		if dead := s.census.Dead(); r.GetRegion() == s.own.Region && len(dead) > 0 {
			lost := "nothing is present of cluster " + strings.Join(dead, ", ") + ": its endpoints are served as unhealthy"
			r.Reason = strings.TrimPrefix(r.Reason+"; "+lost, "; ")
		}
	}
	return answer, nil
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
