package view

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/aether-federation/aether/registry"
)

// Subscription is one reader that follows a view. What waits for it is shared
// with all other readers and bounded by the view's buffer; a reader that is
// behind by more is cut off.
type Subscription struct {
	view *View
	// cutoff is closed when the reader was cut off.
	cutoff chan struct{}
	notify chan struct{}
	// query and closed are guarded by view.mu.
	query  registry.Query
	closed bool

	mu sync.Mutex
	// snapshot waits to be told: of all services, or only of replaced.
	snapshot *Snapshot
	partial  bool
	replaced []string
	batches  [][]Change
	waiting  int
	revision registry.Revision
	// marked: the reader wants to be told once it has all that waits.
	marked bool
}

// Delivery is what a subscription has to tell next: a snapshot, which voids what
// was told before, if it is partial of the replaced services alone, or changes.
type Delivery struct {
	snapshot *Snapshot
	partial  bool
	replaced []string
	changes  []Change
	revision registry.Revision
	// marked: with this the reader has all that there was when it asked.
	marked bool
}

// Subscribe returns a subscription that begins with a snapshot of what q asks
// for or, when the reader holds something, of what differs from it. The caller
// closes it.
func (v *View) Subscribe(q registry.Query, h *Held) *Subscription {
	s := &Subscription{view: v, cutoff: make(chan struct{}), notify: make(chan struct{}, 1)}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.flush(time.Now())
	s.start(q, h)
	return s
}

// Requery changes what s is about: a new snapshot follows or, if extend is set,
// one of the services that were added. If that is none, because q is what s is
// about, s is told once it has all that there is, which proves to it that it is
// in step.
func (s *Subscription) Requery(q registry.Query, extend bool) {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	s.view.flush(time.Now())
	if s.closed {
		return
	}
	if extend && slices.Equal(q.Services, s.query.Services) {
		s.mark()
		return
	}
	s.view.fan.remove(s)
	if extend && s.extend(q) {
		return
	}
	s.start(q, nil)
}

// mark has s told once it has all that waits.
func (s *Subscription) mark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marked = true
	s.signal()
}

// start enters s and gives it a snapshot; view.mu is held.
func (s *Subscription) start(q registry.Query, h *Held) {
	s.enter(q)
	var replaced []string
	var snapshot Snapshot
	if h != nil {
		replaced = s.view.differing(q, h)
		snapshot = s.view.snapshotOf(replaced)
	} else {
		snapshot = s.view.snapshot(q)
	}
	s.mu.Lock()
	s.snapshot, s.partial, s.replaced = &snapshot, h != nil, replaced
	s.batches, s.waiting, s.revision = nil, 0, snapshot.Revision
	s.mu.Unlock()
	s.signal()
}

// enter makes s one of the view's subscribers, of what comes from now on. The
// outbox is empty: what is in it is in a snapshot too.
func (s *Subscription) enter(q registry.Query) {
	s.query = q
	s.view.fan.add(s)
}

// extend keeps what s was told, and what waits for it, of services that q asks
// for too, and adds a snapshot of the others. It reports whether it could: view.mu
// is held.
func (s *Subscription) extend(q registry.Query) bool {
	s.mu.Lock()
	total := s.snapshot != nil && !s.partial
	s.mu.Unlock()
	if total || len(q.Services) == 0 || len(s.query.Services) == 0 {
		return false
	}
	kept := map[string]bool{}
	for _, service := range s.query.Services {
		kept[service] = true
	}
	s.enter(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, service := range s.replaced {
		delete(kept, service) // not told yet
	}
	s.replaced = nil
	for _, service := range q.Services {
		if !kept[service] {
			s.replaced = append(s.replaced, service)
		}
	}
	s.keep(func(service string) bool { return kept[service] && q.Wants(service) })
	snapshot := s.view.snapshotOf(s.replaced)
	s.snapshot, s.partial, s.revision = &snapshot, true, snapshot.Revision
	s.signal()
	return true
}

// keep drops what waits of services that are not wanted; s.mu is held.
func (s *Subscription) keep(wanted func(service string) bool) {
	s.batches = slices.DeleteFunc(s.batches, func(batch []Change) bool { return !wanted(batch[0].Endpoint.Service) })
	s.waiting = 0
	for _, batch := range s.batches {
		s.waiting += len(batch)
	}
}

// Close ends s. It may be called once s was cut off.
func (s *Subscription) Close() {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	s.closed = true
	s.view.fan.remove(s)
}

// Waiting is signalled when Take may have something.
func (s *Subscription) Waiting() <-chan struct{} { return s.notify }

// CutOff is closed when s was cut off.
func (s *Subscription) CutOff() <-chan struct{} { return s.cutoff }

func (s *Subscription) signal() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// push hands the changes of one version to s and reports whether they fit. One
// version always fits, however large: its changes are shared.
func (s *Subscription) push(batches [][]Change, rev registry.Revision) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, batch := range batches {
		n += len(batch)
	}
	if s.waiting > 0 && s.waiting+n > s.view.buffer {
		s.snapshot, s.batches = nil, nil
		return false
	}
	s.batches = append(s.batches, batches...)
	s.waiting += n
	s.revision = rev
	s.signal()
	return true
}

