package registrar

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/registry"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// DefaultBlindAfter is three missed proofs of the feed.
	DefaultBlindAfter = 3 * time.Second
	// DefaultWriteTimeout lets a write survive an etcd election, and fail
	// before most callers give up.
	DefaultWriteTimeout = 3 * time.Second
	// DefaultStopTimeout is how long an orderly stop waits for calls under way.
	DefaultStopTimeout = 5 * time.Second
)

// Config says what a Server serves and where.
type Config struct {
	// Origin is the partition that is written, and the own region.
	Origin registry.Origin
	Store  Store
	Feed   Feed
	// Peers tells of outgoing mirrors; nil: there are none.
	Peers Peers
	// Census of the own region, which the feed passes through; nil: one of its
	// own, with the defaults.
	Census *Census
	// Presence of the nodes that report and register here; nil: it is not kept.
	Presence Presence
	// Sweeper tells what would be swept; nil: nothing is.
	Sweeper Sweeper
	// GRPC and HTTP are the listeners to serve on. The server closes them.
	GRPC, HTTP net.Listener
	// TLS for both listeners; nil: plain text.
	TLS *tls.Config
	// HTTPTLS, if it is not nil, is that of the HTTP listener: one that lets
	// probes in, which have no certificate.
	HTTPTLS *tls.Config
	// Access says who may do what; nil: everybody everything.
	Access *access.Policy
	// Limits of each client; the zero value: none.
	Limits access.Limits
	// LastResort keeps the endpoints of a region that lapsed, and serves them,
	// marked, to services that have nothing healthy left.
	LastResort bool
	Log        *slog.Logger
	// Metrics to count in, from NewMetrics; nil: counted and not shown.
	Metrics *Metrics
	// Gatherer is what /metrics shows; nil: nothing.
	Gatherer prometheus.Gatherer

	// BlindAfter is how long the feed may be silent before what it told is no
	// longer taken to be current. 0: DefaultBlindAfter.
	BlindAfter time.Duration
	// WatchBuffer is how many changes may wait for one watcher before it is cut
	// off. 0: view.DefaultBuffer.
	WatchBuffer int
	// WriteTimeout bounds a write, StopTimeout an orderly stop. 0: the
	// defaults.
	WriteTimeout, StopTimeout time.Duration
}

// Validate says in whole sentences what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, sentence string) {
		if !ok {
			errs = append(errs, errors.New(sentence))
		}
	}
	errs = append(errs, registry.ValidateRegion(c.Origin.Region), registry.ValidateCluster(c.Origin.Cluster))
	check(c.Store != nil, "A registrar needs a store to write to.")
	check(c.Feed != nil, "A registrar needs a feed to read from.")
	check(c.GRPC != nil, "A registrar needs a listener for gRPC.")
	check(c.HTTP != nil, "A registrar needs a listener for HTTP.")
	check(c.BlindAfter >= 0, "BlindAfter must not be negative.")
	check(c.WatchBuffer >= 0, "WatchBuffer must not be negative.")
	check(c.WriteTimeout >= 0 && c.StopTimeout >= 0, "Timeouts must not be negative.")
	return errors.Join(errs...)
}

// withDefaults returns c with nothing left open.
func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("component", "registrar", "region", c.Origin.Region)
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	if c.Gatherer == nil {
		c.Gatherer = prometheus.NewRegistry()
	}
	if c.HTTPTLS == nil {
		c.HTTPTLS = c.TLS
	}
	c.BlindAfter = orDefault(c.BlindAfter, DefaultBlindAfter)
	if c.Census == nil {
		c.Census = NewCensus(CensusConfig{Origin: c.Origin, BlindAfter: c.BlindAfter, Log: c.Log})
	}
	c.WriteTimeout = orDefault(c.WriteTimeout, DefaultWriteTimeout)
	c.StopTimeout = orDefault(c.StopTimeout, DefaultStopTimeout)
	return c
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}
