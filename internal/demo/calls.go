package demo

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry"
)

const (
	callInterval = 20 * time.Millisecond
	callTimeout  = time.Second
)

// calls is the client of the story: it learns the service's endpoints from its
// region's registrar and calls one after the other, those of its own region
// first.
type calls struct {
	home *region
	http *http.Client

	mu        sync.Mutex
	endpoints []registry.Endpoint
	// last is the region that answered the last call, empty if none did.
	last          string
	total, failed int
	// changed is closed when the answering region changes, and replaced.
	changed chan struct{}
}

func newCalls(home *region) *calls {
	return &calls{
		home:    home,
		http:    &http.Client{Timeout: callTimeout, Transport: &http.Transport{}},
		changed: make(chan struct{}),
	}
}

// run calls until ctx ends.
func (c *calls) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return follow(ctx, c.home.client, func(now map[registry.Key]registry.Endpoint) error {
			c.learn(preferred(now, c.home.name))
			return nil
		})
	})
	g.Go(func() error {
		defer c.http.CloseIdleConnections()
		tick := time.NewTicker(callInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
				c.call(ctx)
			}
		}
	})
	if err := g.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// preferred returns the endpoints that can be called, those of home first, then
// by region.
func preferred(endpoints map[registry.Key]registry.Endpoint, home string) []registry.Endpoint {
	out := make([]registry.Endpoint, 0, len(endpoints))
	for _, e := range endpoints {
		if e.Health.Serving() && len(e.Ports) > 0 {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b registry.Endpoint) int {
		if (a.Region == home) != (b.Region == home) {
			if a.Region == home {
				return -1
			}
			return 1
		}
		return a.Key.Compare(b.Key)
	})
	return out
}

func (c *calls) learn(endpoints []registry.Endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints = endpoints
}

// call makes one call: it has failed only if no endpoint answered it.
func (c *calls) call(ctx context.Context) {
	c.mu.Lock()
	endpoints := c.endpoints
	c.mu.Unlock()
	if len(endpoints) == 0 {
		return
	}
	for _, e := range endpoints {
		if region, ok := c.try(ctx, e); ok {
			c.count(region)
			return
		}
	}
	if ctx.Err() == nil {
		c.count("")
	}
}

func (c *calls) try(ctx context.Context, e registry.Endpoint) (region string, ok bool) {
	target := netip.AddrPortFrom(e.IP, e.Ports[0].Number)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target.String(), nil)
	if err != nil {
		return "", false
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", false
	}
	_ = resp.Body.Close() // the header is all that is wanted
	return resp.Header.Get(regionHeader), resp.StatusCode == http.StatusOK
}

func (c *calls) count(region string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total++
	if region == "" {
		c.failed++
	}
	if region != c.last {
		c.last = region
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// answering returns who answered last and a channel that closes when that
// changes.
func (c *calls) answering() (region string, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.changed
}

func (c *calls) counts() (total, failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total, c.failed
}

// awaitAnswer waits until calls are answered by a region that cond accepts.
func (c *calls) awaitAnswer(ctx context.Context, cond func(region string) bool) error {
	for {
		region, changed := c.answering()
		if region != "" && cond(region) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
