package config

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/aether-federation/aether/internal/access"
)

// accessEvery is how often the file of --auth is looked at.
const accessEvery = 2 * time.Second

// AccessFile is the policy of --auth, which follows its file. What does not parse,
// or is gone, leaves the last that did in force.
type AccessFile struct {
	c Registrar
	// policy is nil where everybody may do everything.
	policy *access.Policy
	log    *slog.Logger
	told   func(error)
	// sum is of the file as it was looked at last.
	sum, err string
}

// AccessFile reads the policy. told, if it is not nil, is told of each change of the
// file: nil, or why it is no use.
func (c Registrar) AccessFile(log *slog.Logger, told func(error)) (*AccessFile, error) {
	f := &AccessFile{c: c, log: log, told: told}
	if c.Auth == "" || c.Auth == AuthOff {
		return f, nil
	}
	if told == nil {
		f.told = func(error) {}
	}
	var err error
	f.policy, f.sum, err = c.access()
	return f, err
}

// Policy returns the policy, nil where everybody may do everything. It changes with
// the file while Run runs.
func (f *AccessFile) Policy() *access.Policy { return f.policy }

// Run follows the file until ctx ends; it returns nil then.
func (f *AccessFile) Run(ctx context.Context) error {
	tick := time.NewTicker(accessEvery)
	defer tick.Stop()
	for f.policy != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.look()
		}
	}
	return nil
}

// look takes over what the file holds, if that has changed.
func (f *AccessFile) look() {
	now, sum, err := f.c.access()
	if err != nil {
		if f.err != err.Error() {
			f.err = err.Error()
			f.log.Error("the file of --auth is no use, going on with the policy as it was", "error", err)
			f.told(err)
		}
		return
	}
	if sum == f.sum && f.err == "" {
		return
	}
	f.sum, f.err = sum, ""
	f.policy.Become(now)
	f.log.Info("the policy of --auth is in force as it is now", "file", f.c.Auth)
	f.told(nil)
}

// access reads who may do what, and a digest of that.
func (c Registrar) access() (*access.Policy, string, error) {
	d := &digest{}
	b, err := d.read(c.Auth)
	if err != nil {
		return nil, "", fmt.Errorf("read --auth: %w", err)
	}
	p, err := ParseAccess(b)
	if err != nil {
		return nil, "", fmt.Errorf("parse --auth %s: %w", c.Auth, err)
	}
	return p, d.sum(), nil
}
