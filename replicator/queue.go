package replicator

import (
	"container/heap"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// opKind is what an operation does to its key on the peer.
type opKind uint8

const (
	// opPut writes the value, on the lease of the key's range.
	opPut opKind = iota
	// opDelete removes the key.
	opDelete
	// opAttach moves the key to the lease of its range and leaves its value.
	opAttach
)

// op brings one key on the peer to what the origin had at rev.
type op struct {
	kind  opKind
	value []byte
	rev   int64
	// settled, if set, is done once the operation is acknowledged or a newer one
	// took its place.
	settled *sync.WaitGroup
}

func (o op) settle() {
	if o.settled != nil {
		o.settled.Done()
	}
}

// entry is one key that the peer has yet to acknowledge.
type entry struct {
	key string
	op  op
	// low is the lowest origin revision that op stands for: the checkpoint stays
	// below it.
	low int64
	// next replaces op once its outcome, while in flight, is known.
	next     *op
	nextLow  int64
	inFlight bool
	// at is when low was pushed.
	at, nextAt time.Time
	index      int // in the heap of lows
}

func (e *entry) size() int { return len(e.key) + len(e.op.value) + entryOverhead }

// entryOverhead is about what one operation adds to a request beside key and
// value: lease, tags and lengths.
const entryOverhead = 32

// queue holds, for each key that the peer has yet to acknowledge, the latest
// operation, so its size is bounded by the number of keys and not by that of
// changes. A key is in at most one batch in flight, which keeps the order per
// key. It is safe for concurrent use.
type queue struct {
	mu      sync.Mutex
	entries map[string]*entry
	lows    lowHeap
	puts    fifo
	deletes fifo
	// held entries wait for their key's range to be unblocked.
	held   []*entry
	paused bool
	closed bool
	bytes  int
	// position is the origin revision up to which every event was pushed.
	position int64
	// changed is closed at the next change, and then replaced, if watched.
	changed chan struct{}
	watched bool
}

func newQueue() *queue {
	return &queue{entries: map[string]*entry{}, changed: make(chan struct{})}
}

// push enters an operation that stands for the origin's revisions from low on.
// The newest by rev wins; one that comes with the revision of the last is taken
// when that is in flight, because its lease may have changed since.
func (q *queue) push(key string, o op, low int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.enter(key, o, low)
	q.signal()
}

// keyOp is an operation and its key.
type keyOp struct {
	key string
	op  op
}

// pushRead enters what a reading of both sides found to do, in one piece, so that
// keys of one lease travel together. It holds no checkpoint back.
func (q *queue) pushRead(ops []keyOp) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, o := range ops {
		q.enter(o.key, o.op, q.position+1)
	}
	q.signal()
}

func (q *queue) enter(key string, o op, low int64) {
	if q.closed {
		o.settle()
		return
	}
	e := q.entries[key]
	switch {
	case e == nil:
		e = &entry{key: key, op: o, low: low, at: time.Now()}
		q.entries[key] = e
		q.bytes += e.size()
		heap.Push(&q.lows, e)
		q.ready(e)
	case e.inFlight:
		q.pushNext(e, o, low)
	case superseded(e.op, o):
		o.settle()
	default:
		q.bytes -= e.size()
		e.op.settle()
		e.op = o
		q.bytes += e.size()
	}
}

func (q *queue) pushNext(e *entry, o op, low int64) {
	if e.next == nil {
		if o.rev < e.op.rev {
			o.settle()
			return
		}
		e.next, e.nextLow, e.nextAt = &o, low, time.Now()
		return
	}
	if superseded(*e.next, o) {
		o.settle()
		return
	}
	e.next.settle()
	e.next = &o
}

// superseded reports whether o has nothing to add to the waiting operation was.
func superseded(was, o op) bool {
	if o.kind == opAttach {
		return was.rev >= o.rev
	}
	return was.rev > o.rev
}

func (q *queue) ready(e *entry) {
	if e.op.kind == opDelete {
		q.deletes.push(e)
	} else {
		q.puts.push(e)
	}
}

// limits bound what take returns.
type limits struct {
	// ops is the most, and from enough on a batch ends with its lease.
	ops, enough int
	bytes       int
	deletesOnly bool
}

// take moves up to that many ready operations into flight, deletes first. where
// tells the lease that a key is on and whether it is blocked; those keys are put
// aside until release.
func (q *queue) take(l limits, where func(key string) (lease clientv3.LeaseID, blocked bool)) []*entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.paused || q.closed {
		return nil
	}
	b := batch{limits: l}
	q.fill(&b, &q.deletes, true, where)
	if !l.deletesOnly {
		q.fill(&b, &q.puts, false, where)
	}
	return b.entries
}

// batch is what take has gathered.
type batch struct {
	limits
	entries []*entry
	size    int
	lease   clientv3.LeaseID
}

// full reports whether e does not go into the batch any more.
func (b *batch) full(e *entry, lease clientv3.LeaseID) bool {
	n := len(b.entries)
	return n >= b.ops || n > 0 && b.size+e.size() > b.bytes || n >= b.enough && lease != b.lease
}

