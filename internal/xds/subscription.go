package xds

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"
)

// catalog answers what there is for one client.
type catalog interface {
	// resource returns the one of that name. The error is errPending while it is
	// not known, and otherwise says why it does not exist.
	resource(k kind, name string) (*resource, error)
	// everything returns the names that a client gets that asks for all, and
	// whether they are known.
	everything(k kind) ([]string, bool)
}

const (
	// wildcard asks for everything.
	wildcard = "*"
	// absent is the version of what does not exist.
	absent = ""
)

// subscription is what one stream asked for of one kind, was sent of it and said to
// that. At most one response is under way, so that a client gets what is newest
// when it is ready for it, and nothing piles up. It is pure: time is passed in.
type subscription struct {
	kind  kind
	delta bool
	// asked: there was a request. legacy: it named nothing, which means all.
	asked, legacy bool
	names         map[string]struct{}
	// raw is names as a client of the state of the world sent them.
	raw []string
	// claimed is the version that a client of the state of the world holds from an
	// earlier stream, until that was looked at.
	claimed string
	// settled: the first answer was given, or need not be.
	settled bool
	// sent is the versions that the client has or is about to have.
	sent *versions
	held map[string]hold
	// touched names may have changed since they were looked at; all of them if all
	// is set.
	touched map[string]struct{}
	all     bool
	// last is the nonce of the latest response, which is flight while nothing was
	// said to it and latest while it was not refused.
	last           string
	count          uint64
	flight, latest *response
	// acked is what the client took, when it last did, refused what it last
	// refused.
	acked   map[string]string
	ackedAt time.Time
	refused *refusal
	errors  map[string]string
}

func newSubscription(k kind, delta bool) *subscription {
	return &subscription{
		kind: k, delta: delta, names: map[string]struct{}{}, sent: newVersions(), held: map[string]hold{},
		touched: map[string]struct{}{}, all: true, acked: map[string]string{}, errors: map[string]string{},
	}
}

// wantsAll reports whether the client asked for everything.
func (s *subscription) wantsAll() bool {
	_, star := s.names[wildcard]
	return star || s.legacy
}

// stale reports whether a request is about a response that was followed by another:
// the client sends one about that too.
func (s *subscription) stale(r request) bool {
	return !s.delta && s.last != "" && r.nonce != s.last
}

// ask takes what a request asks for, and reports whether that is not what the last
// one did.
func (s *subscription) ask(r request) (changed bool) {
	first := !s.asked
	switch {
	case s.delta && !first && len(r.names)+len(r.dropped) == 0:
		return false
	case s.delta:
		s.change(r.names, r.dropped)
	case !first && slices.Equal(r.names, s.raw):
		return false
	default:
		s.raw = r.names
		s.set(r.names)
	}
	if first {
		s.claimed = r.version
		s.holds(r.held)
	}
	return true
}

// set replaces the names of a client of the state of the world.
func (s *subscription) set(names []string) {
	first, had := !s.asked, s.wantsAll()
	s.asked = true
	s.legacy = len(names) == 0 && s.kind.whole() && (first || s.legacy)
	wanted := make(map[string]struct{}, len(names))
	for _, n := range names {
		wanted[n] = struct{}{}
		if _, known := s.names[n]; !known {
			s.touch(n)
		}
	}
	gone := []string{}
	for n := range s.names {
		if _, kept := wanted[n]; !kept {
			gone = append(gone, n)
		}
	}
	s.names = wanted
	s.forget(gone)
	s.all = s.all || s.wantsAll() != had
}

// touch notes that names may have changed.
func (s *subscription) touch(names ...string) {
	for _, n := range names {
		s.touched[n] = struct{}{}
	}
}

// change adds and removes names of a delta client. A name that is asked for again
// is sent again.
func (s *subscription) change(subscribe, unsubscribe []string) {
	first := !s.asked
	s.asked = true
	if first {
		s.legacy = len(subscribe) == 0 && s.kind.whole()
	}
	for _, n := range unsubscribe {
		delete(s.names, n)
		if n == wildcard {
			s.legacy = false
		}
	}
	s.forget(unsubscribe)
	for _, n := range subscribe {
		s.names[n] = struct{}{}
	}
	if !first {
		s.again(subscribe)
	}
	s.all = s.all || slices.Contains(subscribe, wildcard) || slices.Contains(unsubscribe, wildcard)
}

// forget drops what is known of names that are not asked for any more.
func (s *subscription) forget(names []string) {
	if s.wantsAll() {
		return
	}
	for _, n := range names {
		s.sent.remove(n)
		delete(s.touched, n)
		delete(s.held, n)
		delete(s.acked, n)
		delete(s.errors, n)
	}
}

