package config

import (
	"errors"

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
	errs := []error{c.Translation().Validate()}
	if c.Network != "" {
		errs = append(errs, flagged("network", registry.ValidateNetwork(c.Network)))
	}
	if c.SpillFactor == 0 || c.SpillCeiling == 0 {
		errs = append(errs, errors.New("--spill-factor and --spill-ceiling must not be 0: leave them out for the defaults"))
	}
	return errors.Join(errs...)
}
