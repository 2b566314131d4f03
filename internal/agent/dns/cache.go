package dns

import (
	"slices"
	"sync"

	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/registry"
)

// maxChosen is how many choices are kept.
const maxChosen = 4096

// choices keeps what was chosen of services. It is safe for concurrent use.
type choices struct {
	mu     sync.RWMutex
	client locality.Client
	known  map[name]*choice
}

// choice is of a slice of a view, which never changes.
type choice struct {
	of []*registry.Endpoint
	// ports of the endpoints of the protocol that was asked for.
	ports []string
	tiers [][]locality.Target
}

// get returns what to answer a client for n, of which endpoints, at least one, are
// the service's.
func (c *choices) get(client locality.Client, n name, endpoints []*registry.Endpoint) *choice {
	c.mu.RLock()
	known, same := c.known[n], sameClient(c.client, client)
	c.mu.RUnlock()
	if same && known != nil && len(known.of) == len(endpoints) && &known.of[0] == &endpoints[0] {
		return known
	}
	spoken := n.spoken(endpoints)
	tiers, _ := client.Tiers(spoken, n.port)
	next := &choice{of: endpoints, ports: ports(spoken), tiers: choose(tiers)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !sameClient(c.client, client) || len(c.known) >= maxChosen || c.known == nil {
		c.client, c.known = client, map[name]*choice{}
	}
	c.known[n] = next
	return next
}

func sameClient(a, b locality.Client) bool {
	return a.Locality == b.Locality && a.Network == b.Network && slices.Equal(a.Order, b.Order)
}
