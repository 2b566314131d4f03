package xds

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a server. One Metrics serves one Server.
type Metrics struct {
	streams   *prometheus.GaugeVec
	pushed    *prometheus.CounterVec
	responses *prometheus.CounterVec
	nacks     *prometheus.CounterVec
	buildTime *prometheus.HistogramVec
	failed    *prometheus.CounterVec
	leftOut   *leftOutCollector
}

// NewMetrics registers a server's metrics. It panics if they are registered
// already, as prometheus's own constructors do.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		streams:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "aether_xds_streams", Help: "Streams open, by client (grpc, envoy or other) and protocol (sotw or delta)."}, []string{"client", "protocol"}),
		pushed:    counters("aether_xds_resources_pushed_total", "Resources sent, by type.", "type"),
		responses: counters("aether_xds_responses_total", "Responses sent, by type.", "type"),
		nacks:     counters("aether_xds_nacks_total", "Responses that a client refused, by type and client.", "type", "client"),
		buildTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "aether_xds_build_duration_seconds", Help: "Time to make one resource.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10),
		}, []string{"type"}),
		failed:  counters("aether_xds_unanswerable_total", "Resources that could not be made: ambiguous names, or messages that broke their own rules.", "type"),
		leftOut: newLeftOutCollector(),
	}
	r.MustRegister(m.streams, m.pushed, m.responses, m.nacks, m.buildTime, m.failed, m.leftOut)
	return m
}

// built counts a resource that was made, or could not be.
func (m *Metrics) built(k kind, took time.Duration, err error) {
	m.buildTime.WithLabelValues(k.String()).Observe(took.Seconds())
	if err != nil {
		m.failed.WithLabelValues(k.String()).Inc()
	}
}

// leftOutCollector shows how many endpoints clients do not get, when it is asked.
type leftOutCollector struct {
	desc *prometheus.Desc

	mu    sync.Mutex
	count func() map[string]int
}

func newLeftOutCollector() *leftOutCollector {
	return &leftOutCollector{desc: prometheus.NewDesc("aether_xds_left_out_endpoints",
		"Endpoints that clients of a network ask for and do not get, because these are in another network with no gateway to it.",
		[]string{"network"}, nil)}
}

func (c *leftOutCollector) watch(count func() map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count = count
}

// Describe implements prometheus.Collector.
func (c *leftOutCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *leftOutCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	count := c.count
	c.mu.Unlock()
	if count == nil {
		return
	}
	for network, n := range count() {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), network)
	}
}
