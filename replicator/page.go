package replicator

import (
	"context"
	"fmt"
	"iter"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// pageBytes is the wanted size of one page of a range, and pageKeys its most.
	pageBytes, pageKeys = 1 << 20, 2000
	// keysPage is the size of a page of keys without values.
	keysPage = 10_000
)

// keysOf returns the keys that an etcd has in a span, relative and sorted, page by
// page; rev, if not nil, becomes the revision of the first page.
func keysOf(ctx context.Context, c *clientv3.Client, s *session, in span, rev *int64) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		from, end := s.bounds(in)
		for {
			call, cancel := context.WithTimeout(ctx, s.callTimeout())
			got, err := c.Get(call, from, clientv3.WithRange(end), clientv3.WithLimit(keysPage), clientv3.WithKeysOnly())
			cancel()
			if err != nil {
				yield("", err)
				return
			}
			if rev != nil && *rev == 0 {
				*rev = got.Header.Revision
			}
			for _, kv := range got.Kvs {
				if !yield(s.relative(string(kv.Key)), nil) {
					return
				}
			}
			if !got.More {
				return
			}
			from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
		}
	}
}

// bounds returns the first key of a span, and the one behind its last.
func (s *session) bounds(in span) (from, end string) {
	if in.end == "" {
		return s.prefix + in.start, clientv3.GetPrefixRangeEnd(s.prefix)
	}
	return s.prefix + in.start, s.prefix + in.end
}

// pager reads a span page by page.
type pager struct {
	client    *clientv3.Client
	s         *session
	what      string
	from, end string
	page      []*mvccpb.KeyValue
	done      bool
	// rev is the revision of the page that covers the current key, firstRev that
	// of the first page.
	rev, firstRev int64
}

func newPager(c *clientv3.Client, s *session, in span, what string) *pager {
	from, end := s.bounds(in)
	return &pager{client: c, s: s, what: what, from: from, end: end}
}

// peek returns the current key, nil at the end.
func (p *pager) peek(ctx context.Context) (*mvccpb.KeyValue, error) {
	for len(p.page) == 0 && !p.done {
		if err := p.read(ctx); err != nil {
			return nil, err
		}
	}
	if len(p.page) == 0 {
		return nil, nil
	}
	return p.page[0], nil
}

func (p *pager) next() { p.page = p.page[1:] }

func (p *pager) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.s.callTimeout())
	defer cancel()
	limit := min(max(pageBytes/p.s.valueSize.Load(), 8), pageKeys)
	got, err := p.client.Get(ctx, p.from, clientv3.WithRange(p.end), clientv3.WithLimit(limit))
	if err != nil {
		return fmt.Errorf("read %s: %w", p.what, err)
	}
	p.page, p.rev, p.done = got.Kvs, got.Header.Revision, !got.More
	if p.firstRev == 0 {
		p.firstRev = p.rev
	}
	next := p.end
	if got.More {
		next = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
	p.s.learnSize(got.Kvs)
	p.from = next
	return nil
}

// learnSize moves the average size of a key and its value towards that of a page:
// up at once, down by steps, so that no page becomes much too large.
func (s *session) learnSize(kvs []*mvccpb.KeyValue) {
	if len(kvs) == 0 {
		return
	}
	total := 0
	for _, kv := range kvs {
		total += len(kv.Value) + len(kv.Key)
	}
	s.valueSize.Store(max(int64(total/len(kvs)), s.valueSize.Load()/4, 1))
}
