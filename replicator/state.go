package replicator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

// found is what a session finds on the peer before it takes the fence.
type found struct {
	owner    *mirrorv1.Owner
	ownerRev int64
	state    *mirrorv1.State
	live     *mirrorv1.Live
	// liveLease is the lease of the live key, 0 when there is no such key.
	liveLease clientv3.LeaseID
	revision  int64
}

// read returns the mirror's owner, state and live keys on the peer.
func (m *mirror) read(ctx context.Context) (found, error) {
	return readMirror(ctx, m.client, m.origin, func(key string, err error) {
		m.log.Warn("mirror's record does not parse, rebuilding", "key", key, "error", err)
	})
}

// readMirror returns the owner, state and live keys of origin's mirror, as of one
// revision. A value that does not parse counts as absent; unparsable, if set, is
// told.
func readMirror(ctx context.Context, c *clientv3.Client, origin string, unparsable func(key string, err error)) (found, error) {
	resp, err := c.Txn(ctx).Then(
		clientv3.OpGet(keyspace.OwnerKey(origin)),
		clientv3.OpGet(keyspace.StateKey(origin)),
		clientv3.OpGet(keyspace.LiveKey(origin)),
	).Commit()
	if err != nil {
		return found{}, fmt.Errorf("read mirror's state: %w", err)
	}
	f := found{owner: &mirrorv1.Owner{}, state: &mirrorv1.State{}, live: &mirrorv1.Live{}, revision: resp.Header.Revision}
	for i, message := range []proto.Message{f.owner, f.state, f.live} {
		kvs := resp.Responses[i].GetResponseRange().Kvs
		if len(kvs) == 0 {
			continue
		}
		if err := proto.Unmarshal(kvs[0].Value, message); err != nil {
			proto.Reset(message)
			if unparsable != nil {
				unparsable(string(kvs[0].Key), err)
			}
		}
		switch i {
		case 0:
			f.ownerRev = kvs[0].ModRevision
		case 2:
			f.liveLease = clientv3.LeaseID(kvs[0].Lease)
		}
	}
	return f, nil
}

// recorder writes a session's state to the peer, under its fence, one write at a
// time.
type recorder struct {
	*mirror
	fence fence
	table *leaseTable
	// seen is the highest revision of the peer that the session has seen.
	seen *atomic.Int64
	// watched is that up to which it knows of the deletes of others.
	watched *atomic.Int64
	// written are the last values that were, or are about to be, written.
	written sums
	mu      sync.Mutex
	phase   mirrorv1.Phase
	// checkpoint and witness as last told; 0 while syncing.
	checkpoint int64
	witness    *mirrorv1.Witness
}

// write stores the state as it is now.
func (r *recorder) write(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, err := proto.Marshal(r.state())
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.callTimeout())
	defer cancel()
	if err := r.peerWentOn(ctx); err != nil {
		return err
	}
	r.written.add(value)
	resp, err := r.client.Txn(ctx).If(r.fence.compare()).
		Then(clientv3.OpPut(keyspace.StateKey(r.origin), string(value))).Commit()
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("write state: %w", errFull)
	case err != nil:
		return fmt.Errorf("write state: %w", err)
	case !resp.Succeeded:
		return fmt.Errorf("write state: %w", ErrFenced)
	}
	return nil
}

// state returns the state as it is now; r.mu is held. A range that waits to be mended
// is incomplete: a successor looks at it.
func (r *recorder) state() *mirrorv1.State {
	s := &mirrorv1.State{
		Phase: r.phase, OriginStore: r.own.id, PeerStore: r.theirs.id,
		Checkpoint: r.checkpoint, Witness: r.witness, LeaseTtl: r.ttlSeconds(), Updated: timestamppb.Now(),
		PeerRevision: r.watched.Load(), // before the table is read: what it knows of is blocked there
	}
	for _, l := range r.table.within(all) {
		s.Leases = append(s.Leases, &mirrorv1.Lease{Id: int64(l.id), Start: l.start, Incomplete: l.incomplete || l.blocked})
	}
	return s
}

// peerWentOn returns an error when the peer was set back since the session saw it
// last: what is true of the mirror that was there is not of the one that is.
func (r *recorder) peerWentOn(ctx context.Context) error {
	seen := r.seen.Load()
	got, err := r.client.Get(ctx, keyspace.OwnerKey(r.origin), clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("read peer's revision: %w", err)
	}
	return setBack(seen, got.Header.Revision)
}

// setBack returns an error when the peer is at a revision below one seen before.
func setBack(seen, now int64) error {
	if now >= seen {
		return nil
	}
	return fmt.Errorf("peer's etcd is at revision %d and was at %d: %w", now, seen, errBroken)
}

// syncing states that the mirror may be a part until complete is called.
func (r *recorder) syncing(ctx context.Context) error {
	r.set(mirrorv1.Phase_PHASE_SYNCING, 0, nil)
	return r.write(ctx)
}

// complete states that the mirror equals its origin up to the checkpoint.
func (r *recorder) complete(ctx context.Context, checkpoint int64, witness *mirrorv1.Witness) error {
	r.set(mirrorv1.Phase_PHASE_COMPLETE, checkpoint, witness)
	return r.write(ctx)
}

func (r *recorder) set(phase mirrorv1.Phase, checkpoint int64, witness *mirrorv1.Witness) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.checkpoint, r.witness = phase, checkpoint, witness
}

func (r *recorder) recorded() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.checkpoint
}

// witnessAt returns a key of the origin as it was at revision rev: the candidate
// if it was there, else the first key; nil when the prefix was empty.
func (m *mirror) witnessAt(ctx context.Context, rev int64, candidate string) (*mirrorv1.Witness, error) {
	if candidate != "" {
		got, err := m.source.Get(ctx, candidate, clientv3.WithRev(rev))
		if err != nil {
			return nil, fmt.Errorf("read witness: %w", err)
		}
		if len(got.Kvs) > 0 {
			return m.testify(got.Kvs[0]), nil
		}
	}
	got, err := m.source.Get(ctx, m.prefix, clientv3.WithPrefix(), clientv3.WithRev(rev), clientv3.WithLimit(1))
	if err != nil {
		return nil, fmt.Errorf("read witness: %w", err)
	}
	if len(got.Kvs) == 0 {
		return nil, nil
	}
	return m.testify(got.Kvs[0]), nil
}

// testify makes a witness of a key.
func (m *mirror) testify(kv *mvccpb.KeyValue) *mirrorv1.Witness {
	sum := sha256.Sum256(kv.Value)
	return &mirrorv1.Witness{Key: m.relative(string(kv.Key)), ModRevision: kv.ModRevision, ValueSha256: sum[:]}
}

// confirms asks the origin whether, at the checkpoint of state, it held what the
// witness says; without a witness it held nothing.
func (m *mirror) confirms(ctx context.Context, state *mirrorv1.State) (testimony, error) {
	w := state.GetWitness()
	key, options := m.prefix, []clientv3.OpOption{clientv3.WithRev(state.GetCheckpoint())}
	if w != nil {
		key += w.GetKey()
	} else {
		options = append(options, clientv3.WithPrefix(), clientv3.WithLimit(1))
	}
	got, err := m.source.Get(ctx, key, options...)
	switch {
	case err != nil:
		return absence(err)
	case w == nil && len(got.Kvs) == 0, w != nil && len(got.Kvs) == 1 && proto.Equal(w, m.testify(got.Kvs[0])):
		return confirmed, nil
	default:
		return denies, nil
	}
}
