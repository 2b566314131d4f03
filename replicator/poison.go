package replicator

import (
	"maps"
	"slices"
	"sync"
)

// maxPoison bounds how many refused keys are remembered by name.
const maxPoison = 100

// poison remembers the keys whose values the peer refuses.
type poison struct {
	mu     sync.Mutex
	errors map[string]error
}

func newPoison() *poison { return &poison{errors: map[string]error{}} }

func (p *poison) found(key string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errors) < maxPoison {
		p.errors[key] = err
	}
}

// cured forgets a key that the peer has taken.
func (p *poison) cured(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.errors, key)
}

func (p *poison) is(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errors[key] != nil
}

func (p *poison) keys() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.errors))
}
