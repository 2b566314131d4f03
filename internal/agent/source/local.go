package source

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/agent/state"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

const (
	// FromLocal is where endpoints are declared that programs registered.
	FromLocal = "the local API"
	// MinTTL is the shortest time in which a registration may have to be refreshed.
	MinTTL = 5 * time.Second
	// MaxLocal is how many endpoints programs may register.
	MaxLocal   = 10000
	localState = "local"
)

// Local is a Source: what programs on this node registered, and the health that
// they, or people, gave to endpoints of any source. It is safe for concurrent use.
type Local struct {
	state state.Dir
	log   *slog.Logger
	wake  chan struct{}

	mu      sync.Mutex
	entries map[registry.Key]entry
	health  map[registry.Key]registry.Health
}

// entry is one registration.
type entry struct {
	endpoint registry.Endpoint
	ttl      time.Duration
	// expires is when it ends unless it is refreshed; zero: never.
	expires time.Time
}

// savedLocal is the form on disk.
type savedLocal struct {
	Endpoints []savedEntry `json:"endpoints"`
	Health    []savedEntry `json:"health"`
}

type savedEntry struct {
	Endpoint []byte        `json:"endpoint"` // a protobuf message as JSON
	TTL      time.Duration `json:"ttl"`
}

// NewLocal returns a Local with what was registered when the agent ran last. Those
// registrations have their whole TTL from now on: nobody could refresh them.
func NewLocal(dir state.Dir, log *slog.Logger) *Local {
	if log == nil {
		log = slog.Default()
	}
	l := &Local{
		state: dir, log: log, wake: make(chan struct{}, 1),
		entries: map[registry.Key]entry{}, health: map[registry.Key]registry.Health{},
	}
	l.restore(time.Now())
	return l
}

// Register adds or replaces endpoints, which must have passed [Check]. With a ttl
// they end unless they are registered again within it. A registration that says
// what is there already refreshes it, and keeps the health that was given to it.
func (l *Local) Register(endpoints []registry.Endpoint, ttl time.Duration) error {
	if ttl != 0 && ttl < MinTTL {
		return registry.Invalidf("ttl", "is %v: use %v at least, or 0 for no limit", ttl, MinTTL)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	entries, health := maps.Clone(l.entries), maps.Clone(l.health)
	changed := false
	for _, e := range endpoints {
		was, there := entries[e.Key]
		if !there || !was.endpoint.Equal(e) || was.ttl != ttl {
			delete(health, e.Key)
			changed = true
		}
		entries[e.Key] = entry{endpoint: e.Clone(), ttl: ttl, expires: expiry(time.Now(), ttl)}
	}
	if len(entries) > MaxLocal {
		return registry.Errorf(registry.Limited, "there would be %d registrations: %d are the most", len(entries), MaxLocal)
	}
	return l.replace(entries, health, changed)
}

func expiry(now time.Time, ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return now.Add(ttl)
}

// Unregister removes registrations and returns how many there were.
func (l *Local) Unregister(keys []registry.Key) (removed int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries, health := maps.Clone(l.entries), maps.Clone(l.health)
	for _, k := range keys {
		if _, there := entries[k]; there {
			delete(entries, k)
			delete(health, k)
			removed++
		}
	}
	return removed, l.replace(entries, health, removed > 0)
}

// SetHealth gives endpoints of any source a health that wins over the declared one
// and over probes; unspecified takes it back.
func (l *Local) SetHealth(keys []registry.Key, h registry.Health) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	health := maps.Clone(l.health)
	for _, k := range keys {
		if h == registry.HealthUnspecified {
			delete(health, k)
		} else {
			health[k] = h
		}
	}
	return l.replace(l.entries, health, !maps.Equal(health, l.health))
}

// Health returns the health that was given to endpoints.
func (l *Local) Health() map[registry.Key]registry.Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.health)
}

