package registrar

import "time"

const (
	// resolution of an etcd lease's time to live, which is told in whole
	// seconds rounded towards zero.
	resolution = time.Second
	// riskMargin before a lease can run out, its region's changes are held
	// back: the leases of one mirror run out within the same second, one by
	// one, and the deletes that follow must not be taken for the origin's.
	riskMargin = 2 * time.Second
	// proofAge is how old a reading may be to prove that a lease has run out.
	proofAge = 2 * time.Second
)

// Reading is what etcd said of a lease, and when.
type Reading struct {
	Asked, Answered time.Time
	// TTL is what is left, negative when the lease is gone.
	TTL, Granted time.Duration
}

// lease is what is known of the lease that proves an origin alive. The zero
// value but for the id has not been read.
type lease struct {
	id      int64
	granted time.Duration
	// asked and answered enclose the last reading.
	asked, answered time.Time
	// The lease runs out between earliest and latest unless it is renewed.
	earliest, latest time.Time
	// gone: etcd does not have it any more.
	gone bool
}

// moved returns what is known once the origin has put its live key on the lease
// with this id. The former lease's bounds hold until the new one is read.
func (l lease) moved(id int64) lease {
	if id == l.id {
		return l
	}
	return lease{id: id, granted: l.granted, earliest: l.earliest, latest: l.latest}
}

// read returns what is known after one more reading.
func (l lease) read(r Reading) lease {
	if r.TTL < 0 {
		l.gone, l.asked, l.answered = true, r.Asked, r.Answered
		return l
	}
	next := lease{
		id:       l.id,
		granted:  r.Granted,
		asked:    r.Asked,
		answered: r.Answered,
		earliest: r.Asked.Add(r.TTL),
		latest:   r.Answered.Add(r.TTL + resolution),
	}
	if r.TTL == 0 {
		next.earliest = r.Asked.Add(-resolution)
	}
	if !l.answered.IsZero() && l.unrenewed(r) {
		next.earliest = later(next.earliest, l.earliest)
		next.latest = earlier(next.latest, l.latest)
	}
	return next
}

// unrenewed reports whether r proves that there was no renewal since the last
// reading: after one, at least granted less the time between would be left.
func (l lease) unrenewed(r Reading) bool {
	return r.TTL+resolution < r.Granted-r.Answered.Sub(l.asked)
}

// known reports whether there has been a reading that bounds the lease's end.
func (l lease) known() bool { return !l.latest.IsZero() }

// renewed returns the earliest moment at which the last renewal can have been.
func (l lease) renewed() time.Time { return l.earliest.Add(-l.granted) }

// overdue reports whether a late enough reading proves that the lease has run
// out although its keys are still there.
func (l lease) overdue(now time.Time) bool {
	return l.known() && !now.Before(l.latest) && now.Sub(l.answered) <= proofAge
}

// atRisk reports whether the lease may be about to run out.
func (l lease) atRisk(now time.Time) bool {
	margin := min(riskMargin, l.granted/3)
	return !l.known() || now.After(l.earliest.Add(-margin))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