// Next waits until there is something to tell. It returns ctx's error when that
// ends and a SlowReader error when s was cut off.
func (s *Subscription) Next(ctx context.Context) (Delivery, error) {
	for {
		select {
		case <-s.cutoff:
			return Delivery{}, ErrCutOff
		default:
		}
		select {
		case <-ctx.Done():
			return Delivery{}, ctx.Err()
		case <-s.cutoff:
			return Delivery{}, ErrCutOff
		case <-s.notify:
		}
		if d, ok := s.Take(); ok {
			return d, nil
		}
	}
}

// ErrCutOff tells a reader that it was cut off.
var ErrCutOff = registry.Errorf(registry.SlowReader, "this reader is too slow: more changes wait for it than are kept; watch again")

// Take returns the snapshot if one waits, else the changes, if any do.
func (s *Subscription) Take() (Delivery, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := Delivery{snapshot: s.snapshot, partial: s.partial, replaced: s.replaced, revision: s.revision}
	if s.snapshot != nil {
		s.snapshot, s.replaced = nil, nil
		d.revision = d.snapshot.Revision
		if len(s.batches) > 0 || s.marked {
			s.signal()
		}
		return d, true
	}
	d.changes, d.marked = Latest(s.batches, s.waiting), s.marked
	s.batches, s.waiting, s.marked = nil, 0, false
	return d, len(d.changes) > 0 || d.marked
}

// fan finds the subscriptions that a change concerns. It is guarded by the
// view's lock.
type fan struct {
	all       map[*Subscription]struct{}
	byService map[string]map[*Subscription]struct{}
	scoped    int
}

func newFan() fan {
	return fan{all: map[*Subscription]struct{}{}, byService: map[string]map[*Subscription]struct{}{}}
}

func (f *fan) len() int { return len(f.all) + f.scoped }

func (f *fan) add(s *Subscription) {
	if len(s.query.Services) == 0 {
		f.all[s] = struct{}{}
		return
	}
	f.scoped++
	for _, service := range s.query.Services {
		if f.byService[service] == nil {
			f.byService[service] = map[*Subscription]struct{}{}
		}
		f.byService[service][s] = struct{}{}
	}
}

// remove forgets s; it may be gone already.
func (f *fan) remove(s *Subscription) {
	if _, found := f.all[s]; found {
		delete(f.all, s)
		return
	}
	found := false
	for _, service := range s.query.Services {
		subscribers := f.byService[service]
		if _, here := subscribers[s]; here {
			found = true
			delete(subscribers, s)
		}
		if len(subscribers) == 0 {
			delete(f.byService, service)
		}
	}
	if found {
		f.scoped--
	}
}

// publish hands the changes of one version to those whom they concern, whole,
// and cuts off who is too far behind.
func (f *fan) publish(changes []Change, rev registry.Revision) {
	for s := range f.all {
		f.push(s, [][]Change{changes}, rev)
	}
	if f.scoped == 0 {
		return
	}
	if len(changes) == 1 { // by far the most versions
		for s := range f.byService[changes[0].Endpoint.Service] {
			f.push(s, [][]Change{changes}, rev)
		}
		return
	}
	concerned := map[*Subscription][][]Change{}
	for batch := range ByService(changes) {
		for s := range f.byService[batch[0].Endpoint.Service] {
			concerned[s] = append(concerned[s], batch)
		}
	}
	for s, batches := range concerned {
		f.push(s, batches, rev)
	}
}

func (f *fan) push(s *Subscription, batches [][]Change, rev registry.Revision) {
	if !s.push(batches, rev) {
		s.closed = true
		f.remove(s)
		close(s.cutoff)
		s.view.cutOff()
	}
}
