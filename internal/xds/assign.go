package xds

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"

	"github.com/aether-federation/aether/internal/locality"
	"github.com/aether-federation/aether/registry"
)

// Client is what of a client decides what it is sent.
type Client struct {
	registry.Locality
	// Network whose addresses mean to it what they say.
	Network string
	// Spreads: the client moves part of its traffic to the next priority by
	// itself, and weighs endpoints, as Envoy does. For others that is done here.
	Spreads bool
}

// Group is the endpoints of one locality that share a priority.
type Group struct {
	Priority uint32
	registry.Locality
	// SubZone tells apart groups of one locality whose endpoints weigh
	// differently, for clients that weigh localities alone.
	SubZone string
	// Weight among the groups of the same priority.
	Weight uint32
	// Targets with their weights within the group.
	Targets []locality.Target
}

// Assignment is where one client sends the traffic of one port of a service.
type Assignment struct {
	// Groups by priority, which have no gaps, then by locality.
	Groups []Group
	// Unreachable counts endpoints left out, because they are in another network
	// with no gateway to it.
	Unreachable int
}

// Translation says how endpoints become assignments.
type Translation struct {
	// RegionOrder is the regions from the nearest, for clients of any of them. A
	// client's own region in it changes nothing.
	RegionOrder []string
	Spill       Spill
}

// maxWeights is how many different weights of one locality are told apart; with
// more, those of about the same size count as one.
const maxWeights = 8

// shareUnit is the sum of the weights in a priority that several tiers share.
const shareUnit = 1e6

// Assign returns where c sends traffic for the port of that name. It keeps no
// endpoint that c cannot reach, no address twice, and no gap between priorities.
// Endpoints that do not serve stay where they are, marked.
func (t Translation) Assign(c Client, endpoints []*registry.Endpoint, port string) Assignment {
	l := locality.Client{Locality: c.Locality, Network: c.Network, Order: t.RegionOrder}
	tiers, unreachable := l.Tiers(endpoints, port)
	a := Assignment{Unreachable: unreachable}
	for _, p := range t.priorities(c, tiers) {
		weigh(p.groups, p.weights)
		for i := range p.groups {
			p.groups[i].Priority = p.number
			fitTargets(p.groups[i].Targets)
		}
		a.Groups = append(a.Groups, p.groups...)
	}
	return a
}

// priority is groups that are tried together, with what they weigh.
type priority struct {
	number  uint32
	groups  []Group
	weights []float64
}

// priorities are the tiers or, where several share the traffic of a client that
// does not spread it itself, those joined into one.
func (t Translation) priorities(c Client, tiers []locality.Tier) []priority {
	var shares [][]float64
	if !c.Spreads {
		shares = t.Spill.withDefaults().shares(capacities(tiers))
	}
	joined := mixed(shares)
	var all []priority
	at := -1
	for i, tier := range tiers {
		groups := groupsOf(tier, !c.Spreads)
		switch {
		case c.Spreads:
			all = append(all, priority{groups: groups, weights: totals(groups)})
		case !joined || sum(shares[i]) < negligible:
			all = append(all, priority{groups: groups, weights: servings(groups)})
		default:
			if at < 0 {
				at = len(all)
				all = append(all, priority{})
			}
			all[at].groups = append(all[at].groups, groups...)
			all[at].weights = append(all[at].weights, portions(tier, groups, shares[i])...)
		}
	}
	for i := range all {
		all[i].number = uint32(i)
	}
	return all
}

// mixed reports whether more than one region of all tiers has a share, so that
// weights have to tell it.
func mixed(shares [][]float64) bool {
	n := 0
	for _, row := range shares {
		for _, share := range row {
			if share >= negligible {
				n++
			}
		}
	}
	return n > 1
}

