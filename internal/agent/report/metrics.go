package report

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/remote"
)

type metrics struct {
	reports   *prometheus.CounterVec
	seconds   prometheus.Histogram
	changed   *prometheus.CounterVec
	conflicts prometheus.Gauge
	last      prometheus.Gauge
	rival     prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_agent_reports_total", Help: "Reports to registrars, by outcome: ok or the kind of error.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "aether_agent_report_duration_seconds", Help: "How long reports took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 7),
		}),
		changed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_agent_reported_changes_total", Help: "Endpoints that reports changed in the registry, by operation.",
		}, []string{"operation"}),
		conflicts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_conflicts", Help: "Endpoints of this node that another node holds.",
		}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_last_report_timestamp_seconds", Help: "When a report last came through.",
		}),
		rival: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_rival", Help: "1 while another machine seems to report under this node's name.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.reports, m.seconds, m.changed, m.conflicts, m.last, m.rival)
	}
	return m
}

func (m *metrics) sent(start time.Time, answer remote.Reported, err error) {
	m.seconds.Observe(time.Since(start).Seconds())
	if err != nil {
		m.reports.WithLabelValues(registry.KindOf(err).String()).Inc()
		return
	}
	m.reports.WithLabelValues("ok").Inc()
	m.changed.WithLabelValues("write").Add(float64(answer.Written))
	m.changed.WithLabelValues("remove").Add(float64(answer.Removed))
	m.last.SetToCurrentTime()
}
