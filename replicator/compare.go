package replicator

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// suspect is a key that differed when it was last looked at, and the revisions
// that it had then; 0 where it was not.
type suspect struct {
	key                string
	originRev, peerRev int64
	kind               DifferenceKind
	detail             string
	// moving: both sides were written since the look before.
	moving bool
}

// scan merges both sides, page by page, and looks again at what differs.
func (v *verifier) scan(ctx context.Context) error {
	origin := &reader{v: v, client: v.origin, what: "own etcd", from: v.prefix, size: 256}
	peer := &reader{v: v, client: v.peer, what: "peer", from: v.prefix, size: 256, judged: true}
	for {
		o, err := origin.peek(ctx)
		if err != nil {
			return err
		}
		p, err := peer.peek(ctx)
		if err != nil {
			return err
		}
		if o == nil && p == nil {
			v.result.Leases = len(v.leases)
			return v.lookAgain(ctx)
		}
		v.take(origin, peer, o, p)
		if len(v.suspects) >= maxSuspects {
			if err := v.lookAgain(ctx); err != nil {
				return err
			}
		}
	}
}

// take compares the next key of both sides and goes on behind it.
func (v *verifier) take(origin, peer *reader, o, p *mvccpb.KeyValue) {
	if o != nil && p != nil {
		switch bytes.Compare(o.Key, p.Key) {
		case -1:
			p = nil
		case 1:
			o = nil
		}
	}
	if o != nil {
		origin.next()
		v.result.Keys++
	}
	if p != nil {
		peer.next()
		v.result.PeerKeys++
	}
	if s := v.compare(o, p); s.kind != "" {
		v.suspects = append(v.suspects, s)
	}
}

// compare returns how a key differs; its kind is empty if it does not.
func (v *verifier) compare(o, p *mvccpb.KeyValue) suspect {
	s := suspect{key: string(o.GetKey()), originRev: o.GetModRevision(), peerRev: p.GetModRevision()}
	switch {
	case o == nil && p == nil:
	case o == nil:
		s.key, s.kind = string(p.Key), DifferenceExtra
	case p == nil:
		s.kind = DifferenceMissing
	case !bytes.Equal(o.Value, p.Value):
		s.kind = DifferenceValue
		s.detail = fmt.Sprintf("%d bytes at the origin, %d on the peer", len(o.Value), len(p.Value))
	default:
		if s.detail = v.leaseTrouble(clientv3.LeaseID(p.Lease)); s.detail != "" {
			s.kind = DifferenceLease
		}
	}
	return s
}

// lookAgain looks at the suspects until they have been looked at often enough, and
// counts those that still differ.
func (v *verifier) lookAgain(ctx context.Context) error {
	for range looks - 1 {
		if len(v.suspects) == 0 {
			break
		}
		if !sleep(ctx, v.Pause) {
			return fmt.Errorf("look at %d differing keys again: %w", len(v.suspects), ctx.Err())
		}
		call, cancel := context.WithTimeout(ctx, v.Timeout)
		err := v.readTable(call)
		cancel()
		if err != nil {
			return err
		}
		if err := v.look(ctx); err != nil {
			return err
		}
	}
	for _, s := range v.suspects {
		v.conclude(s)
	}
	v.suspects = v.suspects[:0]
	return nil
}

func (v *verifier) conclude(s suspect) {
	if s.moving {
		v.result.Moving++
		return
	}
	switch s.kind {
	case DifferenceMissing:
		v.result.Missing++
	case DifferenceExtra:
		v.result.Extra++
	case DifferenceValue:
		v.result.Value++
	case DifferenceLease:
		v.result.Lease++
	}
	if len(v.result.Differences) < v.MaxDifferences {
		v.result.Differences = append(v.result.Differences, Difference{Key: s.key, Kind: s.kind, Detail: s.detail})
	}
}

