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
	// Home is where clients are that do not say where.
	Home Client
	Translation
	Log *slog.Logger
	// Metrics to count in, from NewMetrics; nil: counted and not shown.
	Metrics *Metrics

	// now is the time by which refusals are kept back, but for tests time.Now.
	now func() time.Time
}

// Validate says in whole sentences what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.Source == nil {
		errs = append(errs, errors.New("An xDS server needs a source of endpoints."))
	}
	return errors.Join(append(errs, c.Translation.Validate())...)
}

// Validate says in whole sentences what is wrong with t.
func (t Translation) Validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, region := range t.RegionOrder {
		if err := registry.ValidateRegion(region); err != nil {
			errs = append(errs, err)
		}
		if seen[region] {
			errs = append(errs, fmt.Errorf("Region %s is in the order twice.", region))
		}
		seen[region] = true
	}
	s := t.Spill.withDefaults()
	if s.Factor < 1 || s.Factor > MaxFactor {
		errs = append(errs, fmt.Errorf("The spill factor %g is not from 1 to %d.", s.Factor, MaxFactor))
	}
	if s.Ceiling <= 0 || s.Ceiling > 1 {
		errs = append(errs, fmt.Errorf("The spill ceiling %g is not more than 0 and at most 1.", s.Ceiling))
	}
	return errors.Join(errs...)
}

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
