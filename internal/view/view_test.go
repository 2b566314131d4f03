package view

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
)

// owner decides what is in a view, by being told.
type owner struct {
	*View
	ix Index
}

func newOwner(buffer int, changes []Change) *owner {
	o := &owner{View: New(Config{Buffer: buffer}), ix: Index{}}
	o.tell(changes)
	return o
}

// tell publishes changes and tells the subscribers.
func (o *owner) tell(changes []Change) {
	o.tellQuietly(changes)
	o.flushNow()
}

// tellQuietly publishes changes, in any order; subscribers may be told later.
func (o *owner) tellQuietly(changes []Change) {
	changes = Latest([][]Change{changes, nil}, len(changes))
	slices.SortFunc(changes, CompareChanges)
	var effective []Change
	for batch := range ByService(changes) {
		effective = append(effective, o.ix.Merge(batch[0].Endpoint.Service, batch)...)
	}
	o.Publish(o.ix, effective, 0)
}

func (o *owner) flushNow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush(time.Now())
}

// endpoint returns the nth one, of service s0, s1 or s2.
func endpoint(region string, n int) *registry.Endpoint {
	return &registry.Endpoint{Key: registry.Key{
		Origin: registry.Origin{Region: region, Cluster: "c1"}, Service: fmt.Sprintf("s%d", n%3), Protocol: registry.HTTP,
		IP: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
	}, Weight: 1}
}

func puts(region string, from, to int) (changes []Change) {
	for n := from; n < to; n++ {
		changes = append(changes, Change{Kind: registry.Put, Endpoint: endpoint(region, n)})
	}
	return changes
}

func deletes(region string, from, to int) (changes []Change) {
	for n := from; n < to; n++ {
		changes = append(changes, Change{Kind: registry.Delete, Endpoint: endpoint(region, n)})
	}
	return changes
}

func keysOf(s Snapshot) []registry.Key {
	var keys []registry.Key
	for _, endpoints := range s.Services {
		for _, e := range endpoints {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// follow applies what sub tells until it has caught up.
func follow(t *rapid.T, sub *Subscription, have map[registry.Key]registry.Endpoint) {
	for {
		d, ok := sub.Take()
		if !ok {
			return
		}
		d.applyTo(have)
		if d.revision == "" {
			t.Fatal("a delivery without a revision")
		}
	}
}

// TestSubscribersEndWithTheView writes at random and lets readers follow at
// random: in the end each has what a snapshot shows.
func TestSubscribersEndWithTheView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := newOwner(1<<20, puts("own", 0, 4))
		queries := []registry.Query{{}, {Services: []string{"s0"}}, {Services: []string{"s2", "s1", "s1", "none"}}}
		subs := make([]*Subscription, len(queries))
		have := make([]map[registry.Key]registry.Endpoint, len(queries))
		for i, q := range queries {
			subs[i], have[i] = v.Subscribe(q, nil), map[registry.Key]registry.Endpoint{}
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if i := rapid.IntRange(0, 2*len(subs)).Draw(t, "reader"); i < len(subs) {
				follow(t, subs[i], have[i])
				continue
			}
			v.tell(someChanges(t))
		}
		for i, q := range queries {
			follow(t, subs[i], have[i])
			got := slices.SortedFunc(maps.Keys(have[i]), registry.Key.Compare)
			if diff := cmp.Diff(keysOf(v.Snapshot(q)), got, cmp.Comparer(func(a, b registry.Key) bool { return a == b })); diff != "" {
				t.Fatalf("reader of %v: %s", q, diff)
			}
			for _, endpoints := range v.Snapshot(q).Services {
				for _, e := range endpoints {
					if !e.Equal(have[i][e.Key]) {
						t.Fatalf("reader of %v has %+v, want %+v", q, have[i][e.Key], *e)
					}
				}
			}
			subs[i].Close()
		}
		if n := v.fan.len(); n != 0 || len(v.fan.byService) != 0 {
			t.Fatalf("%d subscriptions are left, %d services", n, len(v.fan.byService))
		}
	})
}

func someChanges(t *rapid.T) []Change {
	changes := make([]Change, rapid.IntRange(0, 6).Draw(t, "changes"))
	for i := range changes {
		changes[i].Kind = registry.Put
		changes[i].Endpoint = endpoint("own", rapid.IntRange(0, 9).Draw(t, "endpoint"))
		if rapid.Bool().Draw(t, "delete") {
			changes[i].Kind = registry.Delete
		}
		changes[i].Endpoint.Weight = rapid.Uint32Range(1, 3).Draw(t, "weight")
	}
	return changes
}

func TestReaderThatIsBehindIsCutOff(t *testing.T) {
	v := newOwner(5, nil)
	slow, other := v.Subscribe(registry.Query{}, nil), v.Subscribe(registry.Query{Services: []string{"s0"}}, nil)
	slow.Take()
	v.tell(puts("own", 0, 100))
	select {
	case <-slow.cutoff:
		t.Fatal("one version, however large, is too much")
	default:
	}
	v.tell(deletes("own", 1, 2))
	if _, err := slow.Next(t.Context()); registry.KindOf(err) != registry.SlowReader {
		t.Errorf("next: %v", err)
	}
	if _, err := other.Next(t.Context()); err != nil {
		t.Errorf("the other reader: %v", err)
	}
	slow.Requery(registry.Query{}, false) // harmless by now
	slow.Close()
	other.Close()
	if n := v.fan.len(); n != 0 {
		t.Errorf("%d subscriptions are left", n)
	}
}

func TestDeletionOfWhatWasNeverToldIsTold(t *testing.T) {
	v := newOwner(100, nil)
	sub := v.Subscribe(registry.Query{}, nil)
	defer sub.Close()
	sub.Take()
	v.tell(puts("own", 0, 1))
	v.tell(deletes("own", 0, 1))
	d, _ := sub.Take()
	if len(d.changes) != 1 || d.changes[0].Kind != registry.Delete {
		t.Errorf("told %v", d.changes)
	}
}

func BenchmarkListOfFifty(b *testing.B) {
	v := newOwner(0, puts("own", 0, 150))
	q := registry.Query{Services: []string{"s1"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := proto.Marshal(v.Snapshot(q).List(nil)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChangeWithManySubscribers(b *testing.B) {
	v := newOwner(1<<30, puts("own", 0, 300))
	for range 1000 {
		defer v.Subscribe(registry.Query{Services: []string{"s1"}}, nil).Close()
	}
	b.ReportAllocs()
	n := uint32(0)
	for b.Loop() {
		n++
		e := endpoint("own", 1)
		e.Weight = n
		v.tell([]Change{{Kind: registry.Put, Endpoint: e}})
	}
}
