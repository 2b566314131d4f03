package etcd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/aether-federation/aether/registry"
)

// gated is a group whose transactions are committed when the test says so.
type gated struct {
	*group
	began chan []*pending
	end   chan error
}

func newGated() *gated {
	g := &gated{began: make(chan []*pending), end: make(chan error)}
	g.group = newGroup(func(members []*pending) {
		g.began <- members
		err := <-g.end
		for _, p := range members {
			p.done <- result{err: err}
		}
	})
	return g
}

func keyed(keys ...string) []write {
	out := make([]write, len(keys))
	for i, k := range keys {
		out[i] = write{key: k}
	}
	return out
}

// Calls that arrive while all transactions are under way travel together in the
// next, but for those whose key is in one of them.
func TestCallsTravelTogether(t *testing.T) {
	g := newGated()
	var calls sync.WaitGroup
	submit := func(keys ...string) {
		calls.Go(func() {
			if _, err := g.submit(t.Context(), keyed(keys...), false); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range maxInFlight {
		submit(fmt.Sprint("first", i))
		<-g.began
	}
	for i := range 3 {
		submit(fmt.Sprint("next", i))
	}
	submit("first0")
	submit("first0", "other")
	until(t, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.queue) == 5 })
	g.end <- nil
	together := <-g.began
	if n := len(together); n < 3 || n > 4 {
		t.Errorf("%d calls travel together, want 3, and one more if its key came free", n)
	}
	finish := make(chan struct{})
	go func() { calls.Wait(); close(finish) }()
	for ended := false; !ended; {
		select {
		case <-g.began:
		case g.end <- nil:
		case <-finish:
			ended = true
		}
	}
	if g.waiting != 0 || len(g.busy) != 0 || g.inFlight != 0 {
		t.Errorf("left behind: %d waiting, %d busy, %d in flight", g.waiting, len(g.busy), g.inFlight)
	}
}

// A call that ends while it waits is not sent; the queue has a bound.
func TestWaitingCallLeaves(t *testing.T) {
	g := newGated()
	var calls sync.WaitGroup
	for i := range maxInFlight {
		calls.Go(func() { _, _ = g.submit(t.Context(), keyed(fmt.Sprint(i)), false) })
		<-g.began
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := g.submit(ctx, keyed("x"), false)
		left <- err
	}()
	until(t, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.waiting == 1 })
	if _, err := g.submit(t.Context(), make([]write, maxWaiting), false); registry.KindOf(err) != registry.Unavailable {
		t.Errorf("the queue is full, and submit says %v", err)
	}
	cancel()
	if err := <-left; err != context.Canceled {
		t.Errorf("left with %v", err)
	}
	if g.waiting != 0 {
		t.Errorf("%d wait still", g.waiting)
	}
	for range maxInFlight {
		g.end <- nil
	}
	calls.Wait()
}

// until waits for a condition.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("it did not happen")
		case <-tick.C:
		}
	}
}

// Whatever is in the queue, a transaction is within its limits, has no key twice
// and none that is in flight, and keeps the order of each key.
func TestGather(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGroup(nil)
		for range rapid.IntRange(0, 40).Draw(t, "calls") {
			p := &pending{}
			seen := map[string]bool{}
			for range rapid.IntRange(1, 60).Draw(t, "writes") {
				k := fmt.Sprint(rapid.IntRange(0, 400).Draw(t, "key"))
				if !seen[k] {
					p.batch = append(p.batch, write{key: k, value: make([]byte, rapid.SampledFrom([]int{0, 0, 0, 200 << 10}).Draw(t, "size"))})
				}
				seen[k] = true
			}
			g.queue = append(g.queue, p)
			g.waiting += len(p.batch)
		}
		for range rapid.IntRange(0, 5).Draw(t, "busy") {
			g.busy[fmt.Sprint(rapid.IntRange(0, 400).Draw(t, "key"))] = true
		}
		flying := len(g.busy)
		before := g.queue
		members := g.gather()
		n, size, keys := 0, 0, map[string]bool{}
		for _, p := range members {
			n, size = n+len(p.batch), size+p.size()
			for _, w := range p.batch {
				keys[w.key] = true
			}
		}
		if len(keys) != n || len(g.busy) != flying+n || len(members) > 1 && (n > registry.MaxBatch || size > maxBatchBytes) {
			t.Fatalf("%d writes of %d keys and %d bytes, %d busy", n, len(keys), size, len(g.busy))
		}
		waits := map[string]bool{}
		taken := map[*pending]bool{}
		for _, p := range members {
			taken[p] = true
		}
		for _, p := range before {
			for _, w := range p.batch {
				if taken[p] && waits[w.key] {
					t.Fatalf("%s was overtaken", w.key)
				}
				waits[w.key] = waits[w.key] || !taken[p]
			}
		}
		if len(members)+len(g.queue) != len(before) {
			t.Fatal("calls were lost")
		}
	})
}
