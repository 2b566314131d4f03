package xds

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strconv"
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
	// After a refusal the same is not sent for firstHold, then twice as long each
	// time, up to longestHold.
	firstHold   = time.Second
	longestHold = time.Minute
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
	// claimed is the version that a client of the state of the world holds from an
	// earlier stream, until that was looked at.
	claimed string
	// settled: the first answer was given, or need not be.
	settled bool
	// sent is the versions that the client has or is about to have.
	sent map[string]string
	held map[string]hold
	// last is the nonce of the latest response, flight the response while nothing
	// was said to it.
	last   string
	count  uint64
	flight *response
	// acked is what the client took, when it last did, refused what it last
	// refused.
	acked   map[string]string
	ackedAt time.Time
	refused *refusal
	errors  map[string]string
}

// hold keeps a resource back that a client has refused.
type hold struct {
	version string
	tries   int
	at      time.Time
}

// left is for how long a version is kept back: what is not what was refused, only
// for as long as a first refusal would.
func (h hold) left(version string, now time.Time) time.Duration {
	switch {
	case h.tries == 0:
		return 0
	case version == h.version:
		return h.at.Add(holdFor(h.tries)).Sub(now)
	default:
		return h.at.Add(firstHold).Sub(now)
	}
}

// refusal is a response that a client did not take.
type refusal struct {
	At       time.Time
	Versions map[string]string
	Reason   string
	// InRow counts those since the client last took a response.
	InRow int
}

// response is what to send next.
type response struct {
	kind      kind
	nonce     string
	version   string
	resources []*resource
	// removed are gone, by a delta; errors say why a name has no resource.
	removed []string
	errors  map[string]string
	// versions of all that the response tells of, changed those that are new.
	versions map[string]string
	changed  []string
}

