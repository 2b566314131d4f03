package replicator

import (
	"iter"
	"slices"
	"sort"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// minKeysPerLease is what a lease carries in a mirror of up to
	// minKeysPerLease × wantedLeases keys. For a restricted user etcd checks each
	// leased put and keepalive against every key of the lease, in its apply loop:
	// measured on etcd 3.6 and 3.7, 100 keys a lease allow 18,000 to 22,000 puts/s
	// where 1,000 allow 1,700.
	minKeysPerLease = 100
	// fillKeysPerLease is what a fill puts on one lease at most, and
	// maxKeysPerLease what may be there before its range is split.
	fillKeysPerLease = 800
	maxKeysPerLease  = 1000
	// wantedLeases is the number of leases above which a lease carries more keys:
	// an etcd expires some 500 leases within a second, and answers about 2,600
	// keepalives a second.
	wantedLeases = 500
	// spareLeases may be empty without being given up.
	spareLeases = 16
)

// keysPerLease returns how many keys a fill puts on a lease in a mirror of total
// keys.
func keysPerLease(total int) int {
	return min(max((total+wantedLeases-1)/wantedLeases, minKeysPerLease), fillKeysPerLease)
}

// splitAbove returns how many keys a range may hold before it is split.
func splitAbove(perLease int) int { return min(2*perLease, maxKeysPerLease) }

// span is a range of keys relative to the origin's prefix, from start up to end.
// An empty end is the end of the prefix.
type span struct{ start, end string }

func (s span) contains(key string) bool {
	return key >= s.start && (s.end == "" || key < s.end)
}

// leaseRange is the range of keys that one lease carries, from start up to the
// next range's start. Neighbouring keys share a lease, and so do most endpoints
// of one service.
type leaseRange struct {
	start string
	id    clientv3.LeaseID
	// keys that the origin has in the range, as far as the events applied.
	keys int
	// incomplete: keys of this range may be missing on the peer or on another
	// lease. It is part of the state on the peer, so a successor mends it.
	incomplete bool
	// fill numbers the last fill that included the range.
	fill int64
	// blocked: operations on keys of this range wait.
	blocked bool
}

// place lays sorted keys out over ranges of about perLease keys. It keeps the
// boundaries and leases of old where they still fit, because a key that changes
// its lease must be written: a range is cut where it holds more than
// splitAbove(perLease), and an empty one is joined to the one before. New ranges
// have no lease yet, id 0. The result always begins with the start of the first
// old range, or "" when there is none, and covers the same keys.
func place(old []leaseRange, keys iter.Seq[string], perLease int) []leaseRange {
	if len(old) == 0 {
		old = []leaseRange{{}}
	}
	p := placer{old: old, perLease: perLease}
	for key := range keys {
		for p.at+1 < len(old) && key >= old[p.at+1].start {
			p.finish()
		}
		p.add(key)
	}
	for p.at < len(old) {
		p.finish()
	}
	return p.out
}

// placer gathers the keys of one old range at a time.
type placer struct {
	old      []leaseRange
	perLease int
	at       int
	count    int
	// marks[i] is the key number i×step of the range: candidates for cuts. Each
	// time there are too many, every other one is let go.
	marks []string
	step  int
	last  string
	out   []leaseRange
}

const maxMarks = 1 << 16

func (p *placer) add(key string) {
	if p.step == 0 {
		p.step = 1
	}
	if p.count%p.step == 0 {
		p.marks = append(p.marks, cut(p.last, key))
		if len(p.marks) == maxMarks {
			for i := range maxMarks / 2 {
				p.marks[i] = p.marks[2*i]
			}
			p.marks = p.marks[:maxMarks/2]
			p.step *= 2
		}
	}
	p.count++
	p.last = key
}

func (p *placer) finish() {
	r := p.old[p.at]
	parts := 1
	if p.count > splitAbove(p.perLease) || r.id == 0 {
		parts = max(1, (p.count+p.perLease-1)/p.perLease)
	}
	switch {
	case p.count == 0 && len(p.out) > 0:
		// Joined to the range before.
	default:
		p.emit(r, parts)
	}
	p.at++
	p.count, p.marks, p.step, p.last = 0, p.marks[:0], 0, ""
}

func (p *placer) emit(r leaseRange, parts int) {
	from := 0
	for i := range parts {
		n := r
		if i > 0 {
			n.start, n.id = p.marks[from/p.step], 0
		}
		// The next cut, moved down to a key that has a mark.
		to := p.count * (i + 1) / parts
		if i < parts-1 {
			to -= to % p.step
		}
		n.keys = to - from
		from = to
		p.out = append(p.out, n)
	}
}

// cut returns the shortest string that is above before and not above key, so
// that the lease table stays small.
func cut(before, key string) string {
	n := 0
	for n < len(before) && n < len(key) && before[n] == key[n] {
		n++
	}
	if before == "" || n >= len(key) {
		return key
	}
	return strings.Clone(key[:n+1])
}

// runs gathers, from sorted keys and the leases they are on, the ranges in which
// neighbours share a lease.
type runs struct {
	found []leaseRange
	last  string
}

func (r *runs) add(key string, id clientv3.LeaseID) {
	switch {
	case len(r.found) == 0:
		r.found = append(r.found, leaseRange{id: id})
	case r.found[len(r.found)-1].id != id:
		r.found = append(r.found, leaseRange{start: cut(r.last, key), id: id})
	}
	r.last = key
}

