package crew

import (
	"testing"
	"time"

	"github.com/aether-federation/aether/registry"
)

func TestViewTellsWhatItLost(t *testing.T) {
	c := Config{Origin: registry.Origin{Region: "a", Cluster: "c1"}, Number: 3}
	own := c.endpoints(0)
	fixed, moving := own[0], own[len(own)-1]
	draining := fixed
	draining.Health = registry.Draining
	put := func(e registry.Endpoint) registry.Event { return registry.Event{Kind: registry.Put, Endpoint: e} }
	gone := func(e registry.Endpoint) registry.Event {
		return registry.Event{Kind: registry.Delete, Endpoint: registry.Endpoint{Key: e.Key}}
	}
	for name, tt := range map[string]struct {
		events []registry.Event
		lost   string
	}{
		"nothing":              {events: []registry.Event{put(fixed), put(moving), put(fixed)}},
		"what moves may go":    {events: []registry.Event{put(fixed), put(moving), gone(moving)}},
		"gone":                 {events: []registry.Event{put(fixed), gone(fixed)}, lost: "deleted"},
		"gone twice is once":   {events: []registry.Event{put(fixed), gone(fixed), gone(fixed)}, lost: "deleted"},
		"not fit to serve":     {events: []registry.Event{put(fixed), put(draining), put(draining)}, lost: "not fit to serve"},
		"forgotten, all of it": {events: []registry.Event{put(fixed), {Kind: registry.Reset}}, lost: "reset"},
	} {
		t.Run(name, func(t *testing.T) {
			v := view{known: map[registry.Key]registry.Endpoint{}}
			for _, e := range tt.events {
				v.take(e, time.Time{})
			}
			switch {
			case tt.lost == "" && len(v.losses) > 0:
				t.Errorf("lost %v", v.losses)
			case tt.lost != "" && (len(v.losses) != 1 || v.losses[0].What != tt.lost || v.losses[0].Node != "n3"):
				t.Errorf("lost %v, want one: %s", v.losses, tt.lost)
			}
		})
	}
}

// What a node changes has another address or another generation each time, and
// what it does not is always the same.
func TestEndpointsChangeOneByOne(t *testing.T) {
	c := Config{Origin: registry.Origin{Region: "a", Cluster: "c1"}, Number: 3}
	for n := range 1000 {
		before, after, differ := c.endpoints(n), c.endpoints(n+1), 0
		for i := range before {
			if !before[i].Equal(after[i]) {
				differ++
				if Stable(Line(before[i])) {
					t.Fatalf("change %d is of %s", n, Line(before[i]))
				}
			}
		}
		if differ != 1 {
			t.Fatalf("change %d is of %d endpoints, want 1", n, differ)
		}
	}
}
