package report

import (
	"errors"
	"testing"
	"time"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

func TestRival(t *testing.T) {
	a, b := endpointOf(1, registry.Healthy), endpointOf(2, registry.Healthy)
	held := errors.New("held")
	ill := a
	ill.Health = registry.Unhealthy
	with := func(e ...registry.Endpoint) Announcement { return Announcement{Known: true, Endpoints: e} }
	changed := func(written, removed int) remote.Reported {
		return remote.Reported{Outcome: registry.Outcome{Written: written, Removed: removed}}
	}
	type step struct {
		a      Announcement
		answer remote.Reported
	}
	for name, c := range map[string]struct {
		steps []step
		want  bool
	}{
		"an agent that starts":       {[]step{{with(a, b), changed(2, 5)}, {with(a, b), changed(0, 0)}}, false},
		"own changes":                {[]step{{with(a), changed(1, 0)}, {with(ill), changed(1, 0)}, {with(a), changed(1, 0)}, {with(b), changed(1, 1)}, {with(a, b), changed(1, 0)}}, false},
		"a registry that was lost":   {[]step{{with(a), changed(1, 0)}, {with(a), changed(1, 0)}, {with(a), changed(0, 0)}}, false},
		"presence alone":             {[]step{{with(a), changed(1, 0)}, {Announcement{}, changed(9, 9)}, {Announcement{}, changed(9, 9)}, {Announcement{}, changed(9, 9)}}, false},
		"another agent":              {[]step{{with(a), changed(1, 0)}, {with(a), changed(1, 1)}, {with(a), changed(0, 0)}, {with(a), changed(1, 1)}, {with(a), changed(0, 1)}}, true},
		"another, and own changes":   {[]step{{with(a), changed(1, 0)}, {with(ill), changed(1, 1)}, {with(a), changed(2, 1)}, {with(ill), changed(1, 1)}}, true},
		"conflicts that end one day": {[]step{{with(a, b), remote.Reported{Outcome: registry.Outcome{Conflicts: map[int]error{0: held, 1: held}}}}, {with(a, b), changed(2, 0)}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var r rival
			for _, s := range c.steps {
				r.took(s.a, s.answer, time.Now())
			}
			if r.since.IsZero() == c.want {
				t.Errorf("a rival since %v, want one: %v", r.since, c.want)
			}
			for range rivalWithin {
				r.took(r.last, remote.Reported{}, time.Now())
			}
			if !r.since.IsZero() {
				t.Error("the rival is gone, and still suspected")
			}
		})
	}
}

// TestTwoAgentsOfOneName: both find out.
func TestTwoAgentsOfOneName(t *testing.T) {
	registrar := newFake()
	var both [2]*Reporter
	for i := range both {
		both[i] = New(Config{Node: "n1", Registrar: registrar})
		both[i].Announce(Announcement{Known: true, Endpoints: []registry.Endpoint{endpointOf(i+1, registry.Healthy)}})
	}
	for range rivalFrom + 1 {
		for _, r := range both {
			if _, err := r.send(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, r := range both {
		if r.Status().Rival.IsZero() {
			t.Errorf("agent %d does not know of the other", i)
		}
	}
}
