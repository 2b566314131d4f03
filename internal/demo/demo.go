// Package demo is the newcomer's first minute: regions as real processes on this
// machine, a service in each at one and the same IP, a client that calls it all
// the time, and the story of a backend and a region that die and come back, with
// the times that were measured.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/aether-federation/aether/internal/freeport"
)

const (
	// DefaultLeaseTTL is short, so that a lost region is told within the minute.
	DefaultLeaseTTL = 5 * time.Second
	// DefaultRegions is the least that makes a story.
	DefaultRegions = 2
	// MaxRegions keeps a demo within a small machine's memory.
	MaxRegions = 9

	// stepTimeout bounds each step; a busy machine is slow, not broken.
	stepTimeout = time.Minute
	// stopTimeout is what a process gets to end by itself.
	stopTimeout = 10 * time.Second

	service = "hello"
)

// ErrNotHeld says that a step of the story did not go as promised.
var ErrNotHeld = errors.New("not every step held")

// Config says how the demo runs.
type Config struct {
	// Regions, [DefaultRegions] to [MaxRegions].
	Regions int
	// LeaseTTL of the mirrors: how long a dead region is served elsewhere.
	LeaseTTL time.Duration
	// Exit ends after the story; else the regions stay up until ctx ends.
	Exit bool
	// JSON writes the steps as one document to Out; the story goes to Tell.
	JSON bool
	// Out and Tell are standard output and standard error.
	Out, Tell io.Writer
	// Executable is the aether binary that the child processes run.
	Executable string
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	if c.Regions < DefaultRegions || c.Regions > MaxRegions {
		return fmt.Errorf("--regions %d: want %d to %d", c.Regions, DefaultRegions, MaxRegions)
	}
	if c.LeaseTTL < 3*time.Second || c.LeaseTTL > time.Minute || c.LeaseTTL%time.Second != 0 {
		return fmt.Errorf("--lease-ttl %v: want whole seconds from 3s to 1m", c.LeaseTTL)
	}
	return nil
}

// Run plays the story and, unless c says otherwise, keeps the regions up until
// ctx ends. Whatever it started has ended, and whatever it wrote is gone, when it
// returns. The error is ErrNotHeld when a step went otherwise than promised.
func Run(ctx context.Context, c Config) (err error) {
	dir, err := os.MkdirTemp("", "aether-demo-")
	if err != nil {
		return fmt.Errorf("create a directory for the demo: %w", err)
	}
	regions, err := plan(c, dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		stopAll(regions)
		err = errors.Join(err, os.RemoveAll(dir))
	}()

	report := newReport(c)
	s := &story{config: c, regions: regions, report: report, calls: newCalls(regions[0])}
	err = errors.Join(s.run(ctx), report.finish())
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return errors.New("interrupted before the story's end")
	case err == nil && !report.held():
		return ErrNotHeld
	default:
		return err
	}
}

// stopAll stops all regions at once: each needs its own etcd for an orderly end,
// and none the others'.
func stopAll(regions []*region) {
	var g sync.WaitGroup
	for _, r := range regions {
		g.Go(r.stop)
	}
	g.Wait()
}

// plan gives every region its name, its addresses and its directory; nothing is
// started. Peers have to know each other's addresses beforehand.
func plan(c Config, dir string) ([]*region, error) {
	ports := make([]uint16, 4*c.Regions)
	for i := range ports {
		a, err := freeport.Find()
		if err != nil {
			return nil, err
		}
		ports[i] = a.Port()
	}
	regions := make([]*region, c.Regions)
	for i := range regions {
		name := string(rune('a' + i))
		p := ports[4*i:]
		regions[i] = &region{
			name: name, executable: c.Executable, leaseTTL: c.LeaseTTL,
			dir:  filepath.Join(dir, name),
			etcd: loopback(p[0]), grpc: loopback(p[1]), http: loopback(p[2]), backendPort: p[3],
		}
	}
	for _, r := range regions {
		for _, o := range regions {
			if o != r {
				r.peers = append(r.peers, o)
			}
		}
		if err := os.Mkdir(r.dir, 0o700); err != nil {
			return nil, fmt.Errorf("create a directory for region %s: %w", r.name, err)
		}
	}
	return regions, nil
}
