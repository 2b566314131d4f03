package config

import (
	"log/slog"
	"sync"
)

// reloaded is what some files hold, loaded anew when they have changed.
type reloaded[T any] struct {
	load func(*digest) (T, error)
	log  *slog.Logger

	mu  sync.Mutex
	is  T
	err string
}

// first loads it for the first time: there is nothing to fall back on.
func (r *reloaded[T]) first() (err error) {
	r.is, err = r.load(&digest{})
	return err
}

// get returns what the files hold now or, while that is no use, what they held
// before.
func (r *reloaded[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := r.load(&digest{})
	if err == nil {
		r.is, r.err = now, ""
	} else if r.err != err.Error() {
		r.err = err.Error()
		r.log.Warn("going on with a file as it was", "error", err)
	}
	return r.is
}