// Retain forgets the health that was given to endpoints which no source declares
// any more.
func (l *Local) Retain(declared func(registry.Key) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	health := maps.Clone(l.health)
	maps.DeleteFunc(health, func(k registry.Key, _ registry.Health) bool { return !declared(k) })
	return l.replace(l.entries, health, len(health) != len(l.health))
}

// replace makes a change that is durable first, where there is one to be saved.
func (l *Local) replace(entries map[registry.Key]entry, health map[registry.Key]registry.Health, changed bool) error {
	if changed {
		if err := l.save(entries, health); err != nil {
			return registry.Errorf(registry.Unavailable, "%w", err)
		}
	}
	l.entries, l.health = entries, health
	if !changed {
		return nil // at most a later end, which Run finds when the former comes
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// Run implements [Source].
func (l *Local) Run(ctx context.Context, tell func(State)) error {
	for {
		next, err := l.expire(time.Now())
		if err != nil {
			l.log.Warn("registrations that were not refreshed come back after a restart", "error", err)
		}
		tell(l.State())
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-due:
		}
	}
}

// expire ends what was not refreshed, and returns when the next ends; zero: none.
func (l *Local) expire(now time.Time) (next time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries, health := maps.Clone(l.entries), maps.Clone(l.health)
	for k, e := range entries {
		switch {
		case e.expires.IsZero():
		case !e.expires.After(now):
			l.log.Info("a registration was not refreshed", "service", k.Service, "ip", k.IP, "ttl", e.ttl)
			delete(entries, k)
			delete(health, k)
		case next.IsZero() || e.expires.Before(next):
			next = e.expires
		}
	}
	if len(entries) == len(l.entries) {
		return next, nil
	}
	l.entries, l.health = entries, health
	return next, l.save(entries, health)
}

// State is what is registered now, in the order of keys.
func (l *Local) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := State{Known: true}
	for _, k := range slices.SortedFunc(maps.Keys(l.entries), registry.Key.Compare) {
		s.Declared = append(s.Declared, Declared{Endpoint: l.entries[k].endpoint, From: FromLocal})
	}
	return s
}

func (l *Local) save(entries map[registry.Key]entry, health map[registry.Key]registry.Health) error {
	var out savedLocal
	for _, k := range slices.SortedFunc(maps.Keys(entries), registry.Key.Compare) {
		e := entries[k]
		b, err := protojson.Marshal(wire.ToProto(e.endpoint))
		if err != nil {
			return fmt.Errorf("encode registration: %w", err)
		}
		out.Endpoints = append(out.Endpoints, savedEntry{Endpoint: b, TTL: e.ttl})
	}
	for _, k := range slices.SortedFunc(maps.Keys(health), registry.Key.Compare) {
		b, err := protojson.Marshal(wire.ToProto(registry.Endpoint{Key: k, Health: health[k]}))
		if err != nil {
			return fmt.Errorf("encode health: %w", err)
		}
		out.Health = append(out.Health, savedEntry{Endpoint: b})
	}
	return l.state.Save(localState, out)
}

func (l *Local) restore(now time.Time) {
	var saved savedLocal
	_, err := l.state.Load(localState, &saved)
	for _, s := range saved.Endpoints {
		e, decodeErr := s.decode()
		err = cmp.Or(err, decodeErr)
		if decodeErr == nil {
			l.entries[e.Key] = entry{endpoint: e, ttl: s.TTL, expires: expiry(now, s.TTL)}
		}
	}
	for _, s := range saved.Health {
		e, decodeErr := s.decode()
		err = cmp.Or(err, decodeErr)
		if decodeErr == nil {
			l.health[e.Key] = e.Health
		}
	}
	if err != nil {
		l.log.Warn("some registrations of programs are not remembered", "error", err)
	}
}

func (s savedEntry) decode() (registry.Endpoint, error) {
	m := &registryv1.Endpoint{}
	if err := protojson.Unmarshal(s.Endpoint, m); err != nil {
		return registry.Endpoint{}, fmt.Errorf("decode registration: %w", err)
	}
	return wire.FromProto(m)
}
