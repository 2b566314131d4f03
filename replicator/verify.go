package replicator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

// Kinds of differences between an origin and its mirror.
const (
	// DifferenceMissing: the origin has the key and the peer does not.
	DifferenceMissing DifferenceKind = "missing"
	// DifferenceExtra: the peer has the key and the origin does not.
	DifferenceExtra DifferenceKind = "extra"
	// DifferenceValue: the values are not equal.
	DifferenceValue DifferenceKind = "value"
	// DifferenceLease: on the peer, the key is on no lease, or on one that has
	// expired or is not the mirror's: it would not leave with its origin.
	DifferenceLease DifferenceKind = "lease"
)

// DifferenceKind says how a key differs.
type DifferenceKind string

// Difference is one key that is not on the peer as it should be.
type Difference struct {
	Key    string         `json:"key"`
	Kind   DifferenceKind `json:"kind"`
	Detail string         `json:"detail,omitempty"`
}

// Verification is what a comparison found.
type Verification struct {
	Origin      string `json:"origin"`
	Peer        string `json:"peer"`
	OriginStore string `json:"origin_store,omitempty"`
	PeerStore   string `json:"peer_store,omitempty"`
	// Holder wrote the mirror last, as it names itself; empty: nobody has yet.
	Holder string `json:"holder,omitempty"`
	// Complete: the mirror says of itself that it is whole.
	Complete bool `json:"complete"`
	// Keys is how many the origin has, PeerKeys how many the peer has of it, on
	// that many Leases.
	Keys     int `json:"keys"`
	PeerKeys int `json:"peer_keys"`
	Leases   int `json:"leases"`
	// Missing, Extra, Value and Lease count all differences by their kind.
	Missing int `json:"missing"`
	Extra   int `json:"extra"`
	Value   int `json:"value"`
	Lease   int `json:"lease"`
	// Moving counts keys that differed each time and were written on both sides in
	// between: changes under way, and no differences.
	Moving int `json:"moving,omitempty"`
	// Differences are the first of them, by key.
	Differences []Difference `json:"differences,omitempty"`
}

// Equal reports whether nothing differs.
func (v Verification) Equal() bool { return v.Count() == 0 }

// Count is the number of all differences.
func (v Verification) Count() int { return v.Missing + v.Extra + v.Value + v.Lease }

// WouldDelete reports how many keys of the mirror a rebuild would delete.
func (v Verification) WouldDelete() int { return v.Extra }

// VerifyOptions are how Verify goes about it; the zero values mean defaults.
type VerifyOptions struct {
	// Pause lies between two looks at a key that differs; 2 s if zero. It should be
	// longer than the mirror's lag.
	Pause time.Duration
	// MaxDifferences is how many are listed; 20 if zero, none if negative. All are
	// counted.
	MaxDifferences int
	// Progress, if set, is called, by one goroutine at a time, after each page: done
	// of about total keys were compared.
	Progress func(done, total int)
	// Timeout bounds each request; 10 s if zero.
	Timeout time.Duration
}

