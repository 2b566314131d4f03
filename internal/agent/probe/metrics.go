package probe

import (
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	probes  *prometheus.CounterVec
	seconds prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, p *Prober) *metrics {
	m := &metrics{
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_agent_probes_total", Help: "Probes of local endpoints, by outcome.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "aether_agent_probe_duration_seconds", Help: "How long probes took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 7),
		}),
	}
	suspect := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "aether_agent_suspect", Help: "1 while all probes fail at once and this machine suspects itself.",
	}, func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.panel.suspect.IsZero() {
			return 0
		}
		return 1
	})
	if reg != nil {
		reg.MustRegister(m.probes, m.seconds, suspect)
	}
	return m
}

func (m *metrics) took(r Result) {
	outcome := "ok"
	if r.Err != nil {
		outcome = "failed"
	}
	m.probes.WithLabelValues(outcome).Inc()
	m.seconds.Observe(r.Took.Seconds())
}
