package etcd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

// EnsureStoreID returns the random ID of the etcd behind client, and writes one
// where there is none. Two callers at once get the same. It is Denied where the
// ID is missing and the client's user may not write it.
func EnsureStoreID(ctx context.Context, client *clientv3.Client) (string, error) {
	id, err := ensureStoreID(ctx, client)
	if err != nil {
		return "", translate("read store ID", client, err)
	}
	if id == "" {
		return "", registry.Errorf(registry.Internal, "read store ID: %s is empty: delete that key, so that a new ID is written", keyspace.StoreKey)
	}
	return id, nil
}

func ensureStoreID(ctx context.Context, client *clientv3.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	resp, err := client.Get(ctx, keyspace.StoreKey)
	if err != nil {
		return "", err
	}
	if len(resp.Kvs) > 0 {
		return string(resp.Kvs[0].Value), nil
	}
	return createStoreID(ctx, client)
}

func createStoreID(ctx context.Context, client *clientv3.Client) (string, error) {
	id := newStoreID()
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(keyspace.StoreKey), "=", 0)).
		Then(clientv3.OpPut(keyspace.StoreKey, id)).
		Else(clientv3.OpGet(keyspace.StoreKey)).
		Commit()
	if err != nil {
		return "", err
	}
	if resp.Succeeded {
		return id, nil
	}
	return string(first(resp.Responses[0].GetResponseRange()).GetValue()), nil
}

func newStoreID() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// TimeToLive returns how long a lease has left and how long it was granted for,
// both in whole seconds. NotFound: the lease is gone.
func TimeToLive(ctx context.Context, client *clientv3.Client, leaseID int64) (left, granted time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	resp, err := client.TimeToLive(ctx, clientv3.LeaseID(leaseID))
	if err != nil {
		return 0, 0, translate("read lease", client, err)
	}
	if resp.TTL < 0 {
		return 0, 0, registry.Errorf(registry.NotFound, "read lease %x: it has expired or was revoked", leaseID)
	}
	return time.Duration(resp.TTL) * time.Second, time.Duration(resp.GrantedTTL) * time.Second, nil
}
