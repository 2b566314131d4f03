package xds

import (
	"maps"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelClient is a client that keeps what it takes.
type modelClient struct {
	transcript
	names map[string]bool
	has   map[string]string
	nonce string
	// flight is what it has not answered.
	flight *response
}

// look takes the next response, if any.
func (c *modelClient) look() (wait time.Duration) {
	r, wait := c.sub.next(c.now, c.have)
	if r != nil {
		c.flight = r
	}
	return wait
}

// answer takes or refuses what is there to answer.
func (c *modelClient) answer(refuse bool) {
	r := c.flight
	if r == nil {
		return
	}
	c.flight, c.nonce = nil, r.nonce
	if !refuse {
		c.take(r)
	}
	c.say(request{nonce: r.nonce, refused: refuse, reason: "no"})
}

func (c *modelClient) take(r *response) {
	if !c.sub.delta && c.sub.kind.whole() {
		clear(c.has)
	}
	for _, one := range r.resources {
		if c.names[one.name] {
			c.has[one.name] = one.version
		}
	}
	for _, n := range r.removed {
		delete(c.has, n)
	}
}

// say sends a request, which of the state of the world has all names.
func (c *modelClient) say(r request) {
	if !c.sub.delta {
		for n := range c.names {
			r.names = append(r.names, n)
		}
	}
	c.request(r)
}

func (c *modelClient) subscribe(n string, wanted bool) {
	if c.names[n] == wanted {
		return
	}
	r := request{nonce: c.nonce}
	if wanted {
		c.names[n] = true
		r.names = []string{n}
	} else {
		delete(c.names, n)
		delete(c.has, n)
		r.dropped = []string{n}
	}
	if !c.sub.delta {
		r.names, r.dropped = nil, nil
	}
	c.say(r)
}

// TestClientsEndWithWhatThereIs: whatever happens in whatever order, a client that
// takes what it gets at last has what there is of the names that it asks for.
func TestClientsEndWithWhatThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom([]kind{assignments, clusters}).Draw(t, "kind")
		c := &modelClient{
			transcript: transcript{sub: newSubscription(k, rapid.Bool().Draw(t, "delta")), now: time.Unix(0, 0), have: store{}},
			names:      map[string]bool{"a": true}, has: map[string]string{},
		}
		c.say(request{names: []string{"a"}})
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n := name.Draw(t, "name")
				c.have[n] = strconv.Itoa(rapid.IntRange(1, 3).Draw(t, "version"))
				c.touch(n)
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				delete(c.have, n)
				c.touch(n)
			},
			"subscribe": func(t *rapid.T) {
				n, wanted := name.Draw(t, "name"), rapid.Bool().Draw(t, "wanted")
				if len(c.names) > 1 || wanted { // none at all is another question
					c.subscribe(n, wanted)
				}
			},
			"look":   func(*rapid.T) { c.look() },
			"take":   func(*rapid.T) { c.answer(false) },
			"refuse": func(*rapid.T) { c.answer(true) },
			"pass":   func(*rapid.T) { c.now = c.now.Add(700 * time.Millisecond) },
			"again": func(t *rapid.T) {
				if c.flight == nil {
					n := name.Draw(t, "name")
					c.sub.again([]string{n})
				}
			},
		})
		c.settle()
		want := map[string]string{}
		for n := range c.names {
			if v, there := c.have[n]; there {
				want[n] = v
			}
		}
		if !maps.Equal(c.has, want) {
			t.Fatalf("the client has %v, want %v", c.has, want)
		}
	})
}

// settle takes everything until nothing comes any more.
func (c *modelClient) settle() {
	for range 100 {
		c.answer(false)
		wait := c.look()
		if c.flight == nil && wait == 0 {
			return
		}
		c.now = c.now.Add(wait)
	}
	panic("responses never end")
}
