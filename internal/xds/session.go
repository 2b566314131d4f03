package xds

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/aether-federation/aether/registry"
)

// maxNames is how many names of one kind a stream may ask for.
const maxNames = 10000

// request is one of either protocol.
type request struct {
	node    *corev3.Node
	typeURL string
	nonce   string
	// names asked for: by a delta those that are new.
	names []string
	// version that a client of the state of the world has.
	version string
	// dropped names and versions held from before, of a delta.
	dropped []string
	held    map[string]string
	// refused: the response with that nonce was, for that reason.
	refused bool
	reason  string
}

// session is one stream. Its methods decide; they neither receive nor send.
type session struct {
	cache   *cache
	home    func() Client
	log     *slog.Logger
	metrics *Metrics
	delta   bool
	// from is who the client has proven to be, and where.
	from  string
	since time.Time
	woken *watcher

	// mu is for those who ask how it goes.
	mu      sync.Mutex
	begun   bool
	node    node
	raw     *corev3.Node
	subs    [kinds]*subscription
	follows map[string]bool
	// index is the names of each kind that are about a service.
	index [kinds]map[string][]string
}

var errNowhere = registry.Errorf(registry.Unavailable, "which region this is is not known yet: say yours, or try again in a moment")

// begin takes the node of the first request; later ones do not count.
func (s *session) begin(m *corev3.Node) error {
	if s.begun {
		return nil
	}
	n, err := readNode(m, s.home())
	if err != nil {
		return err
	}
	if n.client.Region == "" {
		return errNowhere
	}
	s.node, s.raw, s.begun = n, m, true
	s.metrics.streams.WithLabelValues(n.program, s.protocol()).Inc()
	s.log = s.log.With("node", n.id, "from", s.from)
	s.log.Debug("xds client connected", "agent", n.agent, "client_region", n.client.Region, "zone", n.client.Zone, "network", n.client.Network)
	return nil
}

func (s *session) protocol() string {
	if s.delta {
		return "delta"
	}
	return "sotw"
}

// end lets go of what the stream followed.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for service := range s.follows {
		s.cache.leave(service, s.woken)
	}
	s.follows = nil
	if s.begun {
		s.metrics.streams.WithLabelValues(s.node.program, s.protocol()).Dec()
	}
}

// take applies a request.
func (s *session) take(r request, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(r.node); err != nil {
		return err
	}
	k, known := kindOf(r.typeURL)
	if !known {
		s.log.Debug("xds client asks for a type that is not served", "type", r.typeURL)
		return nil
	}
	sub := s.subs[k]
	if sub == nil {
		sub = newSubscription(k, s.delta)
		s.subs[k] = sub
	}
	if sub.stale(r) {
		return nil
	}
	if sub.answered(r.nonce, r.reason, r.refused, now) {
		s.metrics.nacks.WithLabelValues(k.String(), s.node.program).Inc()
		s.log.Warn("xds client refused a response", "type", k.String(), "in_row", sub.refused.InRow, "reason", r.reason)
	}
	changed := sub.ask(r)
	if len(sub.names) > maxNames {
		return registry.Errorf(registry.Limited, "%s: more than %d names asked for on one stream", k, maxNames)
	}
	if changed {
		s.index[k] = s.indexed(sub)
		s.refollow()
	}
	return nil
}

// indexed returns the names of a subscription that are known to be about a service.
// Those of everything there is come by its ports.
func (s *session) indexed(sub *subscription) map[string][]string {
	index := map[string][]string{}
	add := func(name string) {
		if n, err := s.meaning(name); err == nil {
			index[n.Service] = append(index[n.Service], name)
		}
	}
	for n := range sub.names {
		add(n)
	}
	if sub.wantsAll() && (sub.kind == listeners || s.node.scope != nil) {
		all, _ := s.everything(sub.kind)
		for _, n := range all {
			add(n)
		}
	}
	return index
}

// touch marks what a change of a service may have changed.
func (s *session) touch(service string, names bool) {
	for k, sub := range s.subs {
		if sub == nil {
			continue
		}
		sub.touch(s.index[k][service]...)
		if sub.kind == clusters && sub.wantsAll() && s.node.scope == nil {
			sub.all = sub.all || names
			sub.touch(s.cache.ports(service)...)
		}
	}
}

