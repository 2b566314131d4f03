package replicator

import "time"

const (
	windowStart = 16
	windowMin   = 2
	windowMax   = 64
	// windowSlack is how much longer than the shortest seen a batch may take
	// before the window shrinks: what an unrelated request on the peer then waits.
	windowSlack = 30 * time.Millisecond
	// windowMemory is for how long the shortest latency is believed.
	windowMemory = 10 * time.Second
)

// window decides how many batches may be in flight. It grows while the peer
// answers about as fast as it ever did and shrinks when answers take longer,
// because then they queue there, before other requests to the same etcd. It is a
// value without a clock; the zero value is ready.
type window struct {
	size float64
	// steady is set by the first shrinking: until then each answer adds one.
	steady bool
	// base is the shortest latency of the last one to two windowMemory.
	base, fresh time.Duration
	since       time.Time
	shrunk      time.Time
}

func (w *window) limit() int {
	if w.size == 0 {
		return windowStart
	}
	return int(w.size)
}

// observe enters the latency of a batch that was acknowledged at now; busy says
// whether the window was what limited the sender.
func (w *window) observe(now time.Time, latency time.Duration, busy bool) {
	if w.size == 0 {
		w.size = windowStart
	}
	w.remember(now, latency)
	switch {
	case latency > w.base+windowSlack:
		if now.Sub(w.shrunk) > latency {
			w.size = max(windowMin, w.size*0.85)
			w.shrunk, w.steady = now, true
		}
	case !busy:
	case w.steady:
		w.size = min(windowMax, w.size+1/w.size)
	default:
		w.size = min(windowMax, w.size+1)
	}
}

func (w *window) remember(now time.Time, latency time.Duration) {
	if w.fresh == 0 || latency < w.fresh {
		w.fresh = latency
	}
	if w.base == 0 || latency < w.base {
		w.base = latency
	}
	if now.Sub(w.since) > windowMemory {
		if !w.since.IsZero() {
			w.base = w.fresh
		}
		w.fresh, w.since = latency, now
	}
}
