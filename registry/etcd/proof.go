package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// proofInterval is how often a watch is proven current.
	proofInterval = 500 * time.Millisecond
	// maxPending bounds the proofs that a watch which lags has not met yet.
	maxPending = 16
	// maxSilent is how many proofs a watch may leave without a word before it is
	// given up and opened anew, perhaps at another member.
	maxSilent = 4
)

// proof is the answer to a linearizable read: at the time at, the store's head
// was revision or older. A watch that has seen revision was therefore current
// then, which its own silence does not prove: it may hang, or be served by a
// member that is cut off.
type proof struct {
	at       time.Time
	revision int64
	term     uint64
	store    string
	// seen is what had been told before the read began.
	seen int64
}

func (f *follower) prove(ctx context.Context) (proof, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	p := proof{at: time.Now(), seen: f.seen.Load()}
	resp, err := f.client.Get(ctx, keyspace.StoreKey)
	if err != nil {
		return proof{}, err
	}
	p.revision, p.term = resp.Header.Revision, resp.Header.RaftTerm
	if len(resp.Kvs) > 0 {
		p.store = string(resp.Kvs[0].Value)
	}
	return p, nil
}

// proveAgain reads now and then and asks the watch to say how far it is.
func (f *follower) proveAgain(ctx context.Context, w clientv3.Watcher, proofs chan<- proof) error {
	tick := time.NewTicker(proofInterval)
	defer tick.Stop()
	failing := false
	for {
		p, err := f.prove(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if failed := err != nil; failed != failing {
			failing = failed
			f.logProof(err)
		}
		if err == nil {
			if err := f.request(ctx, w, p, proofs); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// request hands p over, then asks for progress, in this order: the answer must
// find p waiting. A watch that has seen the head already need not be asked, and
// would not answer: etcd is silent about progress below a watch's first revision.
func (f *follower) request(ctx context.Context, w clientv3.Watcher, p proof, proofs chan<- proof) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case proofs <- p:
	}
	if p.revision <= f.seen.Load() {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	if err := w.RequestProgress(call); call.Err() == nil || ctx.Err() != nil {
		return err
	}
	return errStalled
}

func (f *follower) logProof(err error) {
	if err != nil {
		f.log.Warn("the own etcd does not prove that the view is current, serving it as it is", "prefix", f.span.begin, "error", err)
		return
	}
	f.log.Info("the own etcd proves the view current again", "prefix", f.span.begin)
}

// check returns errRestored if p comes from another store than the one followed:
// one of another ID, or one whose revision or raft term has gone back.
func (f *follower) check(p proof) error {
	if p.revision < p.seen || p.term < f.term || f.store != "" && p.store != f.store {
		return errRestored
	}
	f.store, f.term = p.store, p.term
	return nil
}

// meet tells p if the watch has seen its revision, and otherwise keeps it until
// then. Where many wait, the older are kept: they are met first.
func (f *follower) meet(p proof) error {
	if seen := f.seen.Load(); p.revision <= seen {
		f.pending = f.pending[:0]
		return f.current(seen, p.at)
	}
	if f.silent++; f.silent > maxSilent {
		return errStalled
	}
	if len(f.pending) < maxPending {
		f.pending = append(f.pending, p)
	}
	return nil
}

// progress: the watch has told everything up to rev. It tells the newest proof
// that this meets.
func (f *follower) progress(rev int64) error {
	f.seen.Store(max(f.seen.Load(), rev))
	met := 0
	for met < len(f.pending) && f.pending[met].revision <= rev {
		met++
	}
	if met == 0 {
		return nil
	}
	at := f.pending[met-1].at
	f.pending = append(f.pending[:0], f.pending[met:]...)
	return f.current(rev, at)
}

func (f *follower) current(rev int64, at time.Time) error {
	f.backoff = 0
	return stop(f.sink.current(rev, at))
}
