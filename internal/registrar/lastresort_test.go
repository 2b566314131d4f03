package registrar

import (
	"slices"
	"testing"

	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
)

func TestLastResort(t *testing.T) {
	at := func(n int, lapsed bool, h registry.Health) *registry.Endpoint {
		e := endpoint("b", n)
		e.Lapsed, e.Health = lapsed, h
		return &e
	}
	kept := []*registry.Endpoint{at(1, true, registry.Healthy), at(2, true, registry.Healthy)}
	tests := map[string]struct {
		shown []*registry.Endpoint
		want  int
	}{
		"nothing is left":                 {want: 2},
		"something healthy":               {shown: []*registry.Endpoint{at(9, false, registry.Healthy)}},
		"health that was never told":      {shown: []*registry.Endpoint{at(9, false, registry.HealthUnspecified)}},
		"only unhealthy ones":             {shown: []*registry.Endpoint{at(9, false, registry.Unhealthy)}, want: 2},
		"only draining ones":              {shown: []*registry.Endpoint{at(9, false, registry.Draining)}, want: 2},
		"only the last resort itself":     {shown: kept[:1], want: 2},
		"one healthy beside last resorts": {shown: append(slices.Clone(kept), at(9, false, registry.Healthy))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := lastResort(tt.shown, kept); len(got) != tt.want {
				t.Errorf("%d endpoints, want %d", len(got), tt.want)
			}
			have := view.Index{"s": slices.Clone(tt.shown)}
			slices.SortFunc(have["s"], func(a, b *registry.Endpoint) int { return a.Key.Compare(b.Key) })
			have.Merge("s", fallback(have["s"], kept))
			lapsed := 0
			for _, e := range have["s"] {
				if e.Lapsed {
					lapsed++
				}
			}
			if lapsed != tt.want {
				t.Errorf("%d are served, want %d", lapsed, tt.want)
			}
		})
	}
}

// lapse lets region b's lease run out.
func (s *script) lapse() {
	s.t.Helper()
	s.read(1, 0)
	s.pass(2 * beat)
	s.once("it lapses", func() { s.apply(mirrors(liveGone)) })
}

func TestLapsedRegionIsTheLastResort(t *testing.T) {
	s := shownScript(t)
	s.core.lastResort = true
	s.pass(testTTL)
	s.lapse()
	s.want(Lapsed, 0)
	s.once("s2 has nothing left", func() { s.apply(Update{Endpoints: deletes("own", 2, 3)}) })
	s.want(Lapsed, 3)
	for _, e := range s.core.index["s2"] {
		if !e.Lapsed || e.Region != "b" {
			t.Errorf("served: %+v", *e)
		}
	}
	s.during("its keys expire", func() {
		s.apply(Update{Endpoints: deletes("b", 0, 10), Mirrors: []MirrorChange{{Origin: "b", Leaf: LeafState, Deleted: true}}})
	})
	s.want(Lapsed, 3)
	s.once("s2 is back", func() { s.apply(Update{Endpoints: puts("own", 2, 3)}) })
	s.want(Lapsed, 0)
	sick := puts("own", 2, 3)
	sick[0].Endpoint.Health = registry.Unhealthy
	s.once("s2 is unhealthy", func() { s.apply(Update{Endpoints: sick}) })
	s.want(Lapsed, 3)

	s.apply(Update{Endpoints: puts("b", 0, 10), Mirrors: []MirrorChange{liveOn(2), mirrorState(true)}})
	s.once("the region is back", func() { s.read(2, testTTL) })
	s.want(Live, 10)
	if n := s.core.lapsed("s2"); n != 0 || len(s.core.kept) != 0 {
		t.Errorf("%d endpoints of s2 are still its last resort, %d services have one", n, len(s.core.kept))
	}
}

func TestLapsedRegionIsNotKeptByDefault(t *testing.T) {
	s := shownScript(t)
	s.pass(testTTL)
	s.lapse()
	s.apply(Update{Endpoints: deletes("own", 2, 3)})
	s.want(Lapsed, 0)
}

func TestMassDeletionIsNoted(t *testing.T) {
	s := newScript(t)
	s.load(Update{Endpoints: puts("own", 0, 300)})
	s.apply(Update{Endpoints: deletes("own", 0, 99)})
	if len(s.notes) != 0 {
		t.Errorf("99 deletions: %+v", s.notes)
	}
	s.load(Update{Endpoints: puts("own", 250, 300)})
	if len(s.notes) != 1 || s.notes[0].cause != Deleted || s.notes[0].endpoints != 151 || s.notes[0].left != 50 {
		t.Errorf("151 of 201 deletions: %+v", s.notes)
	}
}
