package registrar

import (
	"context"
	"sync"

	"github.com/aether-federation/aether/registry"
)

// subscription is one reader that follows a view. What waits for it is shared
// with all other readers and bounded by the view's buffer; a reader that is
// behind by more is cut off.
type subscription struct {
	view *View
	// cutoff is closed when the reader was cut off.
	cutoff chan struct{}
	notify chan struct{}
	// query and closed are guarded by view.mu.
	query  registry.Query
	closed bool

	mu       sync.Mutex
	snapshot *Snapshot
	batches  [][]change
	waiting  int
	revision registry.Revision
}

// delivery is what a subscription has to tell next: a snapshot, which voids what
// was told before, or changes.
type delivery struct {
	snapshot *Snapshot
	changes  []change
	revision registry.Revision
}

// subscribe returns a subscription that begins with a snapshot of what q asks
// for. The caller closes it.
func (v *View) subscribe(q registry.Query) *subscription {
	s := &subscription{view: v, cutoff: make(chan struct{}), notify: make(chan struct{}, 1)}
	v.mu.Lock()
	defer v.mu.Unlock()
	s.start(q)
	return s
}

// requery changes what s is about: a new snapshot follows.
func (s *subscription) requery(q registry.Query) {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	if s.closed {
		return
	}
	s.view.fan.remove(s)
	s.start(q)
}

// start enters s and gives it a snapshot; view.mu is held.
func (s *subscription) start(q registry.Query) {
	s.query = q
	s.view.fan.add(s)
	snapshot := s.view.snapshot(q)
	s.mu.Lock()
	s.snapshot, s.batches, s.waiting, s.revision = &snapshot, nil, 0, snapshot.Revision
	s.mu.Unlock()
	s.signal()
}

func (s *subscription) close() {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	s.closed = true
	s.view.fan.remove(s)
}

func (s *subscription) signal() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// push hands the changes of one version to s and reports whether they fit. One
// version always fits, however large: its changes are shared.
func (s *subscription) push(batches [][]change, rev registry.Revision) bool {
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

// next waits until there is something to tell. It returns ctx's error when that
// ends and a SlowReader error when s was cut off.
func (s *subscription) next(ctx context.Context) (delivery, error) {
	for {
		select {
		case <-s.cutoff:
			return delivery{}, errCutOff
		default:
		}
		select {
		case <-ctx.Done():
			return delivery{}, ctx.Err()
		case <-s.cutoff:
			return delivery{}, errCutOff
		case <-s.notify:
		}
		if d, ok := s.take(); ok {
			return d, nil
		}
	}
}

var errCutOff = registry.Errorf(registry.SlowReader, "this reader is too slow: more changes wait for it than are kept; watch again")

// take returns the snapshot if one waits, else the changes, if any do.
func (s *subscription) take() (delivery, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := delivery{snapshot: s.snapshot, revision: s.revision}
	if s.snapshot != nil {
		s.snapshot = nil
		d.revision = d.snapshot.Revision
		if len(s.batches) > 0 {
			s.signal()
		}
		return d, true
	}
	d.changes = latest(s.batches, s.waiting)
	s.batches, s.waiting = nil, 0
	return d, len(d.changes) > 0
}

// latest joins batches and keeps the last change of each key, in the order in
// which the last ones were made.
func latest(batches [][]change, n int) []change {
	if len(batches) == 1 {
		return batches[0]
	}
	last := make(map[registry.Key]int, n)
	all := make([]change, 0, n)
	for _, batch := range batches {
		for _, c := range batch {
			last[c.endpoint.Key] = len(all)
			all = append(all, c)
		}
	}
	if len(last) == len(all) {
		return all
	}
	kept := all[:0]
	for i, c := range all {
		if last[c.endpoint.Key] == i {
			kept = append(kept, c)
		}
	}
	return kept
}

// fan finds the subscriptions that a change concerns. It is guarded by the
// view's lock.
type fan struct {
	all       map[*subscription]struct{}
	byService map[string]map[*subscription]struct{}
	scoped    int
}

func newFan() fan {
	return fan{all: map[*subscription]struct{}{}, byService: map[string]map[*subscription]struct{}{}}
}

func (f *fan) len() int { return len(f.all) + f.scoped }

func (f *fan) add(s *subscription) {
	if len(s.query.Services) == 0 {
		f.all[s] = struct{}{}
		return
	}
	f.scoped++
	for _, service := range s.query.Services {
		if f.byService[service] == nil {
			f.byService[service] = map[*subscription]struct{}{}
		}
		f.byService[service][s] = struct{}{}
	}
}

// remove forgets s; it may be gone already.
func (f *fan) remove(s *subscription) {
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
func (f *fan) publish(changes []change, rev registry.Revision) {
	for s := range f.all {
		f.push(s, [][]change{changes}, rev)
	}
	if f.scoped == 0 {
		return
	}
	if len(changes) == 1 { // by far the most versions
		for s := range f.byService[changes[0].endpoint.Service] {
			f.push(s, [][]change{changes}, rev)
		}
		return
	}
	concerned := map[*subscription][][]change{}
	for batch := range byService(changes) {
		for s := range f.byService[batch[0].endpoint.Service] {
			concerned[s] = append(concerned[s], batch)
		}
	}
	for s, batches := range concerned {
		f.push(s, batches, rev)
	}
}

func (f *fan) push(s *subscription, batches [][]change, rev registry.Revision) {
	if !s.push(batches, rev) {
		s.closed = true
		f.remove(s)
		close(s.cutoff)
		s.view.metrics.cutOff.Inc()
	}
}
