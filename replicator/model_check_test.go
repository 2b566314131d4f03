package replicator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

// version is one state that a key of the origin was in. A restore from a backup
// begins a new epoch, in which every key has a version of its own: what the
// backup held of it.
type version struct {
	epoch   int
	rev     int64
	value   string
	present bool
	// since is when a restore made it true; zero for a change.
	since time.Time
	// seen is when it was seen.
	seen time.Time
}

// truth is all versions of all keys of an origin, the oldest first.
type truth struct {
	epoch int
	keys  map[string][]version
}

func newTruth() *truth { return &truth{keys: map[string][]version{}} }

func (h *truth) put(key, value string, rev int64) {
	h.keys[key] = append(h.keys[key], version{epoch: h.epoch, rev: rev, value: value, present: true, seen: time.Now()})
}

func (h *truth) remove(key string, rev int64) {
	h.keys[key] = append(h.keys[key], version{epoch: h.epoch, rev: rev, seen: time.Now()})
}

// restored begins an epoch in which the origin holds content, as of rev.
func (h *truth) restored(content map[string]string, rev int64, since time.Time) {
	h.epoch++
	for key, versions := range h.keys {
		value, present := content[key]
		h.keys[key] = append(versions, version{epoch: h.epoch, rev: rev, value: value, present: present, since: since, seen: since})
	}
}

// sighting is one event on the peer: a key that was put or deleted, or, with an
// empty key, a restore of the peer to rev.
type sighting struct {
	at      time.Time
	rev     int64
	key     string
	deleted bool
	value   string
	// lease is the one put to, or the one that the deleted key was on.
	lease int64
}

// excuses say which deletes somebody else than the replicator made.
type excuses struct {
	// revs of the peer in which keys were deleted by hand; keys whose delete by
	// hand had an unknown outcome, with when it began; leases revoked.
	revs   map[int64]bool
	keys   map[string]time.Time
	leases map[int64]bool
	// troubles are when keepalives could not arrive.
	troubles []interval
	ttl      time.Duration
}

type interval struct{ from, to time.Time }

const (
	// recovery is what a replicator may take to reach a peer that is back: the
	// longest pause between sessions and between connection attempts.
	recovery = 2 * maxResyncBackoff
	// certainShare of a TTL without trouble may not cost a lease: promise 4.
	certainShare = 0.8
)

// excused says why somebody else than the replicator may have made a delete, ""
// if nobody has.
func (e *excuses) excused(s sighting) string {
	began, byHand := e.keys[s.key]
	switch {
	case e.revs[s.rev]:
		return "by hand"
	case byHand && !s.at.Before(began):
		return "by hand, perhaps"
	case e.leases[s.lease]:
		return "lease revoked"
	case e.mayExpire(s.at):
		return "lease expired"
	}
	return ""
}

// mayExpire reports whether leases may expire at a time: whether the troubles
// within a TTL before, each with the recovery behind it, add up to enough of it.
func (e *excuses) mayExpire(at time.Time) bool {
	from := at.Add(-e.ttl - time.Second)
	covered, reached := time.Duration(0), from
	for _, t := range e.troubles { // sorted by from
		begin, end := t.from, t.to.Add(recovery)
		if begin.Before(reached) {
			begin = reached
		}
		if end.After(at) {
			end = at
		}
		if end.After(begin) {
			covered += end.Sub(begin)
			reached = end
		}
	}
	return covered >= time.Duration(certainShare*float64(e.ttl))
}

// checker follows each key on the peer through the origin's versions of it.
type checker struct {
	truth  *truth
	excuse *excuses
	prefix string
	origin string
	keys   map[string]*showing
	// undo is what the keys were before each event, for a restore of the peer.
	undo []undone
	// state is the mirror's as last recorded, nil when it is not known.
	state *mirrorv1.State
	// leases are all that a state has ever named.
	leases map[int64]bool
	// settled is the epoch in which the mirror was last equal to its origin.
	settled int
	// unmade are deletes that only a restore of the origin explains.
	unmade int
}

// showing is where a key on the peer is: which of the origin's versions it showed
// last, -1 for none, and whether it is there. Where that is not certain, because a
// delete has two explanations or a value came back with a backup, at is the
// earliest and upTo the latest that it may have been.
type showing struct {
	at, upTo int
	present  bool
	// taken is the peer's revision in which somebody else deleted it last; 0 if
	// it is back.
	taken int64
}

// bothWatched is by how much one side's watch may tell of a change sooner than
// the other's.
const bothWatched = time.Second

type undone struct {
	rev int64
	key string
	was showing
}

func newChecker(h *truth, e *excuses, origin string) *checker {
	return &checker{truth: h, excuse: e, prefix: keyspace.RegionPrefix(origin), origin: origin, keys: map[string]*showing{}, leases: map[int64]bool{}}
}

// see takes the next event on the peer and says what is wrong with it.
func (c *checker) see(s sighting) string {
	switch {
	case s.key == "":
		c.rewind(s.rev)
		return ""
	case strings.HasPrefix(s.key, c.prefix):
		return c.seeMirrored(s)
	case s.key == keyspace.StateKey(c.origin):
		return c.seeState(s)
	case strings.HasPrefix(s.key, keyspace.MirrorPrefix(c.origin)), s.key == keyspace.StoreKey, strings.HasPrefix(s.key, "/model/"), strings.HasPrefix(s.key, "/fill/"):
		return ""
	}
	return fmt.Sprintf("write outside of the origin's prefixes: %s", s.key)
}

