package replicator

import (
	"context"
	"sync"
	"time"
)

// doubts are keys whose delete on the peer was seen and may have been anybody's:
// before this session, while the key's range was being filled, or while an own
// delete of it was under way. They are compared once that is over.
type doubts struct {
	mu sync.Mutex
	// keys and the peer's revision of their last delete, 0 when it does not matter.
	keys map[string]int64
	// everything: deletes may have been missed.
	everything bool
	checking   bool
	more       chan struct{}
}

func newDoubts() *doubts { return &doubts{keys: map[string]int64{}, more: make(chan struct{}, 1)} }

func (d *doubts) add(key string, rev int64) {
	d.mu.Lock()
	d.keys[key] = rev
	d.mu.Unlock()
	d.wake()
}

func (d *doubts) addAll() {
	d.mu.Lock()
	d.everything = true
	d.mu.Unlock()
	d.wake()
}

func (d *doubts) wake() {
	select {
	case d.more <- struct{}{}:
	default:
	}
}

// none reports whether everything that was added has been compared.
func (d *doubts) none() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.keys) == 0 && !d.everything && !d.checking
}

// take waits for doubts and returns all that there are. They count as being
// checked until done is called.
func (d *doubts) take(ctx context.Context) (keys map[string]int64, everything bool, err error) {
	select {
	case <-d.more:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	keys, everything = d.keys, d.everything
	d.keys, d.everything, d.checking = map[string]int64{}, false, true
	return keys, everything, nil
}

func (d *doubts) done() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.checking = false
}

// doubtPause is between two comparisons of what is in doubt.
const doubtPause = 200 * time.Millisecond

// dispelAlways compares what is in doubt, and has what differs mended.
func (s *session) dispelAlways(ctx context.Context) error {
	for {
		keys, everything, err := s.doubts.take(ctx)
		if err != nil {
			return err
		}
		if err := s.dispel(ctx, keys, everything); err != nil {
			return err
		}
		s.doubts.done()
		if !sleep(ctx, doubtPause) {
			return ctx.Err()
		}
	}
}

func (s *session) dispel(ctx context.Context, keys map[string]int64, everything bool) error {
	head, err := s.head(ctx)
	if err != nil {
		return err
	}
	if err := s.reach(ctx, head, true); err != nil {
		return err
	}
	if everything {
		s.log.Info("the peer has compacted its history since the mirror was recorded, auditing")
		return s.auditAll(ctx)
	}
	var suspects []string
	for key, rev := range keys {
		if !s.deleted.has(rev) {
			suspects = append(suspects, key)
		}
	}
	return s.mendSuspects(ctx, suspects)
}
