package access

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/aether-federation/aether/registry"
)

// Limits bound what one client may ask for. Zero: no limit.
type Limits struct {
	// Rate of calls per second, and Burst of calls at once. A call that writes
	// counts once more for each further batch of endpoints.
	Rate  float64
	Burst int
	// Streams open at once.
	Streams int
	// Connections from one address at once.
	Connections int
}

// forgetAfter is how long a client that asks for nothing is remembered; by then
// its allowance is whole again.
const forgetAfter = time.Minute

// Limiter keeps what each client has asked for. It is safe for concurrent use.
type Limiter struct {
	limits Limits

	mu      sync.Mutex
	clients map[string]*client
	swept   time.Time
}

type client struct {
	bucket  *rate.Limiter
	streams int
	seen    time.Time
}

// NewLimiter returns a Limiter that has seen no client.
func NewLimiter(l Limits) *Limiter { return &Limiter{limits: l, clients: map[string]*client{}} }

// Call reports, as a Limited error, that a client has made more calls than it
// may. cost is what the call counts; one larger than the burst counts as that.
func (l *Limiter) Call(who string, cost int, now time.Time) error {
	if l.limits.Rate <= 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of(who, now).bucket.AllowN(now, min(cost, l.limits.Burst)) {
		return nil
	}
	return registry.Errorf(registry.Limited, "%s makes more than %g calls a second: slow down, and try again in a moment", who, l.limits.Rate)
}

// Open counts a stream, which done ends. The error is Limited.
func (l *Limiter) Open(who string, now time.Time) (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of(who, now)
	if l.limits.Streams > 0 && c.streams >= l.limits.Streams {
		return nil, registry.Errorf(registry.Limited, "%s has %d streams open, as many as a client may: watch several services with one", who, c.streams)
	}
	c.streams++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.streams--
	}, nil
}

// of returns the client of that name; l.mu is held.
func (l *Limiter) of(who string, now time.Time) *client {
	l.sweep(now)
	c := l.clients[who]
	if c == nil {
		c = &client{bucket: rate.NewLimiter(rate.Limit(l.limits.Rate), l.limits.Burst)}
		l.clients[who] = c
	}
	c.seen = now
	return c
}

// sweep forgets clients that are gone, now and then.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < forgetAfter {
		return
	}
	l.swept = now
	for who, c := range l.clients {
		if c.streams == 0 && now.Sub(c.seen) >= forgetAfter {
			delete(l.clients, who)
		}
	}
}
