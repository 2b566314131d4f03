package replicator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// store is what is known of an etcd's identity and progress.
type store struct {
	// id is the random one kept under keyspace.StoreKey: etcd's own cluster ID is
	// equal for two stores that were made with the same name, URLs and token.
	id string
	// substitute: the cluster ID stands in for id, because the key could neither
	// be read nor be made.
	substitute bool
	revision   int64
	term       uint64
}

// identify reads, by a linearizable read, which store a client reaches and how
// far it is, and gives it an ID when it has none and the user may write it.
func identify(ctx context.Context, c *clientv3.Client) (store, error) {
	got, err := c.Get(ctx, keyspace.StoreKey)
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return standIn(ctx, c)
	}
	if err != nil {
		return store{}, fmt.Errorf("read store ID: %w", err)
	}
	s := store{revision: got.Header.Revision, term: got.Header.RaftTerm}
	if len(got.Kvs) > 0 {
		s.id = string(got.Kvs[0].Value)
		return s, nil
	}
	s.id, err = createStoreID(ctx, c)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrNoSpace):
		s.id, s.substitute = clusterID(got.Header.ClusterId), true
		return s, nil
	case err != nil:
		return store{}, fmt.Errorf("create store ID: %w", err)
	}
	return s, nil
}

// createStoreID writes a random ID unless somebody has, and returns the ID there.
func createStoreID(ctx context.Context, c *clientv3.Client) (string, error) {
	id := newToken()
	resp, err := c.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(keyspace.StoreKey), "=", 0)).
		Then(clientv3.OpPut(keyspace.StoreKey, hex.EncodeToString(id))).
		Else(clientv3.OpGet(keyspace.StoreKey)).
		Commit()
	if err != nil {
		return "", err
	}
	if resp.Succeeded {
		return hex.EncodeToString(id), nil
	}
	return string(resp.Responses[0].GetResponseRange().Kvs[0].Value), nil
}

// standIn identifies a store whose ID may not be read by its cluster ID.
func standIn(ctx context.Context, c *clientv3.Client) (store, error) {
	// Any answer has the cluster ID in its header; this needs no permission.
	members, err := c.MemberList(ctx)
	if err != nil {
		return store{}, fmt.Errorf("read cluster ID: %w", err)
	}
	return store{
		id: clusterID(members.Header.ClusterId), substitute: true,
		revision: members.Header.Revision, term: members.Header.RaftTerm,
	}, nil
}

func clusterID(id uint64) string { return fmt.Sprintf("cluster-%016x", id) }

// newToken returns 16 random bytes.
func newToken() []byte {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails, by its contract
	return token
}