// look reads the suspects on both sides and keeps those that differ.
func (v *verifier) look(ctx context.Context) error {
	origin := make([]*mvccpb.KeyValue, len(v.suspects))
	peer := make([]*mvccpb.KeyValue, len(v.suspects))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(lookupsInFlight)
	for from := 0; from < len(v.suspects); from += maxLookup {
		some := v.suspects[from:min(from+maxLookup, len(v.suspects))]
		g.Go(func() error {
			// The origin first: what the peer has is then at least as new.
			if err := v.get(gctx, v.origin, "own etcd", some, origin[from:]); err != nil {
				return err
			}
			return v.get(gctx, v.peer, "peer", some, peer[from:])
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, kv := range peer {
		delete(v.leases, clientv3.LeaseID(kv.GetLease())) // alive at the last look, but now?
	}
	if err := v.judgeAll(ctx, peer); err != nil {
		return err
	}
	var still []suspect
	for i, before := range v.suspects {
		s := v.compare(origin[i], peer[i])
		if s.kind == "" {
			continue
		}
		s.moving = s.originRev != before.originRev && s.peerRev != before.peerRev
		still = append(still, s)
	}
	v.suspects = still
	return nil
}

// maxLookup keys are read in a transaction: the most that etcd takes by default.
const maxLookup = 128

// get reads keys into found, nil for one that is not there.
func (v *verifier) get(ctx context.Context, c *clientv3.Client, what string, some []suspect, found []*mvccpb.KeyValue) error {
	ctx, cancel := context.WithTimeout(ctx, v.Timeout)
	defer cancel()
	gets := make([]clientv3.Op, len(some))
	for i, s := range some {
		gets[i] = clientv3.OpGet(s.key)
	}
	resp, err := c.Txn(ctx).Then(gets...).Commit()
	if half := len(some) / 2; errors.Is(err, rpctypes.ErrTooManyOps) && half > 0 {
		return errors.Join(v.get(ctx, c, what, some[:half], found), v.get(ctx, c, what, some[half:], found[half:]))
	}
	if err != nil {
		return fmt.Errorf("read %d keys of %s: %w", len(some), what, err)
	}
	for i, r := range resp.Responses {
		if kvs := r.GetResponseRange().Kvs; len(kvs) > 0 {
			found[i] = kvs[0]
		}
	}
	return nil
}

// judgeAll asks for the leases of keys that were not asked about yet.
func (v *verifier) judgeAll(ctx context.Context, kvs []*mvccpb.KeyValue) error {
	var ids []clientv3.LeaseID
	fresh := map[clientv3.LeaseID]bool{0: true}
	for _, kv := range kvs {
		id := clientv3.LeaseID(kv.GetLease())
		if _, asked := v.leases[id]; !asked && !fresh[id] {
			fresh[id] = true
			ids = append(ids, id)
		}
	}
	return v.judge(ctx, ids)
}

// reader reads one side of a comparison, page by page.
type reader struct {
	v      *verifier
	client *clientv3.Client
	what   string
	from   string
	page   []*mvccpb.KeyValue
	done   bool
	// size is the average size of a key with its value, for that of pages.
	size int
	// judged: the leases of what is read are asked about.
	judged bool
}

// peek returns the current key, nil at the end.
func (r *reader) peek(ctx context.Context) (*mvccpb.KeyValue, error) {
	for len(r.page) == 0 && !r.done {
		if err := r.read(ctx); err != nil {
			return nil, err
		}
	}
	if len(r.page) == 0 {
		return nil, nil
	}
	return r.page[0], nil
}

func (r *reader) next() { r.page = r.page[1:] }

func (r *reader) read(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, r.v.Timeout)
	defer cancel()
	limit := min(max(pageBytes/r.size, 8), pageKeys)
	got, err := r.client.Get(call, r.from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.v.prefix)), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return fmt.Errorf("read %s: %w", r.what, err)
	}
	r.page, r.done = got.Kvs, !got.More
	if n := len(got.Kvs); n > 0 {
		r.from = string(got.Kvs[n-1].Key) + "\x00"
		total := 0
		for _, kv := range got.Kvs {
			total += len(kv.Key) + len(kv.Value)
		}
		r.size = max(total/n, 1)
	}
	if r.v.Progress != nil && !r.judged {
		r.v.Progress(r.v.result.Keys, r.v.total)
	}
	if r.judged {
		return r.v.judgeAll(ctx, r.page)
	}
	return nil
}
