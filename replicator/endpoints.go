package replicator

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
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
	ctx, cancel := context.WithTimeout(ctx, max(time.Second, m.ttl()/renewalsPerTTL))
	defer cancel()
	answers := make([]bool, len(m.peer.Endpoints))
	var g errgroup.Group
	for i, endpoint := range m.peer.Endpoints {
		g.Go(func() error {
			is, err := m.client.Status(ctx, endpoint)
			if err != nil {
				m.log.Warn("member of the peer does not answer, leaving it out", "endpoint", endpoint, "error", err)
				return nil
			}
			answers[i] = is.Leader != 0
			return nil
		})
	}
	_ = g.Wait() // each has said what it had to say
	var chosen []string
	for i, endpoint := range m.peer.Endpoints {
		if answers[i] {
			chosen = append(chosen, endpoint)
		}
	}
	if len(chosen) == 0 {
		chosen = m.peer.Endpoints
	}
	m.client.SetEndpoints(chosen...)
}
