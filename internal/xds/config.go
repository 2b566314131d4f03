package xds

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aether-federation/aether/registry"
)

// Config says what a Server serves.
type Config struct {
	// Source of the endpoints: a registrar's view or an agent's.
	Source Source
	// Home returns where clients are that do not say where. While it names no
	// region, such clients are sent away, to come again.
	Home func() Client
	Translation
	Log *slog.Logger
	// Metrics to count in, from NewMetrics; nil: counted and not shown.
	Metrics *Metrics

	// now is the time by which refusals are kept back, but for tests time.Now.
	now func() time.Time
}

// Validate says in whole sentences what is wrong with c.
func (c Config) Validate() error {
	if c.Source == nil || c.Home == nil {
		return errors.Join(sentence("An xDS server needs a source of endpoints, and a home of its clients."), c.Translation.Validate())
	}
	return c.Translation.Validate()
}

// Validate says in whole sentences what is wrong with t.
func (t Translation) Validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, region := range t.RegionOrder {
		if err := registry.ValidateRegion(region); err != nil {
			errs = append(errs, fmt.Errorf("region order: %w", err))
		}
		if seen[region] {
			errs = append(errs, sentence("The region order names %s twice.", region))
		}
		seen[region] = true
	}
	s := t.Spill.withDefaults()
	if s.Factor < 1 || s.Factor > maxFactor {
		errs = append(errs, sentence("The spill factor is %g, and has to be from 1 to %d.", s.Factor, maxFactor))
	}
	if s.Ceiling <= 0 || s.Ceiling > 1 {
		errs = append(errs, sentence("The spill ceiling is %g, and has to be more than 0 and at most 1.", s.Ceiling))
	}
	return errors.Join(errs...)
}

// sentence is an error for whoever wrote a configuration.
func sentence(format string, args ...any) error { return fmt.Errorf(format, args...) }

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("component", "xds")
	if c.Metrics == nil {
		c.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	c.Spill = c.Spill.withDefaults()
	if c.now == nil {
		c.now = time.Now
	}
	return c
}
