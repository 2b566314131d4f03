// Package replicator mirrors one region's subtree of keys, verbatim, from its
// etcd into the etcds of other regions.
//
// Each peer has a loop of its own, so that a slow or dead peer delays only
// itself. A loop is a row of sessions. A session takes the fence on the peer,
// finds out what the mirror there is worth, makes it equal to the origin, and
// follows the origin's changes until something unexpected happens; then it ends
// and the next one begins with the same steps. So a lost connection, a request
// of unknown outcome, a new leader and a restart are one case, handled by one
// path:
//
//	identify  which stores are these, and may the one mirror the other
//	takeover  read owner and state, prove leadership, take the fence
//	adopt     leases alive and checkpoint valid: replay what changed since, per
//	          key, compared with the peer
//	rebuild   otherwise: compare both sides range by range, write what differs
//	follow    watch the origin, send batches, renew leases, move the checkpoint
//
// Mirrored keys are on leases of the peer that only the origin keeps alive: a
// dead region's keys leave by themselves. Nothing is revoked when a replicator
// stops, so that a successor finds everything in place.
//
// The decisions are pure: lease placement (leasetable.go), the comparison of two
// sides (plan.go), the queue of latest operations (queue.go), the sending window
// (window.go). The rest is the I/O around them.
package replicator
