package replicator

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

// fence is what every write of a session compares. Holding it means that nothing
// which an earlier session sent can be applied any more.
type fence struct {
	key string
	// owner is the whole value of the key. Nil: the key is absent, which is the
	// only fence that a peer without space allows. Two holders of an absent key
	// can't be told apart, so it serves deletes alone and gives way to a written
	// one as soon as there is space.
	owner []byte
	// since is the peer's revision in which the fence was taken.
	since int64
}

func (f fence) compare() clientv3.Cmp {
	if f.owner == nil {
		return clientv3.Compare(clientv3.CreateRevision(f.key), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(f.key), "=", string(f.owner))
}

// takeFence writes a new owner over the one that was read at ownerRev, the
// ModRevision of the key or 0 if there was none. It returns ErrFenced when
// somebody was faster.
func (m *mirror) takeFence(ctx context.Context, ownerRev int64) (fence, error) {
	key := keyspace.OwnerKey(m.origin)
	owner, err := proto.Marshal(&mirrorv1.Owner{
		Token: newToken(), Holder: m.holder, OriginStore: m.own.id, Peer: m.peer.Region,
		Since: timestamppb.Now(),
	})
	if err != nil {
		return fence{}, fmt.Errorf("encode owner: %w", err)
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", ownerRev)
	f := fence{key: key, owner: owner}
	resp, err := m.client.Txn(ctx).If(unchanged).Then(clientv3.OpPut(key, string(owner))).Commit()
	if errors.Is(err, rpctypes.ErrNoSpace) {
		f.owner = nil
		resp, err = m.client.Txn(ctx).If(unchanged).Then(clientv3.OpDelete(key)).Commit()
	}
	if err != nil {
		return fence{}, fmt.Errorf("take fence: %w", err)
	}
	if !resp.Succeeded {
		return fence{}, fmt.Errorf("take fence: %w", ErrFenced)
	}
	f.since = resp.Header.Revision
	return f, nil
}
