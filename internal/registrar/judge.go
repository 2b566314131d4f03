package registrar

import "time"

// State is what this registrar knows of a region.
type State string

// The states of a region.
const (
	// Own is the registrar's own region: always served.
	Own State = "own"
	// Syncing: the mirror is not complete. Nothing of it is served, or the last
	// complete view.
	Syncing State = "syncing"
	// Live: complete, served, and proven alive lately.
	Live State = "live"
	// Stale: served as last known; whether the origin lives cannot be told.
	Stale State = "stale"
	// Lapsed: the origin's lease ran out; withdrawn until it is back and
	// complete.
	Lapsed State = "lapsed"
)

// States lists every state.
func States() []State { return []State{Own, Syncing, Live, Stale, Lapsed} }

// Cause says why a region was withdrawn.
type Cause string

// The causes of a withdrawal.
const (
	// LiveGone: the origin's live key is gone, with its lease.
	LiveGone Cause = "live_gone"
	// LeaseGone: etcd no longer has the lease of the live key.
	LeaseGone Cause = "lease_gone"
	// LeaseOverdue: the lease has run out and its keys are still there.
	LeaseOverdue Cause = "lease_overdue"
	// Deleted: most of the region's endpoints were deleted at once, in its own
	// registry. The region itself stays.
	Deleted Cause = "deleted"
)

// Causes lists every cause.
func Causes() []Cause { return []Cause{LiveGone, LeaseGone, LeaseOverdue, Deleted} }

// facts are what is known of one foreign region.
type facts struct {
	// state and shown are how the region stands now.
	state State
	shown bool
	// mirrored: the origin's state key is there; complete: it says so.
	mirrored, complete bool
	// live: the origin's live key is there. lease is its lease, or was.
	live  bool
	lease lease
	// lost is when live or its lease was first seen missing.
	lost time.Time
	// returned is when live came, if the origin has not written its state since:
	// it may then be complete from a former life.
	returned time.Time
}

// doubtful reports whether the state may be of a former life. An origin that
// lost its leases says so as soon as it is back; one that has not by the end of
// a lease has nothing to say.
func (f facts) doubtful(now time.Time) bool {
	return !f.returned.IsZero() && (f.lease.granted == 0 || now.Sub(f.returned) < f.lease.granted)
}

// verdict is what follows for a region.
type verdict struct {
	state State
	// visible: the region is served. hold: what changes is kept for later.
	visible, hold bool
	reason        string
	cause         Cause
}

// judge decides on a foreign region. current says whether what is known of the
// local etcd is proven to be what it holds now.
func judge(f facts, current bool, now time.Time) verdict {
	switch {
	case !current:
		return blind(f)
	case !f.live && !f.mirrored && !f.shown:
		return verdict{state: Syncing, hold: true, reason: "no mirror state: nobody says that this region is complete"}
	case !f.live && !f.complete && f.lost.IsZero():
		return resyncing(f)
	case !f.live || f.lease.gone:
		return lost(f, now)
	case f.lease.overdue(now):
		return verdict{state: Lapsed, hold: true, cause: LeaseOverdue, reason: "the origin's lease has run out"}
	case !f.complete || f.doubtful(now):
		return resyncing(f)
	case f.lease.atRisk(now):
		return unproven(f, now)
	default:
		return verdict{state: Live, visible: true}
	}
}

// blind keeps what is shown: silence proves nothing.
func blind(f facts) verdict {
	v := verdict{state: f.state, visible: f.shown, hold: true, reason: "the local etcd does not answer"}
	if f.shown {
		v.state = Stale
	}
	return v
}

// lost withdraws a region whose lease has ended. One that ended before it can
// have run out was revoked here; its origin may live, and has until then to come
// back.
func lost(f facts, now time.Time) verdict {
	if f.shown && f.lost.Before(f.lease.earliest) && now.Before(f.lease.latest) {
		return verdict{state: Stale, visible: true, hold: true, reason: "the origin's lease was removed here before it ran out"}
	}
	if f.live {
		return verdict{state: Lapsed, hold: true, cause: LeaseGone, reason: "the lease of the origin's live key is gone"}
	}
	return verdict{state: Lapsed, hold: true, cause: LiveGone, reason: "the origin's live key is gone"}
}

// resyncing keeps the last complete view, if there is one.
func resyncing(f facts) verdict {
	v := verdict{state: Syncing, visible: f.shown, hold: true, reason: "the mirror is being filled"}
	if f.shown {
		v.reason = "the mirror is being filled again; the last complete view is served"
	}
	if f.complete {
		v.reason = "the origin is back and has not said yet that its mirror is complete"
	}
	return v
}

// unproven holds a region as it is until its lease is seen renewed or ended.
func unproven(f facts, now time.Time) verdict {
	v := verdict{state: Live, visible: f.shown, hold: true, reason: "the origin's lease has not been renewed lately"}
	switch {
	case !f.shown:
		v.state = Syncing
		if f.state == Lapsed {
			v.state = Lapsed
		}
	case !now.Before(f.lease.latest):
		v.state = Stale
	}
	if !f.lease.known() {
		v.reason = "the origin's lease has not been read yet"
	}
	return v
}