func (c *checker) seeMirrored(s sighting) string {
	key := c.keys[s.key]
	if key == nil {
		key = &showing{at: -1, upTo: -1}
		c.keys[s.key] = key
	}
	c.undo = append(c.undo, undone{s.rev, s.key, *key})
	if s.deleted {
		return c.seeDelete(s, key)
	}
	return c.seePut(s, key)
}

func (c *checker) seePut(s sighting, key *showing) string {
	key.present, key.taken = true, 0
	versions := c.truth.keys[s.key]
	at := next(versions, max(key.at, 0), s.at, func(v version) bool { return v.present && v.value == s.value })
	switch {
	case at < 0 && next(versions, 0, s.at, func(v version) bool { return v.present && v.value == s.value }) >= 0:
		return fmt.Sprintf("%s shows %s, older than %s before", s.key, s.value, versions[key.at])
	case at < 0:
		return fmt.Sprintf("%s shows %s, which the origin never had", s.key, s.value)
	}
	key.at, key.upTo = at, last(versions, s.at, func(v version) bool { return v.present && v.value == s.value })
	switch {
	case s.lease == 0:
		return fmt.Sprintf("%s was put on no lease", s.key)
	case c.state != nil && !c.leases[s.lease]:
		return fmt.Sprintf("%s was put on lease %x, which the state does not name", s.key, s.lease)
	}
	return ""
}

func (c *checker) seeDelete(s sighting, key *showing) string {
	key.present = false
	versions := c.truth.keys[s.key]
	key.upTo = max(key.upTo, last(versions, s.at, func(v version) bool { return !v.present }))
	if c.excuse.excused(s) != "" {
		key.taken = s.rev
		return ""
	}
	at := next(versions, max(key.at, 0), s.at, func(v version) bool { return !v.present })
	if at < 0 {
		return fmt.Sprintf("%s was deleted, which nobody asked for", s.key)
	}
	key.at = at
	if !versions[at].since.IsZero() {
		c.unmade++
	}
	return ""
}

// next returns the first version at index from or later that matches and was true
// at a time, or -1.
func next(versions []version, from int, at time.Time, match func(version) bool) int {
	for i := from; i < len(versions); i++ {
		if match(versions[i]) && !versions[i].since.After(at) {
			return i
		}
	}
	return -1
}

// last returns the last version that matches and may have been mirrored at a
// time, or -1.
func last(versions []version, at time.Time, match func(version) bool) int {
	for i, v := range slices.Backward(versions) {
		if match(v) && !v.seen.After(at.Add(bothWatched)) {
			return i
		}
	}
	return -1
}

// seeState checks the promise of a checkpoint: that the mirror has everything up
// to it, but for ranges that are recorded as incomplete, and for what somebody else
// deleted after the peer's revision that is recorded.
func (c *checker) seeState(s sighting) string {
	c.state = nil
	state := &mirrorv1.State{}
	if s.deleted {
		return ""
	}
	if err := proto.Unmarshal([]byte(s.value), state); err != nil {
		return fmt.Sprintf("the state does not parse: %v", err)
	}
	c.state = state
	for _, l := range state.GetLeases() {
		c.leases[l.GetId()] = true
	}
	if state.GetPhase() != mirrorv1.Phase_PHASE_COMPLETE || c.settled != c.truth.epoch {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(c.truth.keys)) {
		if why := c.behind(key, state); why != "" {
			return why
		}
	}
	return ""
}

// behind says how a key is behind the checkpoint of a state.
func (c *checker) behind(key string, state *mirrorv1.State) string {
	versions, want := c.truth.keys[key], -1
	for i, v := range versions {
		if v.epoch == c.truth.epoch && v.rev <= state.GetCheckpoint() {
			want = i
		}
	}
	is := c.keys[key]
	if is == nil {
		is = &showing{at: -1, upTo: -1}
	}
	if want < 0 || incomplete(state, key[len(c.prefix):]) || is.taken > state.GetPeerRevision() {
		return ""
	}
	if is.taken == 0 && is.upTo >= want {
		return ""
	}
	// What is there may be newer than the checkpoint, and needs no event when it is
	// what was there before: after a restore, or a put and a delete in one batch.
	for _, v := range versions[want:] {
		if is.present == v.present && (!is.present || versions[is.at].value == v.value) {
			return ""
		}
	}
	return fmt.Sprintf("%s is behind the checkpoint %d: the origin had %v", key, state.GetCheckpoint(), versions[want])
}

// incomplete reports whether the range of a key is recorded as being filled.
func incomplete(state *mirrorv1.State, key string) bool {
	in := false
	for _, l := range state.GetLeases() {
		if l.GetStart() > key {
			break
		}
		in = l.GetIncomplete()
	}
	return in
}

// rewind takes back what was seen after rev.
func (c *checker) rewind(rev int64) {
	for n := len(c.undo); n > 0 && c.undo[n-1].rev > rev; n-- {
		was := c.undo[n-1]
		*c.keys[was.key] = was.was
		c.undo = c.undo[:n-1]
	}
	c.state = nil
}

func (v version) String() string {
	if !v.present {
		return fmt.Sprintf("nothing at %d/%d", v.epoch, v.rev)
	}
	return fmt.Sprintf("%s at %d/%d", v.value, v.epoch, v.rev)
}
