package xds

import "sync"

// watcher is somebody who is woken when a service that it follows changes.
type watcher struct {
	woken chan struct{}

	mu sync.Mutex
	// changed services; true for those whose ports did too, or that are new, so
	// that there may be other names.
	changed map[string]bool
}

func newWatcher() *watcher {
	return &watcher{woken: make(chan struct{}, 1), changed: map[string]bool{}}
}

// wake tells that a service has changed. It does not block.
func (w *watcher) wake(service string, names bool) {
	w.mu.Lock()
	w.changed[service] = w.changed[service] || names
	w.mu.Unlock()
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// drain returns what has changed since it did last.
func (w *watcher) drain() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.changed) == 0 {
		return nil
	}
	changed := w.changed
	w.changed = map[string]bool{}
	return changed
}
