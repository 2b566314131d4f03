package replicator

import (
	"bytes"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// pair is one key as the two sides have it.
type pair struct {
	key string
	// origin and peer say on which sides the key is.
	origin, peer bool
	// value and rev are the origin's: its value and ModRevision or, where the
	// origin lacks the key, the revision of the reading.
	value []byte
	rev   int64
	// peerValue and lease are what the peer has, and wanted where it should be.
	peerValue     []byte
	lease, wanted clientv3.LeaseID
}

// difference returns the operation that makes the peer's key equal to the
// origin's, and whether there is anything to do. Identical puts wake every
// watcher on the peer, so what is right is not written, and a key that is only
// on the wrong lease is moved without its value.
func difference(p pair) (op, bool) {
	switch {
	case !p.origin && !p.peer:
		return op{}, false
	case !p.origin:
		return op{kind: opDelete, rev: p.rev}, true
	case !p.peer || !bytes.Equal(p.value, p.peerValue):
		return op{kind: opPut, value: p.value, rev: p.rev}, true
	case p.lease != p.wanted:
		return op{kind: opAttach, rev: p.rev}, true
	default:
		return op{}, false
	}
}

// units cuts ranges into runs of neighbours of about limit keys, each at least
// one range, and returns the span of each; end is that of the last.
func units(ranges []leaseRange, end string, limit int) []span {
	var out []span
	keys := 0
	for i, r := range ranges {
		if i == 0 || keys+r.keys > limit {
			if n := len(out); n > 0 {
				out[n-1].end = r.start
			}
			out = append(out, span{start: r.start})
			keys = 0
		}
		keys += r.keys
	}
	if n := len(out); n > 0 {
		out[n-1].end = end
	}
	return out
}
