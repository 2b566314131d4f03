package etcd

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

// List implements [registry.Registry]: a linearizable read, at one revision.
func (s *Store) List(ctx context.Context, q registry.Query) (registry.Snapshot, error) {
	for {
		snapshot, err := s.list(ctx, q)
		if !errors.Is(err, rpctypes.ErrCompacted) {
			return snapshot, translate("list endpoints", s.client, err)
		}
	}
}

func (s *Store) list(ctx context.Context, q registry.Query) (registry.Snapshot, error) {
	var out []registry.Endpoint
	rev, err := pages(ctx, s.client, s.span(), s.timeout, func(kvs []*mvccpb.KeyValue) error {
		for _, kv := range kvs {
			if e, ok := s.wanted(q, kv); ok {
				out = append(out, e)
			}
		}
		return nil
	})
	if err != nil {
		return registry.Snapshot{}, err
	}
	slices.SortFunc(out, func(a, b registry.Endpoint) int { return a.Key.Compare(b.Key) })
	return registry.Snapshot{Endpoints: out, Revision: revision(rev)}, nil
}

// wanted decodes kv if q asks for it.
func (s *Store) wanted(q registry.Query, kv *mvccpb.KeyValue) (registry.Endpoint, bool) {
	k, ok := s.decoder.key(kv.Key)
	if !ok || !q.Wants(k.Service) {
		return registry.Endpoint{}, false
	}
	return s.decoder.value(k, kv.Key, kv.Value)
}

// span is a range of keys; end itself is not in it.
type span struct{ begin, end string }

func (s *Store) span() span {
	return span{s.OwnPrefix(), keyspace.RangeEnd(s.OwnPrefix())}
}

// pages reads a range page by page, all at the revision of the first, which is
// linearizable, and returns that revision. A compaction past it ends the list
// with ErrCompacted.
func pages(ctx context.Context, client *clientv3.Client, r span, timeout time.Duration, fn func([]*mvccpb.KeyValue) error) (int64, error) {
	var rev int64
	for key := r.begin; ; {
		resp, err := page(ctx, client, key, r.end, rev, timeout)
		if err != nil {
			return 0, err
		}
		if rev == 0 {
			rev = resp.Header.Revision
		}
		if err := fn(resp.Kvs); err != nil {
			return 0, err
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return rev, nil
		}
		key = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

func page(ctx context.Context, client *clientv3.Client, begin, end string, rev int64, timeout time.Duration) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return client.Get(ctx, begin, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(rev))
}
