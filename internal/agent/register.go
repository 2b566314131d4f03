package agent

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/registry"
)

// Register takes endpoints that a program on this node registers: they are durable
// here when it returns, and reported from then on. With a ttl they end unless they
// are registered again within it. Their node, zone and network are the agent's
// where they say nothing. One that a file declares is a Conflict, and then nothing
// is registered.
func (n *Node) Register(_ context.Context, endpoints []registry.Endpoint, ttl time.Duration) error {
	checked := make([]registry.Endpoint, len(endpoints))
	seen := map[registry.Key]bool{}
	for i, e := range endpoints {
		field := fmt.Sprintf("endpoints[%d]", i)
		var err error
		if checked[i], err = n.adopt(e); err != nil {
			return registry.Within(field, err)
		}
		key := checked[i].Key
		if seen[key] {
			return registry.Invalidf(field, "%s is there twice: name each endpoint once", source.Name(key))
		}
		seen[key] = true
		if d, declared := n.declared(key); declared && d.From != source.FromLocal {
			return registry.Errorf(registry.Conflict, "%s is declared at %s: remove it there to register it", source.Name(key), d.From)
		}
	}
	if err := n.local.Register(checked, ttl); err != nil {
		return err
	}
	n.refresh()
	return nil
}

// adopt returns e as an endpoint of this node.
func (n *Node) adopt(e registry.Endpoint) (registry.Endpoint, error) {
	if err := n.mine(e.Node); err != nil {
		return e, err
	}
	e.Node = ""
	e.Zone, e.Network = cmp.Or(e.Zone, n.cfg.Defaults.Zone), cmp.Or(e.Network, n.cfg.Defaults.Network)
	return source.Check(e)
}

// mine refuses what is said to be another node's.
func (n *Node) mine(node string) error {
	if node != "" && node != n.cfg.Name {
		return registry.Invalidf("node", "%q is not this node, %q: leave it out", node, n.cfg.Name)
	}
	return nil
}

func (n *Node) declared(key registry.Key) (source.Declared, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d, is := n.byKey[key]
	return d, is
}

// Unregister removes what programs registered and returns how many there were. What
// a file declares is a Conflict, and then nothing is removed.
func (n *Node) Unregister(_ context.Context, claims []registry.Claim) (removed int, err error) {
	keys, err := n.claimed(claims)
	if err != nil {
		return 0, err
	}
	for _, k := range keys {
		if d, declared := n.declared(k); declared && d.From != source.FromLocal {
			return 0, registry.Errorf(registry.Conflict, "%s is declared at %s: remove it there", source.Name(k), d.From)
		}
	}
	if removed, err = n.local.Unregister(keys); err != nil {
		return 0, err
	}
	n.refresh()
	return removed, nil
}

// SetHealth gives endpoints of this node, whoever declares them, a health that wins
// over probes: draining or unhealthy. Healthy takes it back, so that probes decide.
// It outlasts restarts. NotFound, with nothing changed, if one is not declared.
func (n *Node) SetHealth(_ context.Context, claims []registry.Claim, health registry.Health) error {
	keys, err := n.claimed(claims)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if _, declared := n.declared(k); !declared {
			return registry.Errorf(registry.NotFound, "%s is not declared on this node: register it first", source.Name(k))
		}
	}
	if health.Serving() {
		health = registry.HealthUnspecified
	}
	if err := n.local.SetHealth(keys, health); err != nil {
		return err
	}
	n.refresh()
	return nil
}

// claimed returns the keys that claims name, as they are declared.
func (n *Node) claimed(claims []registry.Claim) ([]registry.Key, error) {
	keys := make([]registry.Key, len(claims))
	for i, c := range claims {
		err := n.mine(c.Node)
		if err == nil {
			c.IP, err = registry.NormalizeIP(c.IP)
		}
		if err != nil {
			return nil, registry.Within(fmt.Sprintf("endpoints[%d]", i), err)
		}
		c.Origin = registry.Origin{}
		keys[i] = c.Key
	}
	return keys, nil
}
