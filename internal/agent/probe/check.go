package probe

import (
	"net/netip"
	"strings"
	"time"

	"github.com/aether-federation/aether/registry"
)

// Kind is how an endpoint is asked.
type Kind string

// The kinds of checks.
const (
	// TCP: a connection can be made.
	TCP Kind = "tcp"
	// HTTP: a GET is answered with a status that is wanted.
	HTTP Kind = "http"
	// GRPC: the standard health service says SERVING.
	GRPC Kind = "grpc"
)

// Defaults of what a check does not say.
const (
	DefaultInterval = 5 * time.Second
	DefaultTimeout  = 2 * time.Second
	DefaultRise     = 2
	DefaultFall     = 3

	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	maxInARow   = 100
)

// Check says how one endpoint is asked, and what its answers are taken for.
type Check struct {
	Kind Kind
	// Target is the address that is asked.
	Target netip.AddrPort
	// Path of HTTP's request; empty means /.
	Path string
	// Host of HTTP's request, and the name in the certificate with TLS; empty: the
	// address.
	Host string
	// StatusFrom to StatusTo are the HTTP statuses of an endpoint that is well; both
	// zero: 200 to 399. Redirects are not followed.
	StatusFrom, StatusTo int
	// TLS is used by HTTP and GRPC; with SkipVerify whoever answers is believed.
	TLS, SkipVerify bool
	// Service is what GRPC asks for; empty: the server as a whole.
	Service string

	// Interval between two questions, a tenth more or less; Timeout of one.
	Interval, Timeout time.Duration
	// Rise successes in a row make an endpoint healthy, Fall failures unhealthy. The
	// first answer of an endpoint of which nothing is known decides at once.
	Rise, Fall int
}

// WithDefaults returns c with what it does not say filled in. A timeout that is
// not given is no longer than the interval.
func (c Check) WithDefaults() Check {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = min(DefaultTimeout, c.Interval)
	}
	if c.Rise == 0 {
		c.Rise = DefaultRise
	}
	if c.Fall == 0 {
		c.Fall = DefaultFall
	}
	if c.Kind == HTTP && c.Path == "" {
		c.Path = "/"
	}
	if c.Kind == HTTP && c.StatusFrom == 0 && c.StatusTo == 0 {
		c.StatusFrom, c.StatusTo = 200, 399
	}
	return c
}

// Validate returns an Invalid error, which names the field, unless c, with its
// defaults, can be carried out.
func (c Check) Validate() error {
	switch c.Kind {
	case TCP, HTTP, GRPC:
	default:
		return registry.Invalidf("type", "%q is unknown: use tcp, http or grpc", c.Kind)
	}
	if !c.Target.IsValid() || c.Target.Port() == 0 {
		return registry.Invalidf("port", "there is nothing to ask: name the port")
	}
	if err := c.validateForeign(); err != nil {
		return err
	}
	if err := c.validateHTTP(); err != nil {
		return err
	}
	return c.validateTimes()
}

// validateForeign refuses what belongs to checks of another kind.
func (c Check) validateForeign() error {
	switch {
	case c.Kind != HTTP && (c.Path != "" || c.StatusFrom != 0 || c.StatusTo != 0):
		return registry.Invalidf("path", "path and status are for checks of type http")
	case c.Kind != GRPC && c.Service != "":
		return registry.Invalidf("service", "is for checks of type grpc")
	case c.Kind == TCP && (c.TLS || c.SkipVerify || c.Host != ""):
		return registry.Invalidf("tls", "tls, tls-skip-verify and host are for checks of type http or grpc")
	case c.SkipVerify && !c.TLS:
		return registry.Invalidf("tls-skip-verify", "there is no TLS to verify: set tls too")
	}
	return nil
}

func (c Check) validateHTTP() error {
	if c.Kind != HTTP {
		return nil
	}
	if !strings.HasPrefix(c.Path, "/") || strings.ContainsAny(c.Path, " \r\n") {
		return registry.Invalidf("path", "%q is no path: begin it with /", c.Path)
	}
	if c.StatusFrom < 100 || c.StatusTo > 599 || c.StatusFrom > c.StatusTo {
		return registry.Invalidf("status", "%d-%d is no range of HTTP statuses: use for example 200-299", c.StatusFrom, c.StatusTo)
	}
	return nil
}

func (c Check) validateTimes() error {
	if c.Interval < minInterval || c.Interval > maxInterval {
		return registry.Invalidf("interval", "is %v: use %v to %v", c.Interval, minInterval, maxInterval)
	}
	if c.Timeout <= 0 || c.Timeout > c.Interval {
		return registry.Invalidf("timeout", "is %v: use more than 0 and at most the interval, %v", c.Timeout, c.Interval)
	}
	if c.Rise < 1 || c.Rise > maxInARow {
		return registry.Invalidf("rise", "is %d: use 1 to %d", c.Rise, maxInARow)
	}
	if c.Fall < 1 || c.Fall > maxInARow {
		return registry.Invalidf("fall", "is %d: use 1 to %d", c.Fall, maxInARow)
	}
	return nil
}
