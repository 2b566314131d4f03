package dns

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/registry"
)

// maxAnswers is how many targets one answer has at most: of more, some at random.
const maxAnswers = 1000

// choose returns which of a service's tiers to answer with: those of the own
// region that have something that serves, else the nearest other that has.
func choose(tiers []locality.Tier) [][]locality.Target {
	var chosen [][]locality.Target
	for _, t := range tiers {
		if t.Distance >= locality.OtherRegion && len(chosen) > 0 {
			break
		}
		if serving := t.Serving(); len(serving) > 0 {
			chosen = append(chosen, serving)
		}
	}
	return chosen
}

// shuffled returns tiers with the targets of each in a random order, and maxAnswers
// in all.
func shuffled(tiers [][]locality.Target) [][]locality.Target {
	out, left := make([][]locality.Target, 0, len(tiers)), maxAnswers
	for _, tier := range tiers {
		tier = slices.Clone(tier)
		rand.Shuffle(len(tier), func(i, j int) { tier[i], tier[j] = tier[j], tier[i] })
		tier = tier[:min(left, len(tier))]
		left -= len(tier)
		out = append(out, tier)
	}
	return out
}

// spoken returns the endpoints of the protocol that n asks for.
func (n name) spoken(endpoints []*registry.Endpoint) []*registry.Endpoint {
	if n.protocol == "" {
		return endpoints
	}
	var out []*registry.Endpoint
	for _, e := range endpoints {
		if n.speaks(e.Protocol) {
			out = append(out, e)
		}
	}
	return out
}

// ports returns the names of endpoints' ports, sorted.
func ports(endpoints []*registry.Endpoint) []string {
	names := map[string]bool{}
	for _, e := range endpoints {
		for _, p := range e.Ports {
			names[p.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