// regionsOf returns the regions of a tier, sorted.
func regionsOf(tier locality.Tier) []string {
	var names []string
	for _, target := range tier.Targets {
		names = append(names, target.Endpoint.Region)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// capacities is what tiers have. What has lapsed counts only where nothing else
// serves: nobody knows whether it does.
func capacities(tiers []locality.Tier) []tierCapacity {
	out := make([]tierCapacity, len(tiers))
	serves := false
	for i, tier := range tiers {
		names := regionsOf(tier)
		out[i] = tierCapacity{regions: make([]capacity, len(names)), other: tier.Distance >= locality.OtherRegion}
		for _, target := range tier.Targets {
			n, _ := slices.BinarySearch(names, target.Endpoint.Region)
			r := &out[i].regions[n]
			r.total += float64(target.Weight)
			if target.Health.Serving() && (tier.Distance < locality.Lapsed || !serves) {
				r.serving += float64(target.Weight)
			}
		}
		serves = serves || servingSum(out[i].regions) > 0
	}
	return out
}

// portions returns what each group gets of the shares of its tier's regions.
func portions(tier locality.Tier, groups []Group, shares []float64) []float64 {
	names, all := regionsOf(tier), servings(groups)
	serving := make([]float64, len(names))
	index := make([]int, len(groups))
	for i, g := range groups {
		index[i], _ = slices.BinarySearch(names, g.Region)
		serving[index[i]] += all[i]
	}
	for i := range all {
		if n := index[i]; serving[n] > 0 {
			all[i] *= shareUnit * shares[n] / serving[n]
		}
	}
	return all
}

// groupsOf splits a tier by locality and, if told to, by weight.
func groupsOf(tier locality.Tier, byWeight bool) []Group {
	var groups []Group
	for _, target := range tier.Targets {
		at := target.Endpoint.Locality()
		n, found := slices.BinarySearchFunc(groups, at, func(g Group, l registry.Locality) int {
			return compareLocality(g.Locality, l)
		})
		if !found {
			groups = slices.Insert(groups, n, Group{Locality: at})
		}
		groups[n].Targets = append(groups[n].Targets, target)
	}
	if !byWeight {
		return groups
	}
	var split []Group
	for _, g := range groups {
		split = append(split, g.byWeight()...)
	}
	return split
}

func compareLocality(a, b registry.Locality) int {
	return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Zone, b.Zone))
}

// byWeight splits a group whose endpoints weigh differently, the lightest first.
func (g Group) byWeight() []Group {
	classes := map[uint32][]locality.Target{}
	for _, t := range g.Targets {
		classes[t.Weight] = append(classes[t.Weight], t)
	}
	if len(classes) > maxWeights {
		clear(classes)
		for _, t := range g.Targets {
			class := uint32(1) << (bits.Len32(t.Weight) - 1)
			classes[class] = append(classes[class], t)
		}
	}
	if len(classes) == 1 {
		return []Group{g}
	}
	var out []Group
	for class, targets := range classes {
		out = append(out, Group{Locality: g.Locality, SubZone: "weight-" + strconv.FormatUint(uint64(class), 10), Targets: targets})
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Compare(a.SubZone, b.SubZone) })
	return out
}

func totals(groups []Group) []float64 {
	return weights(groups, func(locality.Target) bool { return true })
}

func servings(groups []Group) []float64 {
	return weights(groups, func(t locality.Target) bool { return t.Health.Serving() })
}

func weights(groups []Group, counts func(locality.Target) bool) []float64 {
	out := make([]float64, len(groups))
	for i, g := range groups {
		for _, t := range g.Targets {
			if counts(t) {
				out[i] += float64(t.Weight)
			}
		}
	}
	return out
}

func weigh(groups []Group, weights []float64) {
	for i, w := range fit(weights) {
		groups[i].Weight = w
	}
}

// fitTargets makes the weights within one group such as clients take.
func fitTargets(targets []locality.Target) {
	all := make([]float64, len(targets))
	for i, t := range targets {
		all[i] = float64(t.Weight)
	}
	for i, w := range fit(all) {
		targets[i].Weight = w
	}
}
