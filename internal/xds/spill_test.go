package xds

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// tiersOf reads tiers such as "own 1/2; b 3/3, c 0/1": each region's serving and
// total weight.
func tiersOf(t *testing.T, text string) []tierCapacity {
	t.Helper()
	var tiers []tierCapacity
	for tier := range strings.SplitSeq(text, "; ") {
		var c tierCapacity
		for region := range strings.SplitSeq(tier, ", ") {
			name, of, _ := strings.Cut(region, " ")
			serving, total, _ := strings.Cut(of, "/")
			c.other = name != "own"
			c.regions = append(c.regions, capacity{number(t, serving), number(t, total)})
		}
		tiers = append(tiers, c)
	}
	return tiers
}

func number(t *testing.T, s string) (n float64) {
	t.Helper()
	for _, digit := range s {
		n = n*10 + float64(digit-'0')
	}
	return n
}

// percents writes shares as whole hundredths.
func percents(shares [][]float64) string {
	var tiers []string
	for _, row := range shares {
		var out []string
		for _, share := range row {
			out = append(out, trim(math.Round(100*share)))
		}
		tiers = append(tiers, strings.Join(out, ", "))
	}
	return strings.Join(tiers, "; ")
}

func trim(f float64) string {
	n := int(f)
	if n == 0 {
		return "0"
	}
	var digits string
	for ; n > 0; n /= 10 {
		digits = string(rune('0'+n%10)) + digits
	}
	return digits
}

func TestShares(t *testing.T) {
	half, all := Spill{Factor: 1.4, Ceiling: 0.5}, Spill{Factor: 1.4, Ceiling: 1}
	tests := []struct {
		name        string
		spill       Spill
		tiers, want string
	}{
		{"nothing serves", all, "own 0/2; b 0/3", "0; 0"},
		{"the nearest is whole", all, "own 4/4; b 3/3", "100; 0"},
		{"a little is missing", all, "own 8/10; b 3/3", "100; 0"},
		{"half is missing", all, "own 5/10; b 3/3", "70; 30"},
		{"all of it is missing", all, "own 0/10; b 3/3; c 1/1", "0; 100; 0"},
		{"zone, region and another region", all, "own 1/10; own 5/10; b 9/9", "14; 70; 16"},
		{"the next is ill too", all, "own 1/10; b 1/10; c 9/9", "14; 14; 72"},
		{"the last is ill: what is left returns", all, "own 2/10; b 2/10", "72; 28"},
		{"only others, all of them ill", all, "b 1/10; c 3/10", "25; 75"},

		{"two regions share what the ceiling leaves", half, "own 0/10; b 9/9; c 9/9", "0; 50; 50"},
		{"the ceiling returns what nobody takes", half, "own 2/10; b 9/9", "50; 50"},
		{"the ceiling moves it on", half, "own 1/10; b 9/9; c 9/9", "14; 50; 36"},
		{"one survivor takes all", half, "own 0/10; b 9/9", "0; 100"},
		{"three survivors in order", Spill{Factor: 1.4, Ceiling: 0.4}, "own 0/1; b 9/9; c 9/9; d 9/9", "0; 40; 40; 20"},
		{"regions that are equally far", half, "own 0/10; b 9/9, c 1/1", "0; 50, 50"},
		{"equally far, by weight", Spill{Factor: 1.4, Ceiling: 0.7}, "own 0/10; b 6/6, c 4/4", "0; 60, 40"},
		{"equally far, one at its ceiling", Spill{Factor: 1.4, Ceiling: 0.6}, "own 0/1; b 8/8, c 1/1, d 1/1", "0; 60, 20, 20"},
		{"no overprovisioning", Spill{Factor: 1, Ceiling: 1}, "own 8/10; b 3/3", "80; 20"},
	}
	for _, tt := range tests {
		if got := percents(tt.spill.shares(tiersOf(t, tt.tiers))); got != tt.want {
			t.Errorf("%s: %s: got %s, want %s", tt.name, tt.tiers, got, tt.want)
		}
	}
}

// TestSharesOfAnything: they add up to 1 if anything serves, nobody who does not
// serve has one, and the ceiling holds while the own region serves.
func TestSharesOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Spill{Factor: rapid.Float64Range(1, 3).Draw(t, "factor"), Ceiling: rapid.Float64Range(0.05, 1).Draw(t, "ceiling")}
		var tiers []tierCapacity
		var serving, own float64
		for i := range rapid.IntRange(1, 5).Draw(t, "tiers") {
			tier := tierCapacity{other: i >= 2}
			for range rapid.IntRange(1, 3).Draw(t, "regions") {
				total := rapid.Float64Range(1, 1e9).Draw(t, "total")
				c := capacity{total: total, serving: rapid.SampledFrom([]float64{0, 0.1, 0.5, 1}).Draw(t, "part") * total}
				tier.regions = append(tier.regions, c)
				serving += c.serving
				if !tier.other {
					own += c.serving
				}
			}
			tiers = append(tiers, tier)
		}
		var total float64
		for i, row := range s.shares(tiers) {
			for j, share := range row {
				total += share
				if share < 0 || share > 0 && tiers[i].regions[j].serving == 0 {
					t.Fatalf("share %g of %+v", share, tiers[i].regions[j])
				}
				if tiers[i].other && own > 0 && share > s.Ceiling+1e-6 {
					t.Fatalf("share %g above the ceiling %g", share, s.Ceiling)
				}
			}
		}
		want := 0.0
		if serving > 0 {
			want = 1
		}
		if math.Abs(total-want) > 1e-6 {
			t.Fatalf("shares add up to %g", total)
		}
	})
}
