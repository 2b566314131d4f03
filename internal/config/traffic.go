package config

import (
	"errors"
	"fmt"

	"github.com/aether-federation/aether/internal/xds"
	"github.com/aether-federation/aether/registry"
)

// Translation says how endpoints are put in order for clients of xDS.
func (c Registrar) Translation() xds.Translation {
	return xds.Translation{
		RegionOrder: c.RegionOrder, Spill: xds.Spill{Factor: c.SpillFactor, Ceiling: c.SpillCeiling},
	}
}

func (c Registrar) validateTraffic() error {
	var errs []error
	if c.Network != "" {
		errs = append(errs, flagged("network", registry.ValidateNetwork(c.Network)))
	}
	seen := map[string]bool{}
	for _, region := range c.RegionOrder {
		errs = append(errs, flagged("region-order", registry.ValidateRegion(region)))
		if seen[region] {
			errs = append(errs, fmt.Errorf("--region-order names %s twice: name each region once", region))
		}
		seen[region] = true
	}
	if c.SpillFactor < 1 || c.SpillFactor > xds.MaxFactor {
		errs = append(errs, fmt.Errorf("--spill-factor %g: want 1 to %d", c.SpillFactor, xds.MaxFactor))
	}
	if c.SpillCeiling <= 0 || c.SpillCeiling > 1 {
		errs = append(errs, fmt.Errorf("--spill-ceiling %g: want more than 0 and at most 1", c.SpillCeiling))
	}
	return errors.Join(errs...)
}
