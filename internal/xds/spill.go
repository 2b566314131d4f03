package xds

import "math"

// Spill says how much of the traffic leaves a tier that has too little left.
type Spill struct {
	// Factor is how much more than its even share each endpoint can take: a tier
	// keeps all of its traffic while Factor times the serving share of its weight
	// is 1 or more, as Envoy's overprovisioning factor does. 0: DefaultFactor.
	Factor float64
	// Ceiling is the largest share of a client's traffic that one other region
	// takes, more than 0 and at most 1. It is exceeded only when nothing else
	// serves. 0: 1. Envoy knows no such thing: it is for clients that do not
	// spread load themselves.
	Ceiling float64
}

const (
	// DefaultFactor is Envoy's.
	DefaultFactor = 1.4
	// maxFactor is far beyond what makes sense.
	maxFactor = 100
)

func (s Spill) withDefaults() Spill {
	if s.Factor == 0 {
		s.Factor = DefaultFactor
	}
	if s.Ceiling == 0 {
		s.Ceiling = 1
	}
	return s
}

// capacity is what one region has in one tier.
type capacity struct {
	// serving and total are sums of weights.
	serving, total float64
}

// tierCapacity is what one tier has, by region.
type tierCapacity struct {
	regions []capacity
	// other: the regions are not the client's own.
	other bool
}

// available is the share of all traffic that the tier can take.
func (t tierCapacity) available(factor float64) float64 {
	var serving, total float64
	for _, r := range t.regions {
		serving, total = serving+r.serving, total+r.total
	}
	if total == 0 {
		return 0
	}
	return min(1, factor*serving/total)
}

// negligible is a share that only rounding left over.
const negligible = 1e-9

// shares returns the share of a client's traffic that each region of each tier
// takes, the nearest tier first. They add up to 1 unless nothing serves.
//
// Each tier takes what it can of what the nearer ones left. What is left at last
// goes back to the own region, so that the ceiling holds; without an own region
// that serves, the others take it in proportion, and the ceiling with it.
func (s Spill) shares(tiers []tierCapacity) [][]float64 {
	out := make([][]float64, len(tiers))
	left := 1.0
	for i, t := range tiers {
		ceiling := 1.0
		if t.other {
			ceiling = s.Ceiling
		}
		out[i] = pour(min(left, t.available(s.Factor)), t.regions, ceiling)
		left -= sum(out[i])
	}
	if left < negligible {
		return out
	}
	if s.giveBack(tiers, out, left) {
		return out
	}
	var total float64
	for _, row := range out {
		total += sum(row)
	}
	if total > 0 {
		scale(out, 1/total)
	}
	return out
}

// giveBack adds what is left to the own region, by what serves there, and reports
// whether anything does.
func (s Spill) giveBack(tiers []tierCapacity, out [][]float64, left float64) bool {
	var own float64
	for _, t := range tiers {
		if !t.other {
			own += servingSum(t.regions)
		}
	}
	if own == 0 {
		return false
	}
	for i, t := range tiers {
		if t.other {
			continue
		}
		for j, r := range t.regions {
			out[i][j] += left * r.serving / own
		}
	}
	return true
}

// pour spreads an amount over regions by what serves in them, none above the
// ceiling. What does not fit is not in the result.
func pour(amount float64, regions []capacity, ceiling float64) []float64 {
	out := make([]float64, len(regions))
	full := make([]bool, len(regions))
	for amount > 0 {
		var open float64
		for j, r := range regions {
			if !full[j] {
				open += r.serving
			}
		}
		if open == 0 {
			break
		}
		var over float64
		for j, r := range regions {
			if full[j] {
				continue
			}
			out[j] += amount * r.serving / open
			if out[j] >= ceiling {
				over += out[j] - ceiling
				out[j], full[j] = ceiling, true
			}
		}
		amount = over
	}
	return out
}

func servingSum(regions []capacity) float64 {
	var n float64
	for _, r := range regions {
		n += r.serving
	}
	return n
}

func sum(of []float64) float64 {
	var n float64
	for _, x := range of {
		n += x
	}
	return n
}

func scale(all [][]float64, by float64) {
	for _, row := range all {
		for j := range row {
			row[j] *= by
		}
	}
}

// fit returns weights as they are sent: at least 1 each, and with a sum that a
// uint32 holds, which clients insist on.
func fit(weights []float64) []uint32 {
	total := sum(weights)
	limit := float64(math.MaxUint32 - len(weights))
	by := 1.0
	if total > limit {
		by = limit / total
	}
	out := make([]uint32, len(weights))
	for i, w := range weights {
		out[i] = uint32(max(1, math.Floor(w*by)))
	}
	return out
}
