package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/aether-federation/aether/internal/access"
)

// Limits returns what one client may ask for.
func (c Registrar) Limits() access.Limits {
	return access.Limits{Rate: c.ClientRate, Burst: c.ClientBurst, Streams: c.ClientStreams, Connections: c.ClientConnections}
}

// ParseAccess reads the YAML of a policy; a key that is not known is an error.
func ParseAccess(document []byte) (*access.Policy, error) {
	var file struct {
		Rules []access.Rule `yaml:"rules"`
	}
	d := yaml.NewDecoder(bytes.NewReader(document))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) { // of an empty file, too, there are no rules
		return nil, err
	}
	if len(file.Rules) == 0 {
		return nil, errors.New("there are no rules, so nobody may do anything")
	}
	return access.NewPolicy(file.Rules)
}

func (c Registrar) validateAccess() error {
	var errs []error
	if c.TLSClientCA != "" && c.Auth == "" {
		errs = append(errs, errors.New("--tls-client-ca proves who a client is, and --auth says what it may do: give a file, or off"))
	}
	if c.TLSClientCA == "" && c.Auth != "" && c.Auth != AuthOff {
		errs = append(errs, errors.New("--auth needs clients that prove who they are: give --tls-client-ca too"))
	}
	if !(c.ClientRate >= 0) || // NaN is neither
		c.ClientBurst < 0 || c.ClientStreams < 0 || c.ClientConnections < 0 {
		errs = append(errs, errors.New("--client-rate, --client-burst, --client-streams and --client-connections must not be negative"))
	}
	if c.ClientRate > 0 && c.ClientBurst == 0 {
		errs = append(errs, errors.New("--client-burst 0 lets no call through: give as many as a second's at least"))
	}
	if c.Lapsed != LapsedWithdraw && c.Lapsed != LapsedLastResort {
		errs = append(errs, fmt.Errorf("--lapsed %q: want %s or %s", c.Lapsed, LapsedWithdraw, LapsedLastResort))
	}
	return errors.Join(errs...)
}
