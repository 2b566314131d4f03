package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/internal/agent/report"
	"github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/registry"
)

// maxNews is how many endpoints are named in the log at once; of more it has the
// number.
const maxNews = 20

// news is what an announcement says that the one before did not.
type news struct {
	came, went    int
	ill, well     []registry.Key
	drains, total int
}

// newsOf compares what was announced with what is now.
func newsOf(before, now map[registry.Key]registry.Health) news {
	n := news{total: len(now)}
	for _, k := range slices.SortedFunc(maps.Keys(now), registry.Key.Compare) {
		was, there := before[k]
		if !there {
			n.came++
		}
		switch {
		case was == now[k]:
		case now[k] == registry.Unhealthy:
			n.ill = append(n.ill, k)
		case now[k] == registry.Draining:
			n.drains++
		case was == registry.Unhealthy:
			n.well = append(n.well, k)
		}
	}
	n.went = len(before) + n.came - len(now)
	return n
}

// say logs them, with what probes say of endpoints that are ill.
func (n news) say(log *slog.Logger, verdicts map[registry.Key]probe.Verdict) {
	if n.came+n.went+n.drains > 0 {
		log.Info("announcing", "endpoints", n.total, "new", n.came, "gone", n.went, "begin_to_drain", n.drains)
	}
	for _, k := range n.ill[:min(len(n.ill), maxNews)] {
		log.Warn("an endpoint is unhealthy", "endpoint", source.Name(k), "error", verdicts[k].Last.Err)
	}
	for _, k := range n.well[:min(len(n.well), maxNews)] {
		log.Info("an endpoint is healthy again", "endpoint", source.Name(k))
	}
	if more := max(0, len(n.ill)-maxNews) + max(0, len(n.well)-maxNews); more > 0 {
		log.Warn(fmt.Sprintf("and %d more", more), "unhealthy", len(n.ill), "healthy_again", len(n.well))
	}
}

// healthsIn returns the health that an announcement gives each endpoint.
func healthsIn(a report.Announcement) map[registry.Key]registry.Health {
	out := make(map[registry.Key]registry.Health, len(a.Endpoints))
	for _, e := range a.Endpoints {
		out[e.Key] = e.Health
	}
	return out
}