// due returns the responses to send now, and after how long to look again if
// nothing happens; 0: not at all.
func (s *session) due(now time.Time) (out []*response, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for service, names := range s.woken.drain() {
		if service == everything {
			s.refollow() // there may be services that are new
		}
		s.touch(service, names)
	}
	for _, sub := range s.subs {
		if sub == nil {
			continue
		}
		r, left := sub.next(now, s)
		if left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
		if r == nil {
			continue
		}
		if r.kind == clusters && s.node.program == "envoy" && s.subs[assignments] != nil {
			// Envoy takes a changed cluster into use once its endpoints came again.
			s.subs[assignments].again(r.changed)
		}
		out = append(out, r)
	}
	return out, wait
}

// refollow makes the services that are followed those that are asked for.
func (s *session) refollow() {
	wanted := s.wanted()
	for service := range s.follows {
		if !wanted[service] {
			s.cache.leave(service, s.woken)
		}
	}
	for service := range wanted {
		if !s.follows[service] {
			s.cache.follow(service, s.woken)
		}
	}
	s.follows = wanted
}

func (s *session) wanted() map[string]bool {
	wanted := map[string]bool{}
	for _, sub := range s.subs {
		if sub == nil {
			continue
		}
		for n := range sub.names {
			if name, err := s.meaning(n); err == nil {
				wanted[name.Service] = true
			}
		}
	}
	if l := s.subs[listeners]; l != nil && l.wantsAll() {
		for _, name := range s.node.outbound {
			wanted[name.Service] = true
		}
	}
	if c := s.subs[clusters]; c != nil && c.wantsAll() {
		s.wantScope(wanted)
	}
	return wanted
}

func (s *session) wantScope(wanted map[string]bool) {
	if s.node.scope != nil {
		for _, name := range s.node.scope {
			wanted[name.Service] = true
		}
		return
	}
	wanted[everything] = true
	names, _ := s.cache.names()
	for _, service := range names {
		wanted[service] = true
	}
}

// meaning returns what a name of any kind is about.
func (s *session) meaning(name string) (Name, error) {
	if at, ok := strings.CutPrefix(name, outboundPrefix); ok {
		address, err := netip.ParseAddrPort(at)
		to, found := s.node.outbound[address]
		if err != nil || !found {
			return Name{}, registry.Errorf(registry.NotFound, "the node's metadata names no listener %q", at)
		}
		return to, nil
	}
	return ParseName(name)
}

// resource implements catalog.
func (s *session) resource(k kind, name string) (*resource, error) {
	n, err := s.meaning(name)
	if err != nil {
		return nil, err
	}
	if at, ok := strings.CutPrefix(name, outboundPrefix); ok {
		if k != listeners {
			return nil, registry.Errorf(registry.NotFound, "%q names a listener alone", name)
		}
		return s.cache.outbound(at, n)
	}
	return s.cache.get(k, n, s.node.client)
}

// everything implements catalog.
func (s *session) everything(k kind) ([]string, bool) {
	switch {
	case k == listeners:
		return s.outboundNames(), true
	case k != clusters:
		return nil, true
	case s.node.scope != nil:
		names := make([]string, len(s.node.scope))
		for i, n := range s.node.scope {
			names[i] = n.String()
		}
		return names, true
	}
	return s.cache.everyPort()
}

func (s *session) outboundNames() []string {
	var names []string
	for at := range s.node.outbound {
		names = append(names, outboundPrefix+at.String())
	}
	slices.Sort(names)
	return names
}

// wait is what a stream does between messages: until a request, a change, the end
// of a wait or of the stream.
func (s *session) wait(ctx context.Context, requests <-chan request, wait time.Duration) (r request, got bool, err error) {
	var timer <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-ctx.Done():
		return r, false, context.Cause(ctx)
	case r = <-requests:
		return r, true, nil
	case <-s.woken.woken:
	case <-timer:
	}
	return r, false, nil
}