func (r *runs) leases() []clientv3.LeaseID {
	var ids []clientv3.LeaseID
	for _, f := range r.found {
		if f.id != 0 {
			ids = append(ids, f.id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// ranges returns the runs as ranges to begin with: those on a lease that is good
// keep it, the first run of each; the others have none and, as neighbours, are one.
func (r *runs) ranges(good func(clientv3.LeaseID) bool) []leaseRange {
	out := []leaseRange{{incomplete: true}}
	used := map[clientv3.LeaseID]bool{}
	for i, f := range r.found {
		if used[f.id] || !good(f.id) {
			f.id = 0
		}
		used[f.id] = f.id != 0
		f.incomplete = true
		switch {
		case i == 0:
			out[0] = f
		case f.id != 0 || out[len(out)-1].id != 0:
			out = append(out, f)
		}
	}
	return out
}

// leaseTable is the ranges in use. It is safe for concurrent use.
type leaseTable struct {
	mu       sync.Mutex
	ranges   []leaseRange
	perLease int
	// While somebody counts, changes made to the number of keys are also noted.
	counting int
	deltas   []delta
}

// delta is a key that the origin made or removed at a revision.
type delta struct {
	key  string
	rev  int64
	more int
}

func (t *leaseTable) find(key string) int {
	return sort.Search(len(t.ranges), func(i int) bool { return t.ranges[i].start > key }) - 1
}

// lookup returns the lease that key belongs on, and whether its range is blocked.
func (t *leaseTable) lookup(key string) (id clientv3.LeaseID, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.ranges[t.find(key)]
	return r.id, r.blocked
}

// count enters that the origin made (+1) or removed (-1) key at rev, and returns
// the span of its range and whether it now holds too many and is to be split.
// The range is then blocked.
func (t *leaseTable) count(key string, rev int64, more int) (s span, split bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.find(key)
	r := &t.ranges[i]
	r.keys = max(0, r.keys+more)
	if t.counting > 0 {
		t.deltas = append(t.deltas, delta{key, rev, more})
		return span{}, false
	}
	if r.blocked || r.keys <= splitAbove(t.perLease) {
		return span{}, false
	}
	r.blocked = true
	return t.span(i), true
}

func (t *leaseTable) span(i int) span {
	s := span{start: t.ranges[i].start}
	if i+1 < len(t.ranges) {
		s.end = t.ranges[i+1].start
	}
	return s
}

// startCounting begins to note changes, until as many stopCounting.
func (t *leaseTable) startCounting() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counting++
}

// recount sets the number of keys of the ranges in s to what was counted at rev
// and applies what changed later.
func (t *leaseTable) recount(s span, counted map[string]int, rev int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.ranges {
		if r := &t.ranges[i]; s.contains(r.start) {
			r.keys = counted[r.start]
		}
	}
	for _, d := range t.deltas {
		if d.rev > rev && s.contains(d.key) {
			r := &t.ranges[t.find(d.key)]
			r.keys = max(0, r.keys+d.more)
		}
	}
}

// stopCounting ends startCounting. It blocks the ranges that hold too many keys
// by now and returns their spans, to be split.
func (t *leaseTable) stopCounting() []span {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counting--; t.counting > 0 {
		return nil
	}
	t.deltas = nil
	var split []span
	for i := range t.ranges {
		if r := &t.ranges[i]; !r.blocked && r.keys > splitAbove(t.perLease) {
			r.blocked = true
			split = append(split, t.span(i))
		}
	}
	return split
}

// block blocks the range of key and returns its span; fresh is false when it was
// blocked before.
func (t *leaseTable) block(key string) (s span, fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.find(key)
	fresh = !t.ranges[i].blocked
	t.ranges[i].blocked = true
	return t.span(i), fresh
}

// swap puts ranges in place of those in s, which they cover.
func (t *leaseTable) swap(s span, ranges []leaseRange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []leaseRange
	placed := false
	for _, r := range t.ranges {
		if !s.contains(r.start) {
			if !placed && r.start > s.start {
				out, placed = append(out, ranges...), true
			}
			out = append(out, r)
		}
	}
	if !placed {
		out = append(out, ranges...)
	}
	t.ranges = out
}

// within returns a copy of the ranges in s.
func (t *leaseTable) within(s span) []leaseRange {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []leaseRange
	for _, r := range t.ranges {
		if s.contains(r.start) {
			out = append(out, r)
		}
	}
	return out
}

// update calls change for each range in s.
func (t *leaseTable) update(s span, change func(*leaseRange)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.ranges {
		if s.contains(t.ranges[i].start) {
			change(&t.ranges[i])
		}
	}
}

// dropEmpty joins ranges without keys to the one before, when there are far more
// leases than the keys need. Nothing is written for it: their leases are no longer
// renewed and expire. It reports whether there were any.
func (t *leaseTable) dropEmpty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := 0
	for _, r := range t.ranges {
		keys += r.keys
	}
	if t.counting > 0 || len(t.ranges) <= 2*(keys/keysPerLease(keys)+1)+spareLeases {
		return false
	}
	kept := t.ranges[:1]
	for _, r := range t.ranges[1:] {
		if r.keys == 0 && !r.blocked && !r.incomplete && !kept[len(kept)-1].blocked {
			continue
		}
		kept = append(kept, r)
	}
	dropped := len(kept) < len(t.ranges)
	t.ranges = slices.Clone(kept)
	return dropped
}

// total returns the number of keys and of leases.
func (t *leaseTable) total() (keys, leases int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.ranges {
		keys += r.keys
	}
	return keys, len(t.ranges)
}

// all is the whole prefix.
var all = span{}
