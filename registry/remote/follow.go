package remote

import (
	"context"
	"iter"
	"maps"

	"github.com/aether-federation/aether/registry"
)

// Follow is Watch that outlives the registrar: it watches again when the stream
// ends, at whichever registrar of the same region the target leads to, says what
// it holds, and is told what differs. So fn is called with a Reset once, before
// the first Put; then with the first snapshot and a Synced; and from then on only
// with what has really changed, a Delete for each endpoint that is gone, whether
// the registrar remembers it or not, and a Synced whenever it is in step again.
// While no registrar answers, fn is not called: what was told last stands.
//
// interrupted, if it is not nil, is called with each error that a stream ended
// with, before the next attempt. Follow ends with ctx's error, with fn's, and
// with one that another attempt cannot mend: Invalid, Denied and NotFound among
// them. It keeps every endpoint that it told in memory; Keep is for those who do
// that themselves.
func (r *Registry) Follow(ctx context.Context, q registry.Query, fn func(registry.Event) error, interrupted func(error)) error {
	m := &memory{fn: fn, services: map[string]staged{}}
	return r.Keep(ctx, Following{Query: q, Held: m, Tell: m.tell, Interrupted: interrupted})
}

// memory is what a Follow has told.
type memory struct {
	fn       func(registry.Event) error
	services map[string]staged
	revision registry.Revision
}

// tell remembers a step and tells it.
func (m *memory) tell(step Step) error {
	if m.revision == "" {
		if err := m.fn(registry.Event{Kind: registry.Reset}); err != nil {
			return err
		}
	}
	m.revision = step.Revision
	for _, c := range step.Changes {
		m.remember(c)
		if err := m.fn(registry.Event{Kind: c.Kind, Endpoint: *c.Endpoint, Revision: step.Revision}); err != nil {
			return err
		}
	}
	if step.Synced {
		return m.fn(registry.Event{Kind: registry.Synced, Revision: step.Revision})
	}
	return nil
}

func (m *memory) remember(c Change) {
	service, key := c.Endpoint.Service, c.Endpoint.Key
	if c.Kind == registry.Put {
		if m.services[service] == nil {
			m.services[service] = staged{}
		}
		m.services[service][key] = c.Endpoint
		return
	}
	if delete(m.services[service], key); len(m.services[service]) == 0 {
		delete(m.services, service)
	}
}

// Revision implements Held, as do the methods below.
func (m *memory) Revision() registry.Revision { return m.revision }

func (m *memory) Services() iter.Seq[string] { return maps.Keys(m.services) }

func (m *memory) Endpoints(service string) iter.Seq[*registry.Endpoint] {
	return maps.Values(m.services[service])
}
