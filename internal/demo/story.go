package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aether-federation/aether/registry"
)

// withdrawalSlack is what a peer may take beyond the TTL to withdraw a lost
// region.
const withdrawalSlack = 2 * time.Second

// story is the plot. The client lives in the first region, and the second is the
// one that is lost.
type story struct {
	config  Config
	regions []*region
	report  *report
	calls   *calls
}

func (s *story) home() *region { return s.regions[0] }
func (s *story) lost() *region { return s.regions[1] }

// others are all regions but r.
func (s *story) others(r *region) []*region { return r.peers }

func (s *story) run(ctx context.Context) error {
	if err := s.step(ctx, s.startRegions); err != nil {
		return err
	}
	calling, hangUp := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.calls.run(calling) })
	g.Go(func() error {
		defer hangUp()
		return s.tell(ctx)
	})
	return g.Wait()
}

// tell is the story once the regions are up.
func (s *story) tell(ctx context.Context) error {
	steps := []func(context.Context) error{
		s.registerHome, s.registerOthers, s.preferHome,
		s.stopBackend, s.startBackend, s.loseRegion, s.bringBack, s.countCalls,
	}
	for _, step := range steps {
		if err := s.step(ctx, step); err != nil {
			return err
		}
	}
	if err := s.report.finish(); err != nil || s.config.Exit {
		return err
	}
	return s.stayUp(ctx)
}

// step bounds one step's time. One that does not come to its end is an error:
// the story cannot go on without it.
func (s *story) step(ctx context.Context, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout+s.config.LeaseTTL)
	defer cancel()
	return step(ctx)
}

// done tells a step, or how it broke off.
func (s *story) done(name string, started time.Time, held bool, err error, detail string) error {
	took := time.Since(started)
	if errors.Is(err, context.Canceled) {
		s.report.interrupt(name, took)
		return err
	}
	if err != nil {
		detail = err.Error()
	}
	s.report.add(name, took, held && err == nil, detail)
	if err != nil {
		s.tellLogs()
	}
	return err
}

// tellLogs tells the last words of each registrar: their files go with the demo.
func (s *story) tellLogs() {
	for _, r := range s.regions {
		if r.registrar != nil {
			s.report.say("\nThe log of region %s ends with\n%s", r.name, tail(r.registrar.log, 10))
		}
	}
}

func (s *story) startRegions(ctx context.Context) error {
	s.report.say("Starting %d regions on this machine, each with an etcd, a registrar and a replicator of its own.", len(s.regions))
	started := time.Now()
	err := each(ctx, s.regions, func(ctx context.Context, r *region) error { return r.start(ctx) })
	if err == nil {
		err = each(ctx, s.regions, func(ctx context.Context, r *region) error { return r.awaitLive(ctx) })
	}
	return s.done("regions started", started, true, err,
		"regions "+names(s.regions)+" are up, and each mirrors to the others")
}

func (s *story) registerHome(ctx context.Context) error {
	home := s.home()
	s.report.say("\nRegistering service %s in region %s: an HTTP server at %s.", service, home.name, loopback(home.backendPort))
	started := time.Now()
	err := home.register(ctx)
	if err == nil {
		err = s.awaitEverywhere(ctx, s.others(home), home)
	}
	return s.done("registered endpoint visible in other regions", started, true, err,
		fmt.Sprintf("registered in region %s, and visible in %s", home.name, names(s.others(home))))
}

func (s *story) registerOthers(ctx context.Context) error {
	s.report.say("\nRegistering it in the other regions too. Their servers have the same IP, 127.0.0.1.")
	started := time.Now()
	err := each(ctx, s.others(s.home()), func(ctx context.Context, r *region) error { return r.register(ctx) })
	if err == nil {
		err = s.awaitEverywhere(ctx, s.regions, s.regions...)
	}
	return s.done("equal IPs side by side", started, true, err,
		fmt.Sprintf("every region serves %d endpoints at one IP, none overwritten by another", len(s.regions)))
}

