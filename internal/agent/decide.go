package agent

import (
	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/internal/agent/report"
	"github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/registry"
)

// phase is how far a node is on its way out.
type phase uint8

const (
	running phase = iota
	// draining: everything is announced as draining.
	draining
	// gone: nothing is announced.
	gone
)

// String returns the phase for people.
func (p phase) String() string {
	switch p {
	case draining:
		return "draining"
	case gone:
		return "gone"
	default:
		return "running"
	}
}

// situation is all that decides what a node announces.
type situation struct {
	node    string
	sources source.State
	// verdicts stand as they were while the machine suspects itself, so that the rest
	// goes on: a drain that somebody asks for, a file that changes.
	verdicts map[registry.Key]probe.Verdict
	// given are the healths that win over all others.
	given map[registry.Key]registry.Health
	phase phase
	// started: this process has announced its full set before. Until then each
	// endpoint that is probed must have been asked; after that, one that is new is
	// left out until it has.
	started bool
}

// announce decides what the node announces.
func (s situation) announce() report.Announcement {
	if s.phase == gone {
		return report.Announcement{Known: true}
	}
	if !s.sources.Known {
		return report.Announcement{}
	}
	out := report.Announcement{Known: true, Endpoints: make([]registry.Endpoint, 0, len(s.sources.Declared))}
	for _, d := range s.sources.Declared {
		v := s.verdicts[d.Endpoint.Key]
		if d.Check != nil && !s.started && v.Last.At.IsZero() && s.phase == running {
			return report.Announcement{}
		}
		if d.Check != nil && !v.Known {
			if !s.started {
				return report.Announcement{}
			}
			continue
		}
		e := d.Endpoint
		e.Node, e.Health = s.node, s.health(d, v)
		out.Endpoints = append(out.Endpoints, e)
	}
	return out
}

// health is what is announced of one endpoint.
func (s situation) health(d source.Declared, v probe.Verdict) registry.Health {
	given, isGiven := s.given[d.Endpoint.Key]
	switch {
	case s.phase == draining:
		return registry.Draining
	case isGiven:
		return given
	case d.Endpoint.Health == registry.Draining || d.Endpoint.Health == registry.Unhealthy:
		return d.Endpoint.Health
	case d.Check != nil && !v.Healthy:
		return registry.Unhealthy
	default:
		return registry.Healthy
	}
}
