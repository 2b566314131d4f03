package etcd

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// OtherOwner returns a region other than own whose registrars wrote to the etcd
// behind client, empty if there is none: one with endpoints that are on no lease and
// belong to no mirror. It looks at one key of each region.
func OtherOwner(ctx context.Context, client *clientv3.Client, own string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	from, end := keyspace.RegionsPrefix, clientv3.GetPrefixRangeEnd(keyspace.RegionsPrefix)
	for {
		resp, err := client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1))
		if err != nil {
			return "", translate("read regions", client, err)
		}
		if len(resp.Kvs) == 0 {
			return "", nil
		}
		kv := resp.Kvs[0]
		region, _, within := strings.Cut(strings.TrimPrefix(string(kv.Key), keyspace.RegionsPrefix), "/")
		if !within {
			from = string(kv.Key) + "\x00" // no key of any region
			continue
		}
		if region != own && kv.Lease == 0 {
			mirror, err := client.Get(ctx, keyspace.OwnerKey(region), clientv3.WithCountOnly())
			if err != nil {
				return "", translate("read owner of mirror", client, err)
			}
			if mirror.Count == 0 {
				return region, nil
			}
		}
		from = clientv3.GetPrefixRangeEnd(keyspace.RegionPrefix(region))
	}
}
