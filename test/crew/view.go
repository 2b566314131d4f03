package crew

import (
	"slices"
	"strings"
	"time"

	"github.com/aether-federation/aether/registry"
)

// view is what a member was told, and what it lost by it.
type view struct {
	known  map[registry.Key]registry.Endpoint
	synced bool
	losses []Loss
}

// take takes one event at the time now.
func (v *view) take(e registry.Event, now time.Time) {
	switch e.Kind {
	case registry.Reset:
		for _, was := range v.known {
			v.lost(was, "reset", now)
		}
		v.known = map[registry.Key]registry.Endpoint{}
	case registry.Put:
		was, known := v.known[e.Endpoint.Key]
		if known && was.Health.Serving() && !was.Lapsed && (!e.Endpoint.Health.Serving() || e.Endpoint.Lapsed) {
			v.lost(was, "not fit to serve", now)
		}
		v.known[e.Endpoint.Key] = e.Endpoint
	case registry.Delete:
		if was, known := v.known[e.Endpoint.Key]; known {
			v.lost(was, "deleted", now)
		}
		delete(v.known, e.Endpoint.Key)
	case registry.Synced:
		v.synced = true
	}
}

func (v *view) lost(e registry.Endpoint, what string, now time.Time) {
	if strings.HasPrefix(e.Service, stablePrefix) {
		v.losses = append(v.losses, Loss{At: now, Line: Line(e), Region: e.Region, Node: e.Node, What: what})
	}
}

func (v *view) lines() []string {
	out := make([]string, 0, len(v.known))
	for _, e := range v.known {
		out = append(out, Line(e))
	}
	slices.Sort(out)
	return out
}
