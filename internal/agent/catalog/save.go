package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
	"google.golang.org/protobuf/proto"
)

// saveProofEvery is how often a view that does not change is saved for its age
// alone: an agent that was killed tells it too old by this much at most.
const saveProofEvery = 5 * time.Minute

// saved is what the file has.
type saved struct {
	revision      registry.Revision
	proven, asked time.Time
}

// load serves what the file has. One that cannot be served is kept aside, for
// people to look at.
func (c *Catalog) load() {
	if c.cfg.File == "" {
		return
	}
	if err := sweepTemps(c.cfg.File); err != nil {
		c.cfg.Log.Warn("remove what is left of former saves", "error", err)
	}
	start := time.Now()
	file, err := os.ReadFile(c.cfg.File)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	var k lastKnown
	if err == nil {
		k, err = decode(file, c.cfg.Region)
	}
	if err != nil {
		c.putAside(err)
		return
	}
	c.restore(k)
	c.cfg.Log.Info("last known view loaded", "endpoints", k.Endpoints, "age", c.Age().Round(time.Second), "took", time.Since(start).Round(time.Millisecond))
	c.once.Do(func() { close(c.ready) })
}

// putAside keeps a file that is not served.
func (c *Catalog) putAside(reason error) {
	c.metrics.refused.Inc()
	if _, ok := errors.AsType[errRefused](reason); !ok {
		c.cfg.Log.Warn("the last known view cannot be read: starting without it", "file", c.cfg.File, "error", reason)
		return
	}
	aside := c.cfg.File + ".refused"
	if err := os.Rename(c.cfg.File, aside); err != nil {
		reason = errors.Join(reason, err)
	}
	c.cfg.Log.Warn("the last known view is refused: starting without it", "reason", reason, "kept_as", aside)
}

// restore makes what was on disk the view.
func (c *Catalog) restore(k lastKnown) {
	changes := make([]view.Change, 0, len(k.endpoints))
	for _, e := range k.endpoints {
		if c.query.Wants(e.Service) {
			changes = append(changes, view.Change{Kind: registry.Put, Endpoint: e})
		}
	}
	c.revision = k.Revision
	c.mu.Lock()
	c.proven, c.told = k.Proven, telling{asked: k.Asked, regions: k.regions}
	c.saved = saved{revision: k.Revision, proven: k.Proven, asked: k.Asked}
	c.mu.Unlock()
	c.publish(changes)
	c.Forget() // what the store holds now nobody has said
}

// keepSaved saves what changes until ctx ends. A save that fails is tried again.
func (c *Catalog) keepSaved(ctx context.Context) error {
	proof := time.NewTicker(saveProofEvery)
	defer proof.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.changed:
		case <-proof.C:
		}
		if err := c.save(); err != nil {
			c.metrics.saveErrors.Inc()
			c.cfg.Log.Warn("save the last known view", "error", err)
			wake(c.changed)
		}
		if err := pause(ctx, c.cfg.SaveEvery); err != nil {
			return err
		}
	}
}

// save writes the view, if the file does not have it already.
func (c *Catalog) save() error {
	if c.cfg.File == "" {
		return nil
	}
	c.mu.RLock()
	snapshot := c.Snapshot(registry.Query{})
	h := head{Region: c.region(), Revision: snapshot.Revision, Proven: c.proven, Asked: c.told.asked}
	regions, err := proto.Marshal(&registryv1.ListRegionsResponse{Regions: c.told.regions})
	now := saved{revision: h.Revision, proven: h.Proven, asked: h.Asked}
	same := now == c.saved
	c.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("encode regions: %w", err)
	}
	if same || h.Proven.IsZero() {
		return nil
	}
	h.Regions = regions
	content, err := encode(h, snapshot)
	if err != nil {
		return err
	}
	if err := write(c.cfg.File, content); err != nil {
		return fmt.Errorf("write %s: %w", c.cfg.File, err)
	}
	c.metrics.saves.Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = now
	return nil
}
