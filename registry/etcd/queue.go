package etcd

import (
	"sync"

	"github.com/aether-federation/aether/registry"
)

// queue holds the events of a watch until its reader takes them: only the latest
// of each key, so that a slow reader costs memory by the number of keys and not
// of events. It never blocks the side that puts.
type queue struct {
	// wake has room for one signal that there is something to take.
	wake chan struct{}

	mu     sync.Mutex
	events []registry.Event
	// index of each key's event since the last Synced.
	index map[registry.Key]int
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), index: map[registry.Key]int{}}
}

func (q *queue) put(events ...registry.Event) {
	if len(events) == 0 {
		return
	}
	q.mu.Lock()
	for _, e := range events {
		q.add(e)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // a signal is there already
	}
}

func (q *queue) add(e registry.Event) {
	switch e.Kind {
	case registry.Reset:
		q.events = q.events[:0]
		clear(q.index)
	case registry.Synced:
		clear(q.index)
	default:
		if i, ok := q.index[e.Endpoint.Key]; ok {
			q.events[i] = e
			return
		}
		q.index[e.Endpoint.Key] = len(q.events)
	}
	q.events = append(q.events, e)
}

// take returns what is there, and leaves nothing.
func (q *queue) take() []registry.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	clear(q.index)
	return events
}
