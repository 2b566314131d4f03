package view

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
)

// reader follows a view through whatever happens to its stream.
type reader struct {
	query registry.Query
	sub   *Subscription
	have  map[registry.Key]registry.Endpoint
}

// holds returns what r has, as a client tells it.
func (r *reader) holds() *Held {
	h := &Held{digests: map[string]uint64{}}
	for k, e := range r.have {
		if r.query.Wants(k.Service) {
			h.digests[k.Service] += wire.Digest(e)
		}
	}
	return h
}

// step does one of the things that a reader does.
func (r *reader) step(t *rapid.T, v *owner) {
	switch rapid.IntRange(0, 3).Draw(t, "step") {
	case 0:
		follow(t, r.sub, r.have)
	case 1: // a part of it
		if d, ok := r.sub.Take(); ok {
			d.applyTo(r.have)
		}
	case 2:
		r.sub.Close()
		r.sub = v.Subscribe(r.query, r.holds())
	case 3:
		r.query = registry.Query{Services: rapid.SliceOfN(rapid.SampledFrom([]string{"s0", "s1", "s2", "none"}), 0, 3).Draw(t, "services")}
		r.sub.Requery(r.query, rapid.Bool().Draw(t, "extend"))
		maps.DeleteFunc(r.have, func(k registry.Key, _ registry.Endpoint) bool { return !r.query.Wants(k.Service) })
	}
}

// applyTo does what a client does with a delivery.
func (d Delivery) applyTo(have map[registry.Key]registry.Endpoint) {
	if d.snapshot != nil {
		maps.DeleteFunc(have, func(k registry.Key, _ registry.Endpoint) bool {
			return !d.partial || slices.Contains(d.replaced, k.Service)
		})
	}
	for c := range d.all() {
		if c.Kind == registry.Put {
			have[c.Endpoint.Key] = *c.Endpoint
		} else {
			delete(have, c.Endpoint.Key)
		}
	}
}

// TestReadersThatResumeEndWithTheView: whatever happens to a stream, whatever was
// deleted meanwhile, and whichever services are asked for in between, a reader
// ends with what the view shows.
func TestReadersThatResumeEndWithTheView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := newOwner(1<<20, puts("own", 0, 4))
		r := &reader{have: map[registry.Key]registry.Endpoint{}}
		r.sub = v.Subscribe(r.query, nil)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "reads") {
				r.step(t, v)
			} else {
				v.tellQuietly(someChanges(t))
			}
		}
		v.flushNow()
		follow(t, r.sub, r.have)
		maps.DeleteFunc(r.have, func(k registry.Key, _ registry.Endpoint) bool { return !r.query.Wants(k.Service) })
		want := v.Snapshot(r.query)
		if want.Len() != len(r.have) {
			t.Fatalf("the reader has %d endpoints, the view %d", len(r.have), want.Len())
		}
		for _, endpoints := range want.Services {
			for _, e := range endpoints {
				if !e.Equal(r.have[e.Key]) {
					t.Fatalf("the reader has %+v, want %+v", r.have[e.Key], *e)
				}
			}
		}
	})
}

func TestWhatDidNotChangeIsNotSentAgain(t *testing.T) {
	one, two := newOwner(100, puts("own", 0, 9)), newOwner(100, puts("own", 0, 8))
	r := &reader{have: map[registry.Key]registry.Endpoint{}}
	first, _ := one.Subscribe(r.query, nil).Take()
	first.applyTo(r.have)
	d, ok := one.Subscribe(r.query, r.holds()).Take()
	if !ok || !d.partial || len(d.replaced) != 0 || d.snapshot.Len() != 0 {
		t.Errorf("at the same registrar: %+v", d)
	}
	gone := endpoint("own", 8).Service
	d, _ = two.Subscribe(r.query, r.holds()).Take()
	if !d.partial || !slices.Equal(d.replaced, []string{gone}) {
		t.Errorf("at another registrar, without an endpoint of %s: %+v", gone, d.replaced)
	}
	d.applyTo(r.have)
	if len(r.have) != 8 {
		t.Errorf("the reader has %d endpoints, want 8", len(r.have))
	}
}

func TestHoldOff(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	changes := []Change{{Kind: registry.Put, Endpoint: &registry.Endpoint{}}}
	tests := map[string]struct {
		added []int
		calm  bool
		due   int
	}{
		"one change":         {added: []int{0}, calm: true, due: 10},
		"two in a moment":    {added: []int{0, 5}, calm: true, due: 15},
		"a burst has an end": {added: []int{0, 9, 18, 27, 36, 45}, calm: true, due: 50},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOutbox()
			for _, ms := range tt.added {
				o.add(changes, at(ms))
			}
			if o.calm != tt.calm || !o.due().Equal(at(tt.due)) {
				t.Errorf("calm %v, due %v after the first", o.calm, o.due().Sub(start))
			}
		})
	}
	o := newOutbox()
	o.flushed = at(0)
	if o.add(changes, at(5)); o.calm {
		t.Error("a change right after another is told at once")
	}
}

func TestRevisionOfAReaderThatHasSeenMore(t *testing.T) {
	for text, want := range map[string]int64{"ABCDEFGH-7-1234": 1234, "": 0, "ABC": 0, "-": 0, "12": 12} {
		if got := SeenAt(text); got != want {
			t.Errorf("SeenAt(%q) = %d, want %d", text, got, want)
		}
	}
	v := newOwner(100, nil)
	go v.Publish(v.ix, nil, 7)
	v.Reach(t.Context(), &Held{seen: 7})
	if !v.hasSeen(7) {
		t.Error("the reader did not wait")
	}
}

// TestReaderAsksWhetherItIsInStep: who asks for what it has already is answered
// once it has all, and with nothing else.
func TestReaderAsksWhetherItIsInStep(t *testing.T) {
	for _, q := range []registry.Query{{}, {Services: []string{"s1", "s2"}}} {
		o := newOwner(100, puts("own", 0, 9))
		sub := o.Subscribe(q, nil)
		sub.Requery(q, true)
		if d, ok := sub.Take(); !ok || d.snapshot == nil || d.marked {
			t.Errorf("first: %+v", d)
		}
		if d, ok := sub.Take(); !ok || !d.marked || len(d.changes) != 0 {
			t.Errorf("then: %+v", d)
		}
		o.tell(puts("b", 0, 3))
		sub.Requery(q, true)
		d, ok := sub.Take()
		if !ok || !d.marked || len(d.changes) == 0 || d.revision == "" {
			t.Errorf("with changes: %+v", d)
		}
		for m := range d.Messages() {
			if !m.GetSynced() || m.GetReset_() || len(m.GetReplaced()) > 0 {
				t.Errorf("sent: %v", m)
			}
		}
		sub.Close()
	}
}
