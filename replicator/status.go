package replicator

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// State is what a mirror is doing.
type State string

// The states of a mirror.
const (
	// StateStandby: this process does not mirror to the peer.
	StateStandby State = "standby"
	// StateConnecting: the peer is not reached, or was lost; see the error.
	StateConnecting State = "connecting"
	// StateRefused: the peer's etcd is not one that may be mirrored to.
	StateRefused State = "refused"
	// StateSyncing: the mirror is being taken over, or filled.
	StateSyncing State = "syncing"
	// StateLive: the mirror follows its origin.
	StateLive State = "live"
	// StateHeld: a rebuild that would delete most of the mirror waits to be
	// accepted.
	StateHeld State = "held"
	// StateFull: the peer has no space; keepalives and deletes go on.
	StateFull State = "full"
	// StateStale: the own etcd does not answer, so the mirror is not kept alive.
	StateStale State = "stale"
)

// PeerStatus is what is known of one mirror.
type PeerStatus struct {
	Region string
	State  State
	// Since is when State was entered.
	Since time.Time
	// LastError is the text of the last failure, with when it happened; empty if
	// there was none.
	LastError   string
	LastErrorAt time.Time
	// Keys that the origin has, and Leases that the mirror is on.
	Keys, Leases int
	// Pending is how many keys the peer has yet to acknowledge, and Lag for how
	// long the oldest of them has waited.
	Pending int
	Lag     time.Duration
	// Checkpoint is the origin revision up to which everything is acknowledged,
	// and Behind how many revisions the origin is ahead of it.
	Checkpoint, Behind int64
	// Renewed is when the peer last confirmed all leases.
	Renewed time.Time
	// Poison are the keys that the peer refuses, at most maxPoison of them.
	Poison []string
	// Warnings are what does not keep the mirror from working and yet should be
	// seen to, such as a peer too old to keep its users apart.
	Warnings []string
}

// progress is what a session reports from time to time.
type progress struct {
	keys, leases, pending int
	oldest                time.Time
	checkpoint, behind    int64
	inFlight, window      int
	poison                []string
}

// status is the state of one mirror, shared with those who look at it.
type status struct {
	mu     sync.Mutex
	region string
	meter  meter
	is     PeerStatus
	oldest time.Time
	sent   bool
	// warnings by kind.
	warnings map[string]string
}

// Status returns the state of each mirror that this Replicator has begun, by
// region.
func (r *Replicator) Status() []PeerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]PeerStatus, 0, len(r.status))
	for _, s := range r.status {
		all = append(all, s.get())
	}
	slices.SortFunc(all, func(a, b PeerStatus) int { return strings.Compare(a.Region, b.Region) })
	return all
}

func (r *Replicator) statusOf(region string) *status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status[region]
	if s == nil {
		s = &status{region: region, meter: r.metrics.of(region)}
		s.is = PeerStatus{Region: region, State: StateStandby, Since: time.Now()}
		r.status[region] = s
	}
	return s
}

func (s *status) get() PeerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.is
	is.Warnings = s.warningTexts()
	if !s.oldest.IsZero() {
		is.Lag = time.Since(s.oldest)
	}
	return is
}

// enter changes the state; err, if not nil, says why.
func (s *status) enter(state State, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.is.LastError, s.is.LastErrorAt = err.Error(), time.Now()
	}
	if s.is.State != state {
		s.is.State, s.is.Since = state, time.Now()
		s.meter.state(state)
	}
}

// leave changes the state if it is from.
func (s *status) leave(from, to State) {
	s.mu.Lock()
	is := s.is.State
	s.mu.Unlock()
	if is == from {
		s.enter(to, nil)
	}
}

// fail enters the state that the error which ended a session puts the mirror in.
func (s *status) fail(err error) {
	switch {
	case errors.Is(err, ErrRefused):
		s.enter(StateRefused, err)
	case errors.Is(err, errFull):
		s.enter(StateFull, err)
	default:
		s.enter(StateConnecting, err)
	}
}

func (s *status) renewed(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.Renewed = at
	s.meter.renewed(at)
}

func (s *status) progress(p progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is.Keys, s.is.Leases, s.is.Pending = p.keys, p.leases, p.pending
	s.is.Checkpoint, s.is.Behind, s.is.Poison = p.checkpoint, p.behind, p.poison
	s.oldest = p.oldest
	s.meter.progress(p)
}

func (s *status) noteSent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = true
}

// takeSent reports whether anything was sent since it was last asked.
func (s *status) takeSent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = false
	return sent
}
