package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aether-federation/aether/internal/agent/source"
	"github.com/aether-federation/aether/registry"
)

type nodeMetrics struct {
	endpoints *prometheus.GaugeVec
	declared  prometheus.Gauge
	problems  prometheus.Gauge
	known     prometheus.Gauge
}

func newNodeMetrics(reg prometheus.Registerer) *nodeMetrics {
	m := &nodeMetrics{
		endpoints: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "aether_agent_announced_endpoints", Help: "Endpoints that this node announced last, by health.",
		}, []string{"health"}),
		declared: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_declared_endpoints", Help: "Endpoints that the sources declare.",
		}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_source_problems", Help: "What is wrong in sources, whose last valid state stands.",
		}),
		known: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_known", Help: "1 if this node announces what it has, 0 if its presence alone.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.endpoints, m.declared, m.problems, m.known)
	}
	return m
}

func (m *nodeMetrics) took(s source.State, known bool, standing map[registry.Key]registry.Health) {
	count := map[registry.Health]int{}
	for _, h := range standing {
		count[h]++
	}
	for _, h := range []registry.Health{registry.Healthy, registry.Unhealthy, registry.Draining} {
		m.endpoints.WithLabelValues(h.String()).Set(float64(count[h]))
	}
	m.declared.Set(float64(len(s.Declared)))
	m.problems.Set(float64(len(s.Problems)))
	m.known.Set(0)
	if known {
		m.known.Set(1)
	}
}
