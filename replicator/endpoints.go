package replicator

import (
	"context"

	"github.com/aether-federation/aether/registry/etcd"
)

// avoidSilent leaves members of the peer out, until the next session, that do not
// answer or see no leader. The client spreads calls over all its endpoints, and a
// session begins with a row of them: one hung member of three would else let most
// attempts to begin one time out, and so the leases expire under a peer that is
// well. When nobody answers, all stay in.
func (m *mirror) avoidSilent(ctx context.Context) {
	if len(m.peer.Endpoints) < 2 {
		return
	}
	chosen := etcd.Answering(ctx, m.client, m.peer.Endpoints)
	if len(chosen) < len(m.peer.Endpoints) {
		m.log.Warn("members of the peer do not answer, or see no leader: leaving them out", "in_use", chosen, "of", m.peer.Endpoints)
	}
	m.client.SetEndpoints(chosen...)
}
