package etcd

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

// maxGhosts of one transaction: a comparison each and one for the node.
const maxGhosts = registry.MaxBatch - 1

// Ghost is an endpoint as it was last seen, whose node was absent.
type Ghost struct {
	Key         registry.Key
	ModRevision int64
}

// RemoveGhosts removes endpoints of node in the store's partition, if the node
// still has no presence key and each endpoint is still as it was seen. Where one
// of them is not, nothing is removed of its batch, nor of those after it: look
// again.
func (s *Store) RemoveGhosts(ctx context.Context, node string, ghosts []Ghost) (removed int, err error) {
	for len(ghosts) > 0 {
		batch := ghosts[:min(len(ghosts), maxGhosts)]
		ghosts = ghosts[len(batch):]
		ok, err := s.removeGhosts(ctx, node, batch)
		if err != nil || !ok {
			return removed, translate("remove endpoints of an absent node", s.client, err)
		}
		removed += len(batch)
	}
	return removed, nil
}

func (s *Store) removeGhosts(ctx context.Context, node string, batch []Ghost) (bool, error) {
	guards := []clientv3.Cmp{isAbsent(s.origin, node)}
	ops := make([]clientv3.Op, len(batch))
	for i, g := range batch {
		if g.Key.Origin != s.origin {
			return false, registry.Invalidf("ghosts", "%s/%s is not the partition %s/%s that is written here",
				g.Key.Region, g.Key.Cluster, s.origin.Region, s.origin.Cluster)
		}
		key := keyspace.Format(g.Key)
		guards = append(guards, clientv3.Compare(clientv3.ModRevision(key), "=", g.ModRevision))
		ops[i] = clientv3.OpDelete(key)
	}
	resp, err := s.txn(ctx, guards, ops)
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}
