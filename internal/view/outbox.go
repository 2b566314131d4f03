package view

import (
	"context"
	"time"
)

const (
	// holdOff is how long after a change the next ones are waited for, so that a
	// burst is told at once, and maxHoldOff how long a burst may put off the
	// first of them. A change that comes alone is told at once.
	holdOff    = 10 * time.Millisecond
	maxHoldOff = 50 * time.Millisecond
)

// outbox holds versions that subscribers have not been told yet.
type outbox struct {
	batches [][]Change
	waiting int
	// first and last are when the first and the last of batches were added.
	first, last time.Time
	// flushed is when subscribers were last told, calm whether that was long
	// enough ago for the first batch not to wait.
	flushed time.Time
	calm    bool
	// filled is signalled when there is something to wait for.
	filled chan struct{}
}

func newOutbox() outbox { return outbox{filled: make(chan struct{}, 1)} }

// add puts the changes of one version in.
func (o *outbox) add(changes []Change, now time.Time) {
	if len(o.batches) == 0 {
		o.first = now
		o.calm = now.Sub(o.flushed) >= holdOff
		select {
		case o.filled <- struct{}{}:
		default:
		}
	}
	o.last = now
	o.batches = append(o.batches, changes)
	o.waiting += len(changes)
}

// due is when what waits has to be told.
func (o *outbox) due() time.Time {
	calm, latest := o.last.Add(holdOff), o.first.Add(maxHoldOff)
	if calm.Before(latest) {
		return calm
	}
	return latest
}

// flush tells the subscribers what waits; v.mu is held.
func (v *View) flush(now time.Time) {
	o := &v.outbox
	if len(o.batches) == 0 {
		return
	}
	changes := Latest(o.batches, o.waiting)
	if len(o.batches) > 1 {
		SortByService(changes)
	}
	o.batches, o.waiting, o.calm, o.flushed = nil, 0, false, now
	v.encodings.drop(gone(changes, v.index))
	v.fan.publish(changes, v.revision())
}

// gone returns the services among changes that have no endpoint left.
func gone(changes []Change, ix Index) []string {
	var services []string
	for batch := range ByService(changes) {
		if service := batch[0].Endpoint.Service; len(ix[service]) == 0 {
			services = append(services, service)
		}
	}
	return services
}

// Run tells subscribers what is published, until ctx ends; it returns ctx's error.
func (v *View) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-v.outbox.filled:
		case <-timer.C:
		}
		if wait, waiting := v.flushDue(time.Now()); waiting {
			timer.Reset(wait)
		}
	}
}

// flushDue flushes if it is time to and otherwise returns for how long to wait.
func (v *View) flushDue(now time.Time) (wait time.Duration, waiting bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.outbox.batches) == 0 {
		return 0, false
	}
	if wait := v.outbox.due().Sub(now); wait > 0 {
		return wait, true
	}
	v.flush(now)
	return 0, false
}