func (q *queue) fill(b *batch, from *fifo, deletes bool, where func(string) (clientv3.LeaseID, bool)) {
	for e := from.peek(); e != nil; e = from.peek() {
		if e.inFlight || q.entries[e.key] != e {
			from.pop() // taken through the other list, after its kind had changed
			continue
		}
		if (e.op.kind == opDelete) != deletes {
			from.pop()
			q.ready(e)
			continue
		}
		lease, blocked := where(e.key)
		if blocked {
			from.pop()
			q.held = append(q.held, e)
			continue
		}
		if b.full(e, lease) {
			return
		}
		from.pop()
		e.inFlight = true
		b.entries, b.size, b.lease = append(b.entries, e), b.size+e.size(), lease
	}
}

// release makes what was put aside ready again.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.held {
		q.ready(e)
	}
	q.held = nil
	q.signal()
}

// acknowledge removes a batch whose operations the peer has applied; what was
// pushed for the same keys meanwhile becomes ready.
func (q *queue) acknowledge(batch []*entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return // close has settled what was in flight, too
	}
	for _, e := range batch {
		q.finish(e)
	}
	q.signal()
}

func (q *queue) finish(e *entry) {
	q.bytes -= e.size()
	e.op.settle()
	e.inFlight = false
	if e.next == nil {
		heap.Remove(&q.lows, e.index)
		delete(q.entries, e.key)
		return
	}
	e.op, e.low, e.at, e.next = *e.next, e.nextLow, e.nextAt, nil
	q.bytes += e.size()
	heap.Fix(&q.lows, e.index)
	q.ready(e)
}

// retry makes a batch ready again that the peer has surely not applied.
func (q *queue) retry(batch []*entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	for _, e := range batch {
		e.inFlight = false
		if e.next != nil {
			q.bytes -= e.size()
			e.op.settle()
			e.op, e.next = *e.next, nil
			q.bytes += e.size()
		}
		q.ready(e)
	}
	q.signal()
}

// replace exchanges an operation in flight, surely not applied, for another of
// the same revision, unless a newer one waits.
func (q *queue) replace(e *entry, kind opKind) {
	q.mu.Lock()
	if e.next == nil {
		q.bytes -= len(e.op.value)
		e.op.kind, e.op.value = kind, nil
	}
	q.mu.Unlock()
	q.retry([]*entry{e})
}

// drop removes, while paused, the waiting entries for which match reports true.
func (q *queue) drop(match func(key string, o op) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, e := range q.entries {
		if !e.inFlight && match(key, e.op) {
			q.bytes -= e.size()
			e.op.settle()
			heap.Remove(&q.lows, e.index)
			delete(q.entries, key)
		}
	}
	q.signal()
}

// waiting returns a copy of all operations that are not in flight, by key.
func (q *queue) waiting() map[string]op {
	q.mu.Lock()
	defer q.mu.Unlock()
	ops := make(map[string]op, len(q.entries))
	for key, e := range q.entries {
		if !e.inFlight {
			ops[key] = e.op
		}
	}
	return ops
}

// has reports whether an operation on key waits or is in flight.
func (q *queue) has(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.entries[key] != nil
}

func (q *queue) pause(on bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.paused = on
	q.signal()
}

// close settles everything and refuses what comes later.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.entries {
		e.op.settle()
		if e.next != nil {
			e.next.settle()
		}
	}
	q.entries, q.lows, q.held, q.closed = nil, nil, nil, true
	q.puts, q.deletes = fifo{}, fifo{}
	q.signal()
}

// advance states that every event up to rev was pushed.
func (q *queue) advance(rev int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rev > q.position {
		q.position = rev
		q.signal()
	}
}

// depth is what waits: entries, bytes, and the revisions they reach back to.
type depth struct {
	// entries and bytes are all that is not acknowledged; ready is how many
	// entries could be taken.
	entries, bytes, ready int
	// checkpoint is the highest origin revision below which, itself included,
	// everything is acknowledged.
	checkpoint, position int64
	// oldest is when the operation that holds the checkpoint back was pushed.
	oldest time.Time
}

func (q *queue) depth() depth {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := depth{
		entries: len(q.entries), bytes: q.bytes,
		ready:      q.puts.len() + q.deletes.len(),
		checkpoint: q.position, position: q.position,
	}
	if len(q.lows) > 0 {
		d.checkpoint = min(d.checkpoint, q.lows[0].low-1)
		d.oldest = q.lows[0].at
	}
	return d
}

// changes returns a channel that is closed at the next change. Take it before
// looking at what is waited for.
func (q *queue) changes() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watched = true
	return q.changed
}

// nudge wakes those who wait for a change although nothing here has changed.
func (q *queue) nudge() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	if q.watched {
		close(q.changed)
		q.changed, q.watched = make(chan struct{}), false
	}
}

// lowHeap orders entries by low, the least first.
type lowHeap []*entry

func (h lowHeap) Len() int           { return len(h) }
func (h lowHeap) Less(i, j int) bool { return h[i].low < h[j].low }
func (h lowHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *lowHeap) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *lowHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}

// fifo is a queue of entries on a slice whose spent front is reclaimed.
type fifo struct {
	items []*entry
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

func (f *fifo) push(e *entry) { f.items = append(f.items, e) }

func (f *fifo) peek() *entry {
	if f.len() == 0 {
		return nil
	}
	return f.items[f.head]
}

func (f *fifo) pop() {
	f.items[f.head] = nil
	f.head++
	switch {
	case f.head == len(f.items):
		f.items, f.head = f.items[:0], 0
	case f.head > 1024 && f.head*2 > len(f.items):
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
}