// awaitEverywhere waits until all readers serve the endpoints of all owners.
func (s *story) awaitEverywhere(ctx context.Context, readers []*region, owners ...*region) error {
	return each(ctx, readers, func(ctx context.Context, reader *region) error {
		return reader.awaitEndpoints(ctx, func(now map[registry.Key]registry.Endpoint) bool {
			for _, o := range owners {
				if want := o.endpoint(); !now[want.Key].Equal(want) {
					return false
				}
			}
			return true
		})
	})
}

func (s *story) preferHome(ctx context.Context) error {
	home := s.home().name
	s.report.say("\nA client in region %s calls it %d times a second and prefers its own region.", home, time.Second/callInterval)
	started := time.Now()
	err := s.calls.awaitAnswer(ctx, func(r string) bool { return r == home })
	return s.done("calls stay in the own region", started, true, err, "calls are answered by region "+home)
}

func (s *story) stopBackend(ctx context.Context) error {
	home := s.home()
	s.report.say("\nKilling the server in region %s.", home.name)
	started := time.Now()
	home.backend.kill()
	err := s.calls.awaitAnswer(ctx, func(r string) bool { return r != home.name })
	by, _ := s.calls.answering()
	return s.done("own backend stopped, calls go to another region", started, true, err, "calls are answered by region "+by)
}

func (s *story) startBackend(ctx context.Context) error {
	home := s.home()
	s.report.say("\nStarting it again.")
	started := time.Now()
	err := home.startBackend()
	if err == nil {
		err = s.calls.awaitAnswer(ctx, func(r string) bool { return r == home.name })
	}
	return s.done("own backend back, calls return", started, true, err, "calls are answered by region "+home.name)
}

func (s *story) loseRegion(ctx context.Context) error {
	lost, ttl := s.lost(), s.config.LeaseTTL
	s.report.say("\nKilling region %s: registrar, etcd and server at once (SIGKILL). Nobody unregisters anything; its leases have %v to live.", lost.name, ttl)
	lost.kill()
	started := time.Now()
	err := each(ctx, s.others(lost), func(ctx context.Context, r *region) error {
		return r.awaitEndpoints(ctx, func(now map[registry.Key]registry.Endpoint) bool {
			_, there := now[lost.endpoint().Key]
			return !there
		})
	})
	took := time.Since(started)
	// The last keepalive was sent before the kill, by a tenth of the TTL and a
	// bit: a withdrawal sooner than this came before the lease's time.
	held := took <= ttl+withdrawalSlack && took >= ttl*8/10
	return s.done("region killed, its endpoints leave", started, held, err,
		fmt.Sprintf("no other region serves an endpoint of region %s (promised: within %v)", lost.name, ttl+withdrawalSlack))
}

func (s *story) bringBack(ctx context.Context) error {
	lost := s.lost()
	s.report.say("\nStarting region %s again, on the data that it had.", lost.name)
	started := time.Now()
	err := lost.start(ctx)
	if err == nil {
		err = s.awaitEverywhere(ctx, s.regions, s.regions...)
	}
	return s.done("region back, mirrored again", started, true, err, "every region serves all endpoints again")
}

func (s *story) countCalls(context.Context) error {
	total, failed := s.calls.counts()
	s.report.say("\nThe client's calls through all of this:")
	return s.done("no call failed", time.Now(), failed == 0 && total > 0, nil, fmt.Sprintf("%d calls, %d failed", total, failed))
}

// each calls fn for all regions at once and returns the first error.
func each(ctx context.Context, regions []*region, fn func(context.Context, *region) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range regions {
		g.Go(func() error { return fn(ctx, r) })
	}
	return g.Wait()
}

func names(regions []*region) string {
	out := make([]string, len(regions))
	for i, r := range regions {
		out[i] = r.name
	}
	return strings.Join(out, ", ")
}

func (r *region) register(ctx context.Context) error {
	if _, err := r.client.Register(ctx, []registry.Endpoint{r.endpoint()}); err != nil {
		return fmt.Errorf("register %s in region %s: %w", service, r.name, err)
	}
	return nil
}