func (o VerifyOptions) withDefaults() VerifyOptions {
	if o.Pause == 0 {
		o.Pause = 2 * time.Second
	}
	if o.MaxDifferences == 0 {
		o.MaxDifferences = 20
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	return o
}

const (
	// looks is how often a key has to differ to be a difference.
	looks = 3
	// maxSuspects are looked at again together; it bounds what Verify holds.
	maxSuspects = 20_000
)

// Verify compares the mirror of a source at a peer with its origin: keys, values,
// and whether each key is on a live lease of the mirror. It reads, and writes
// nothing on either side. Changes may go on meanwhile: a key counts as different
// if it is so three times, some seconds apart, and is not being written on both
// sides all the time.
//
// An error means that it could not be told: a side did not answer, or refused, or
// the peer's etcd is the origin's own (ErrRefused). The Verification then holds
// what was found until then.
func Verify(ctx context.Context, source Source, peer Peer, options VerifyOptions) (Verification, error) {
	origin, err := originOf(source.OwnPrefix())
	if err != nil {
		return Verification{}, err
	}
	peer, _, err = peer.current()
	if err != nil {
		return Verification{}, err
	}
	client, err := dial(ctx, peer, defaultDialTimeout)
	if err != nil {
		return Verification{}, Diagnose(ctx, peer, err)
	}
	defer func() { _ = client.Close() }() // nothing is under way any more
	v := &verifier{
		VerifyOptions: options.withDefaults(),
		origin:        source.Client(), peer: client, region: origin, prefix: source.OwnPrefix(),
		leases: map[clientv3.LeaseID]bool{},
		result: Verification{Origin: origin, Peer: peer.Region},
	}
	if err := v.begin(clientv3.WithRequireLeader(ctx)); err != nil {
		return v.result, Diagnose(ctx, peer, err)
	}
	return v.result, v.scan(clientv3.WithRequireLeader(ctx))
}

// verifier is one comparison under way.
type verifier struct {
	VerifyOptions
	origin, peer   *clientv3.Client
	region, prefix string
	// table holds the leases that the mirror says are its own.
	table map[clientv3.LeaseID]bool
	// leases holds, for each lease asked about, whether it is alive.
	leases   map[clientv3.LeaseID]bool
	suspects []suspect
	total    int
	result   Verification
}

// begin finds out which stores these are and how many keys there are to compare.
func (v *verifier) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.Timeout)
	defer cancel()
	own, err := readStore(ctx, v.origin)
	if err != nil {
		return fmt.Errorf("identify own etcd: %w", err)
	}
	theirs, err := readStore(ctx, v.peer)
	if err != nil {
		return fmt.Errorf("identify etcd of peer %s: %w", v.result.Peer, err)
	}
	v.result.OriginStore, v.result.PeerStore = own.id, theirs.id
	if own.id == theirs.id && !own.substitute {
		return fmt.Errorf("the endpoints of peer %s reach the own region's etcd (store %s): correct them: %w", v.result.Peer, own.id, ErrRefused)
	}
	count, err := v.origin.Get(ctx, v.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("count keys of own etcd: %w", err)
	}
	v.total = int(count.Count)
	return v.readTable(ctx)
}

// readTable reads what the mirror says of itself.
func (v *verifier) readTable(ctx context.Context) error {
	found, err := readMirror(ctx, v.peer, v.region, nil)
	if err != nil {
		return err
	}
	v.result.Holder = found.owner.GetHolder()
	v.result.Complete = found.state.GetPhase() == mirrorv1.Phase_PHASE_COMPLETE
	v.table = map[clientv3.LeaseID]bool{}
	for _, l := range found.state.GetLeases() {
		v.table[clientv3.LeaseID(l.GetId())] = true
	}
	return nil
}

// judge asks for leases that were not asked about yet.
func (v *verifier) judge(ctx context.Context, ids []clientv3.LeaseID) error {
	alive := make([]bool, len(ids))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookupsInFlight)
	for i, id := range ids {
		g.Go(func() error {
			call, cancel := context.WithTimeout(ctx, v.Timeout)
			defer cancel()
			left, err := v.peer.TimeToLive(call, id)
			if err != nil {
				return fmt.Errorf("ask peer for lease %x: %w", int64(id), err)
			}
			alive[i] = left.TTL > 0
			return nil
		})
	}
	err := g.Wait()
	for i, id := range ids {
		v.leases[id] = alive[i]
	}
	return err
}

// leaseTrouble says what is wrong with the lease of a mirrored key, "" if nothing.
func (v *verifier) leaseTrouble(id clientv3.LeaseID) string {
	switch alive, asked := v.leases[id]; {
	case id == 0:
		return "on no lease"
	case asked && !alive:
		return fmt.Sprintf("lease %x has expired", int64(id))
	case !v.table[id]:
		return fmt.Sprintf("lease %x is none of the mirror's", int64(id))
	default:
		return ""
	}
}

// readStore is identify without giving an ID to a store that has none.
func readStore(ctx context.Context, c *clientv3.Client) (store, error) {
	got, err := c.Get(ctx, keyspace.StoreKey)
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return standIn(ctx, c)
	}
	if err != nil {
		return store{}, fmt.Errorf("read store ID: %w", err)
	}
	if len(got.Kvs) == 0 {
		return standIn(ctx, c)
	}
	return store{id: string(got.Kvs[0].Value), revision: got.Header.Revision, term: got.Header.RaftTerm}, nil
}