// again makes names due, though the client has them.
func (s *subscription) again(names []string) {
	for _, n := range names {
		s.sent.remove(n)
	}
	s.touch(names...)
}

// holds says which versions a delta client has from an earlier stream.
func (s *subscription) holds(versions map[string]string) {
	for n, v := range versions {
		s.sent.set(n, v)
		s.acked[n] = v
	}
}

// next returns the response that is due, if any is. Otherwise wait, if it is not
// zero, is how long until one may be.
func (s *subscription) next(now time.Time, from catalog) (r *response, wait time.Duration) {
	if !s.asked || s.flight != nil || !s.all && len(s.touched) == 0 && len(s.held) == 0 {
		return nil, 0
	}
	full := s.all
	d, ok := s.look(now, from)
	if ok && !full && s.whole() && len(d.changed) > 0 {
		s.all = true // the response tells them all
		d, ok = s.look(now, from)
	}
	if !ok {
		return nil, d.wait
	}
	if len(s.names) == 0 && !s.legacy && len(d.gone) == 0 {
		return nil, 0
	}
	if !s.settled && s.hasAll(d) {
		s.settled = true
		return nil, d.wait
	}
	if s.settled && len(d.changed) == 0 && len(d.gone) == 0 {
		return nil, d.wait
	}
	s.settled = true
	r = s.respond(d)
	s.flight, s.latest = r, r
	return r, d.wait
}

// due is what a client has to be told.
type due struct {
	// all is what there is, by name, errors why something is not.
	all    map[string]*resource
	errors map[string]string
	// changed names differ from what the client has, gone ones are no more.
	changed, gone []string
	wait          time.Duration
}

// look compares what there is with what was sent, of the names that may have changed.
// It is not ok while that cannot be told, or may not be yet.
func (s *subscription) look(now time.Time, from catalog) (d due, ok bool) {
	names, ok := s.toLook(from)
	if !ok {
		return d, false
	}
	d.all, d.errors = make(map[string]*resource, len(names)), map[string]string{}
	pending, kept := false, false
	for _, n := range names {
		r, err := from.resource(s.kind, n)
		if errors.Is(err, errPending) {
			pending = true
			s.touch(n)
			continue
		}
		delete(s.touched, n)
		version := absent
		if err == nil {
			version = r.version
		}
		if wait := s.held[n].left(version, now); wait > 0 {
			kept = true
			d.wait = cmp.Or(min(d.wait, wait), wait)
			continue
		}
		if err == nil {
			d.all[n] = r
		} else {
			d.errors[n] = err.Error()
		}
		if had, sent := s.sent.of[n]; !sent || had != version {
			d.changed = append(d.changed, n)
		}
	}
	if s.all {
		d.gone = s.gone(names)
	}
	if pending && (s.whole() || !s.settled) || kept && s.whole() {
		s.all = true
		return d, false
	}
	s.all = false
	return d, true
}

// toLook returns the names to look at, sorted.
func (s *subscription) toLook(from catalog) (names []string, ok bool) {
	if s.all {
		return s.wanted(from)
	}
	for n := range s.touched {
		_, asked := s.names[n]
		_, sent := s.sent.of[n]
		if _, held := s.held[n]; (asked || sent) && !held {
			names = append(names, n)
		}
	}
	for n := range s.held {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, true
}

// whole reports whether a response has to tell all that there is.
func (s *subscription) whole() bool { return !s.delta && s.kind.whole() }

// wanted returns the names that the client asks for, sorted.
func (s *subscription) wanted(from catalog) (names []string, ok bool) {
	for n := range s.names {
		if n != wildcard {
			names = append(names, n)
		}
	}
	if s.wantsAll() {
		all, known := from.everything(s.kind)
		if !known {
			return nil, false
		}
		names = append(names, all...)
	}
	slices.Sort(names)
	return slices.Compact(names), true
}

// gone returns what the client has and nobody wants any more; names is sorted.
func (s *subscription) gone(names []string) []string {
	var out []string
	for n, v := range s.sent.of {
		if _, found := slices.BinarySearch(names, n); !found && v != absent {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// hasAll reports whether a client that came back has all of d already. One that has
// nothing needs an answer, be it empty.
func (s *subscription) hasAll(d due) bool {
	if s.delta {
		return len(d.changed) == 0 && len(d.gone) == 0 && len(d.all) > 0
	}
	claimed := s.claimed
	s.claimed = ""
	there := newVersions()
	for n, r := range d.all {
		there.set(n, r.version)
	}
	for n := range d.errors {
		there.set(n, absent)
	}
	if claimed == "" || claimed != there.name() {
		return false
	}
	s.sent, s.acked = there, there.existing()
	maps.Copy(s.errors, d.errors)
	return true
}
