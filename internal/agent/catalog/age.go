package catalog

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// askRegions asks for the registrar's regions until ctx ends. A question that is
// not answered leaves them as they were, and ageing.
func (c *Catalog) askRegions(ctx context.Context) error {
	tick := time.NewTicker(regionsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-c.ask:
		}
		if err := c.askOnce(ctx); err != nil {
			c.cfg.Log.Debug("list regions", "error", err)
		}
	}
}

func (c *Catalog) askOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, regionsTimeout)
	defer cancel()
	asked := time.Now()
	regions, err := c.cfg.Registrar.Regions(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if len(c.told.regions) != len(regions) {
		wake(c.changed)
	}
	c.told = telling{asked: asked, regions: regions}
	c.mu.Unlock()
	c.readyOnceKnown()
	return nil
}

// Age is how long ago the view was last all that a registrar had: seconds while
// one is followed. It is negative if it never was.
func (c *Catalog) Age() time.Duration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.proven.IsZero() {
		return -1
	}
	return max(0, time.Since(c.proven))
}

// Mark puts the view's age, in seconds, into the header of an answer.
func (c *Catalog) Mark(h http.Header) {
	if age := c.Age(); age >= 0 {
		h.Set("Age", strconv.Itoa(int(age.Seconds())))
	}
}

// Ages tells how long ago each region was proven alive: by its registrar's word,
// and by how old that is.
func (c *Catalog) Ages() map[string]time.Duration {
	c.mu.RLock()
	defer c.mu.RUnlock()
	ages := make(map[string]time.Duration, len(c.counts))
	word := c.word(time.Now())
	for region := range c.counts {
		ages[region] = word
	}
	for _, r := range c.told.regions {
		ages[r.GetRegion()] = r.GetAge().AsDuration() + word
	}
	return ages
}

// word is how old a registrar's word is, of its regions or of its endpoints,
// whichever is older; c.mu is held.
func (c *Catalog) word(now time.Time) time.Duration {
	oldest := c.proven
	if !c.told.asked.IsZero() && c.told.asked.Before(oldest) {
		oldest = c.told.asked
	}
	return max(0, now.Sub(oldest))
}

// Region returns the name of the registrars' own region: the configured one, else
// what they said; empty as long as none has said anything.
func (c *Catalog) Region() string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.region()
}

func (c *Catalog) region() string {
	for _, r := range c.told.regions {
		if r.GetState() == "own" {
			return r.GetRegion()
		}
	}
	return c.cfg.Region
}

// Regions tells of every region as the registrar that was asked last sees it, aged
// by how long ago that was. What was live then is stale once no registrar has
// answered for too long.
func (c *Catalog) Regions() *registryv1.ListRegionsResponse {
	c.mu.RLock()
	defer c.mu.RUnlock()
	word := c.word(time.Now())
	answer, told := &registryv1.ListRegionsResponse{}, map[string]bool{}
	for _, r := range c.told.regions {
		told[r.GetRegion()] = true
		r = proto.CloneOf(r)
		if r.Age != nil || r.GetState() == "own" {
			r.Age = durationpb.New((r.GetAge().AsDuration() + word).Round(time.Millisecond))
		}
		answer.Regions = append(answer.Regions, c.aged(r, word))
	}
	for region, n := range c.counts {
		if !told[region] {
			answer.Regions = append(answer.Regions, &registryv1.Region{
				Region: region, State: "stale", Endpoints: uint32(n), Age: durationpb.New(word.Round(time.Millisecond)),
				Reason: "no registrar has told how this region is",
			})
		}
	}
	slices.SortFunc(answer.Regions, func(a, b *registryv1.Region) int { return cmp.Compare(a.Region, b.Region) })
	return answer
}

// aged says of r what follows from the age of the word.
func (c *Catalog) aged(r *registryv1.Region, word time.Duration) *registryv1.Region {
	if word <= c.cfg.StaleAfter {
		return r
	}
	silence := fmt.Sprintf("no registrar has answered for %v", word.Round(time.Second))
	if r.Reason = cmp.Or(r.Reason, silence); r.Reason != silence {
		r.Reason += "; " + silence
	}
	if r.State == "own" || r.State == "live" {
		r.State = "stale"
	}
	return r
}
