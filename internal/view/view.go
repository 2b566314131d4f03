package view

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aether-federation/aether/registry"
)

// DefaultBuffer is some seconds of a whole region's changes.
const DefaultBuffer = 65536

// Config of a View. The zero value is one.
type Config struct {
	// Buffer is how many changes may wait for one reader before it is cut off.
	// 0: DefaultBuffer.
	Buffer int
	// CutOff is called, if it is not nil, with each reader that is cut off. It
	// must not block.
	CutOff func()
}

// View is endpoints in memory, in versions. Readers see one version of it, whole;
// a version is never changed, only followed by the next. Who decides what is in it
// publishes changes to it.
type View struct {
	buffer int
	cutOff func()
	// instance makes revisions of two views differ.
	instance  string
	encodings *encodings

	mu      sync.RWMutex
	index   Index
	version uint64
	// seen is the store's revision that was told, changed that of version.
	seen, changed int64
	fan           fan
	outbox        outbox
	digests       digests
}

// New returns a view of nothing.
func New(c Config) *View {
	v := &View{
		buffer: c.Buffer, cutOff: c.CutOff, instance: rand.Text()[:8], encodings: newEncodings(),
		index: Index{}, fan: newFan(), outbox: newOutbox(), digests: digests{},
	}
	if v.buffer == 0 {
		v.buffer = DefaultBuffer
	}
	if v.cutOff == nil {
		v.cutOff = func() {}
	}
	return v
}

// Forget says that the store may be another: no revision of it was seen.
func (v *View) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = 0
}

// Publish makes changes, sorted by service, the next version: of the services in
// them the view has from now on what ix has. With them it is what its store held
// at the revision seen, or later; 0: at no later one than before. Subscribers are
// told soon, while Run runs. Without changes there is no new version.
func (v *View) Publish(ix Index, changes []Change, seen int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = max(v.seen, seen)
	if len(changes) == 0 {
		return
	}
	for batch := range ByService(changes) {
		service := batch[0].Endpoint.Service
		v.index.set(service, ix[service])
	}
	v.version++
	v.changed = v.seen
	now := time.Now()
	v.outbox.add(changes, now)
	if v.outbox.calm {
		v.flush(now)
	}
}

// revision names the current version; v.mu is held.
func (v *View) revision() registry.Revision {
	return registry.Revision(v.instance + "-" + strconv.FormatUint(v.version, 10) + "-" + strconv.FormatInt(v.changed, 10))
}

// Snapshot is one version of the part of a view that was asked for. Its slices
// are shared: they are read only.
type Snapshot struct {
	// Services in the order of their names, each sorted by key.
	Services [][]*registry.Endpoint
	Revision registry.Revision
}

// Len returns the number of endpoints.
func (s Snapshot) Len() int {
	n := 0
	for _, endpoints := range s.Services {
		n += len(endpoints)
	}
	return n
}

// Snapshot returns what q asks for.
func (v *View) Snapshot(q registry.Query) Snapshot {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.snapshot(q)
}

// Service returns the endpoints of one service, sorted by key; none if there is no
// such service. The slice is shared: it is read only.
func (v *View) Service(name string) []*registry.Endpoint {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.index[name]
}

// snapshot is Snapshot with v.mu held.
func (v *View) snapshot(q registry.Query) Snapshot {
	names := q.Services
	if len(names) == 0 {
		names = slices.Collect(maps.Keys(v.index))
	}
	return v.snapshotOf(names)
}

// snapshotOf returns the named services; v.mu is held.
func (v *View) snapshotOf(names []string) Snapshot {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	s := Snapshot{Revision: v.revision(), Services: make([][]*registry.Endpoint, 0, len(names))}
	for _, name := range names {
		if endpoints := v.index[name]; len(endpoints) > 0 {
			s.Services = append(s.Services, endpoints)
		}
	}
	return s
}

// Stats tells the version and the number of subscribers.
func (v *View) Stats() (version uint64, subscribers int) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.version, v.fan.len()
}

// Watch calls fn as said of [registry.Registry], from the goroutine that called
// it, until ctx ends or fn returns an error. Endpoints are shared: they are read
// only.
func (v *View) Watch(ctx context.Context, q registry.Query, fn func(registry.Event) error) error {
	sub := v.Subscribe(q, nil)
	defer sub.Close()
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if err := d.tell(fn); err != nil {
			return err
		}
	}
}

// tell calls fn with each of a delivery's events. A delivery to a reader that
// holds nothing is never partial.
func (d Delivery) tell(fn func(registry.Event) error) error {
	if d.snapshot != nil {
		if err := fn(registry.Event{Kind: registry.Reset}); err != nil {
			return err
		}
	}
	for c := range d.all() {
		e := registry.Event{Kind: c.Kind, Endpoint: *c.Endpoint, Revision: d.revision}
		if c.Kind == registry.Delete {
			e.Endpoint = registry.Endpoint{Key: c.Endpoint.Key}
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	if d.snapshot != nil {
		return fn(registry.Event{Kind: registry.Synced, Revision: d.revision})
	}
	return nil
}

// Under reports whether there are services whose names end in "." and domain.
func (v *View) Under(domain string) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for service := range v.index {
		if strings.HasSuffix(service, domain) && len(service) > len(domain) && service[len(service)-len(domain)-1] == '.' {
			return true
		}
	}
	return false
}
