package replicator

import mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"

// testimony is what the origin says of a witness.
type testimony uint8

const (
	// notAsked: there is no checkpoint to ask about.
	notAsked testimony = iota
	// confirmed: at the checkpoint the origin held what the witness says.
	confirmed
	// denies: it held something else.
	denies
	// forgotten: it is compacted beyond the checkpoint.
	forgotten
	// ahead: it has yet to reach the checkpoint.
	ahead
)

// The reasons for which a mirror is rebuilt: the labels of the resync metric.
const (
	reasonFirst          = "first"
	reasonOriginChanged  = "origin_changed"
	reasonOriginRestored = "origin_restored"
	reasonPeerChanged    = "peer_changed"
	reasonPeerRestored   = "peer_restored"
	reasonUnfinished     = "unfinished"
	reasonTTL            = "ttl_changed"
	reasonLeases         = "leases_lost"
	reasonCompacted      = "compacted"
	reasonRepair         = "repair"
)

// circumstances are what decides on a takeover.
type circumstances struct {
	// owner and state are as they were found on the peer; empty if they were not.
	owner *mirrorv1.Owner
	state *mirrorv1.State
	// own and theirs are the IDs of the stores now.
	own, theirs string
	// restored is the reason for which this process knows that a store was set
	// back, or reasonCompacted if it can't tell any more; empty if none was.
	restored string
	// repair: an operator wants it rebuilt.
	repair bool
	// lost: this process found most of the mirror's keys or leases gone.
	lost bool
	// ttl in seconds is what leases are granted with now.
	ttl int64
	// ranges are on leases of which dead no longer exist.
	ranges, dead int
	// head is the origin's revision.
	head    int64
	witness testimony
}

// plan is what a session makes of what it found.
type plan struct {
	// reason says why the mirror is rebuilt: the label of the resync metric.
	// Empty: it is adopted as it is.
	reason string
	// broken: the origin was restored, swapped or emptied, so that a rebuild may
	// delete much that should stay.
	broken bool
	// from is the origin revision after which the watch begins; 0 is now.
	from int64
}

// choose makes a plan of the circumstances: the mirror is adopted if the stores are
// the same, the checkpoint is one that the origin can go on from, and most leases
// live; ranges of the others are mended.
func choose(c circumstances) plan {
	state := c.state
	switch {
	case state.GetOriginStore() == "" && c.owner.GetOriginStore() != "" && c.owner.GetOriginStore() != c.own:
		return plan{reason: reasonOriginChanged, broken: true}
	case state.GetOriginStore() == "":
		return plan{reason: reasonFirst}
	case state.GetOriginStore() != c.own:
		return plan{reason: reasonOriginChanged, broken: true}
	case c.restored != "":
		// A peer that was set back has the origin to be filled from.
		return plan{reason: c.restored, broken: c.restored == reasonOriginRestored}
	case state.GetPeerStore() != c.theirs:
		return plan{reason: reasonPeerChanged}
	case state.GetCheckpoint() > c.head, c.witness == ahead, c.witness == denies:
		return plan{reason: reasonOriginRestored, broken: true}
	case c.repair:
		return plan{reason: reasonRepair}
	case state.GetPhase() != mirrorv1.Phase_PHASE_COMPLETE || state.GetCheckpoint() == 0:
		return plan{reason: reasonUnfinished}
	case state.GetLeaseTtl() != c.ttl:
		return plan{reason: reasonTTL}
	case c.lost, 2*c.dead > c.ranges:
		return plan{reason: reasonLeases}
	case c.witness == forgotten:
		return plan{reason: reasonCompacted}
	default:
		return plan{from: state.GetCheckpoint()}
	}
}