func newSubscription(k kind, delta bool) *subscription {
	return &subscription{
		kind: k, delta: delta, names: map[string]struct{}{}, sent: map[string]string{}, held: map[string]hold{},
		acked: map[string]string{}, errors: map[string]string{},
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

// ask takes what a request asks for.
func (s *subscription) ask(r request) {
	first := !s.asked
	if !s.delta {
		s.set(r.names)
		if first {
			s.claimed = r.version
		}
		return
	}
	s.change(r.names, r.dropped)
	if first {
		s.holds(r.held)
	}
}

// set replaces the names of a client of the state of the world.
func (s *subscription) set(names []string) {
	first := !s.asked
	s.asked = true
	s.legacy = len(names) == 0 && s.kind.whole() && (first || s.legacy)
	wanted := make(map[string]struct{}, len(names))
	for _, n := range names {
		wanted[n] = struct{}{}
	}
	gone := []string{}
	for n := range s.names {
		if _, kept := wanted[n]; !kept {
			gone = append(gone, n)
		}
	}
	s.names = wanted
	s.forget(gone)
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
		if !first {
			delete(s.sent, n)
		}
	}
}

// forget drops what is known of names that are not asked for any more.
func (s *subscription) forget(names []string) {
	if s.wantsAll() {
		return
	}
	for _, n := range names {
		delete(s.sent, n)
		delete(s.held, n)
		delete(s.acked, n)
		delete(s.errors, n)
	}
}

// again makes names due, though the client has them.
func (s *subscription) again(names []string) {
	for _, n := range names {
		delete(s.sent, n)
	}
}

// holds says which versions a delta client has from an earlier stream.
func (s *subscription) holds(versions map[string]string) {
	for n, v := range versions {
		s.sent[n], s.acked[n] = v, v
	}
}

// answered takes what the client says to the response with that nonce, and reports
// whether it refused. What it says to an older one does not count any more.
func (s *subscription) answered(nonce, reason string, refused bool, now time.Time) (nack bool) {
	r := s.flight
	if r == nil || nonce != r.nonce {
		return false
	}
	s.flight = nil
	if !refused {
		s.accept(r, now)
		return false
	}
	s.refuse(r, reason, now)
	return true
}

func (s *subscription) accept(r *response, now time.Time) {
	s.ackedAt = now
	s.refused = nil
	for n, v := range r.versions {
		delete(s.held, n)
		if _, sent := s.sent[n]; !sent {
			continue // not asked for any more, or to be sent again
		}
		if v == absent {
			delete(s.acked, n)
		} else {
			s.acked[n] = v
		}
	}
}

func (s *subscription) refuse(r *response, reason string, now time.Time) {
	inRow := 1
	if s.refused != nil {
		inRow += s.refused.InRow
	}
	s.refused = &refusal{At: now, Versions: r.versions, Reason: reason, InRow: inRow}
	for n, v := range r.versions {
		s.held[n] = hold{version: v, tries: s.held[n].tries + 1, at: now}
		delete(s.sent, n)
	}
}

// holdFor is how long something is kept back that was refused that often in a row.
func holdFor(tries int) time.Duration {
	return min(longestHold, firstHold<<min(tries-1, 16))
}

// next returns the response that is due, if any is. Otherwise wait, if it is not
// zero, is how long until one may be.
func (s *subscription) next(now time.Time, from catalog) (r *response, wait time.Duration) {
	if !s.asked || s.flight != nil {
		return nil, 0
	}
	d, ok := s.look(now, from)
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
	s.flight = s.respond(d)
	return s.flight, d.wait
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

// look compares what there is with what was sent. It is not ok while that cannot
// be told, or may not be yet.
func (s *subscription) look(now time.Time, from catalog) (d due, ok bool) {
	names, ok := s.wanted(from)
	if !ok {
		return d, false
	}
	d.all, d.errors = make(map[string]*resource, len(names)), map[string]string{}
	pending, kept := false, false
	for _, n := range names {
		r, err := from.resource(s.kind, n)
		if errors.Is(err, errPending) {
			pending = true
			continue
		}
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
		if had, sent := s.sent[n]; !sent || had != version {
			d.changed = append(d.changed, n)
		}
	}
	d.gone = s.gone(names)
	if pending && (s.whole() || !s.settled) || kept && s.whole() {
		return d, false
	}
	return d, true
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
	for n, v := range s.sent {
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
	versions := make(map[string]string, len(d.all))
	for n, r := range d.all {
		versions[n] = r.version
	}
	for n := range d.errors {
		versions[n] = absent
	}
	if claimed == "" || claimed != versionOfAll(versions) {
		return false
	}
	s.sent = versions
	s.acked = maps.Clone(versions)
	maps.DeleteFunc(s.acked, func(_, v string) bool { return v == absent })
	maps.Copy(s.errors, d.errors)
	return true
}

// respond makes a response of what is due and notes that it is sent.
func (s *subscription) respond(d due) *response {
	s.count++
	s.last = strconv.FormatUint(s.count, 10)
	r := &response{kind: s.kind, nonce: s.last, changed: d.changed, errors: map[string]string{}, versions: map[string]string{}}
	names := s.apart(d.changed)
	if s.whole() {
		names = slices.Sorted(maps.Keys(d.all))
		for n := range d.errors {
			names = append(names, n)
		}
	}
	for _, n := range names {
		s.tell(r, n, d)
	}
	for _, n := range d.gone {
		delete(s.sent, n)
		delete(s.acked, n)
		r.removed = append(r.removed, n)
	}
	r.version = versionOfAll(s.sent)
	return r
}

// apart leaves out names that were refused, or returns one of these alone: so the
// client says which of them it does not take.
func (s *subscription) apart(names []string) []string {
	var clean []string
	for _, n := range names {
		if s.held[n].tries == 0 {
			clean = append(clean, n)
		}
	}
	if len(clean) == 0 && len(names) > 0 {
		return names[:1]
	}
	return clean
}

// tell puts what there is of one name into r.
func (s *subscription) tell(r *response, name string, d due) {
	res, version := d.all[name], absent
	delete(s.errors, name)
	if res != nil {
		version = res.version
		r.resources = append(r.resources, res)
	} else {
		s.errors[name] = d.errors[name]
		r.errors[name] = d.errors[name]
		r.removed = append(r.removed, name)
	}
	s.sent[name], r.versions[name] = version, version
}

// versionOfAll names a set of resources by what is in each.
func versionOfAll(versions map[string]string) string {
	hash := sha256.New()
	for _, n := range slices.Sorted(maps.Keys(versions)) {
		hash.Write([]byte(n + "\x00" + versions[n] + "\x00")) // never fails
	}
	return base64.RawURLEncoding.EncodeToString(hash.Sum(nil)[:12])
}
