package replicator

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// probeTTLSeconds is for how long a probe key outlives a check that was killed.
const probeTTLSeconds = 10

// lease checks what a mirror does all the time: a lease, a key on it that is
// written under the fence, a keepalive, a delete.
func (c *prober) lease(ctx context.Context) {
	var lease *clientv3.LeaseGrantResponse
	err := c.call(ctx, func(ctx context.Context) (err error) {
		lease, err = c.client.Grant(ctx, probeTTLSeconds)
		return err
	})
	c.allowed("grant a lease", err)
	if err != nil {
		return
	}
	key := keyspace.ProbeKey(c.origin, hex.EncodeToString(newToken()))
	c.allowed("write "+keyspace.MirrorPrefix(c.origin), c.putFenced(ctx, key, lease.ID))
	c.allowed("keep the lease alive", c.call(ctx, func(ctx context.Context) error {
		_, err := c.client.KeepAliveOnce(ctx, lease.ID)
		return err
	}))
	c.allowed("write "+keyspace.RegionPrefix(c.origin), c.tried(ctx, keyspace.RegionPrefix(c.origin)))
	if err := c.call(ctx, func(ctx context.Context) error {
		_, err := c.client.Delete(ctx, key)
		return err
	}); err != nil {
		c.find("remove the probe", OutcomeUnknown, "%s: it goes by itself within %d s: %v", key, probeTTLSeconds, err)
		return
	}
	// The probe is gone, and an empty lease that is not revoked ends by itself.
	_ = c.call(ctx, func(ctx context.Context) error {
		_, err := c.client.Revoke(ctx, lease.ID)
		return err
	})
}

// putFenced writes the probe as a mirror writes its keys, comparing the fence as it
// is.
func (c *prober) putFenced(ctx context.Context, key string, lease clientv3.LeaseID) error {
	return c.call(ctx, func(ctx context.Context) error {
		owner := keyspace.OwnerKey(c.origin)
		got, err := c.client.Get(ctx, owner)
		if err != nil {
			return err
		}
		rev := int64(0)
		if len(got.Kvs) > 0 {
			rev = got.Kvs[0].ModRevision
		}
		resp, err := c.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(owner), "=", rev)).
			Then(clientv3.OpPut(key, "", clientv3.WithLease(lease))).Commit()
		if err == nil && !resp.Succeeded {
			return errors.New("the mirror was taken over meanwhile: check again")
		}
		return err
	})
}

// tried sends a transaction that would write below a prefix, or a key, if something
// were true that never is. The peer checks the permission for it all the same.
func (c *prober) tried(ctx context.Context, key string) error {
	return c.call(ctx, func(ctx context.Context) error {
		never := clientv3.Compare(clientv3.CreateRevision(keyspace.OwnerKey(c.origin)), "<", 0)
		if key[len(key)-1] == '/' {
			key += "probe"
		}
		resp, err := c.client.Txn(ctx).If(never).Then(clientv3.OpPut(key, "")).Commit()
		if err == nil && resp.Succeeded {
			return fmt.Errorf("the peer wrote %s although what was compared is never true", key)
		}
		return err
	})
}

// refusals checks that what belongs to others is out of reach.
func (c *prober) refusals(ctx context.Context) {
	if c.open {
		return // everything is allowed, as was said
	}
	for _, key := range []string{
		keyspace.RegionPrefix(c.peer.Region), keyspace.MirrorPrefix(c.peer.Region),
		keyspace.ElectionsPrefix + c.peer.Region + "/", keyspace.StoreKey, "/",
	} {
		check := "no write to " + key
		switch err := c.tried(ctx, key); {
		case err == nil:
			c.find(check, OutcomeProblem, "allowed: user %q has more than it needs", c.peer.Username)
		case errors.Is(err, rpctypes.ErrPermissionDenied):
			c.find(check, OutcomeOK, "refused")
		default:
			c.fail(check, err)
		}
	}
}
