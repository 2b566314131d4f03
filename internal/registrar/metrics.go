package registrar

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/aether-federation/aether/registry"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a registrar. One Metrics serves one Server.
type Metrics struct {
	writes      *prometheus.CounterVec
	writeTime   *prometheus.HistogramVec
	withdrawals *prometheus.CounterVec
	withdrawn   *prometheus.CounterVec
	shown       *prometheus.CounterVec
	resyncs     prometheus.Counter
	readErrors  prometheus.Counter
	cutOff      prometheus.Counter
	unparsable  prometheus.Counter
	denied      prometheus.Counter
	limited     *prometheus.CounterVec
	batch, wait prometheus.Histogram
	queue       *queueCollector
	policies    *prometheus.CounterVec
	policyStale prometheus.Gauge
	view        *viewCollector
	census      *censusCollector
}

// NewMetrics registers a registrar's metrics. It panics if they are registered
// already, as prometheus's own constructors do.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		writes: counters("aether_registrar_writes_total", "Writes by operation and outcome: ok or the kind of error.", "operation", "outcome"),
		writeTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "aether_registrar_write_duration_seconds", Help: "Time until a write was durable or refused.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"operation"}),
		withdrawals: counters("aether_registrar_region_withdrawals_total", "Foreign regions withdrawn, and regions that lost most of their endpoints at once, by cause.", "origin", "cause"),
		withdrawn:   counters("aether_registrar_endpoints_withdrawn_total", "Endpoints that went with these withdrawals.", "origin", "cause"),
		shown:       counters("aether_registrar_region_shown_total", "Foreign regions that began to be served.", "origin"),
		resyncs:     counter("aether_registrar_feed_resyncs_total", "Times that the local etcd was listed again from scratch."),
		readErrors:  counter("aether_registrar_lease_read_errors_total", "Readings of a region's lease that failed."),
		cutOff:      counter("aether_registrar_watchers_cut_off_total", "Watchers cut off because they were too slow."),
		unparsable:  counter("aether_registrar_unparsable_total", "Keys and values in the local etcd that do not parse and are not served."),
		denied:      counter("aether_registrar_denied_total", "Calls of clients that may not make them."),
		limited:     counters("aether_registrar_limited_total", "Refused because a client has more than its share, by what: calls, streams or connections.", "what"),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "aether_registrar_transaction_writes", Help: "Writes that went into one transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 8),
		}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "aether_registrar_write_wait_seconds", Help: "Time that the first write of a transaction waited for it to begin.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		queue:       newQueueCollector(),
		policies:    counters("aether_registrar_auth_reloads_total", "Changes of the file of --auth by outcome: ok or invalid.", "outcome"),
		policyStale: prometheus.NewGauge(prometheus.GaugeOpts{Name: "aether_registrar_auth_invalid", Help: "1 while the file of --auth is no use and a former policy is in force."}),
		view:        newViewCollector(),
		census:      newCensusCollector(),
	}
	r.MustRegister(m.writes, m.writeTime, m.withdrawals, m.withdrawn, m.shown, m.resyncs, m.readErrors, m.cutOff, m.unparsable, m.denied, m.limited, m.batch, m.wait, m.queue, m.policies, m.policyStale, m.view, m.census)
	return m
}

// Unparsable counts a key or value that was skipped; whoever reads the store
// logs it.
func (m *Metrics) Unparsable(string, error) { m.unparsable.Inc() }

// PolicyRead counts a change of the file of --auth, which err says is no use.
func (m *Metrics) PolicyRead(err error) {
	if err != nil {
		m.policies.WithLabelValues("invalid").Inc()
		m.policyStale.Set(1)
		return
	}
	m.policies.WithLabelValues("ok").Inc()
	m.policyStale.Set(0)
}

// Committing counts a transaction that begins.
func (m *Metrics) Committing(writes int, waited time.Duration) {
	m.batch.Observe(float64(writes))
	m.wait.Observe(waited.Seconds())
}

// ShowQueue shows how many writes wait, which waiting tells.
func (m *Metrics) ShowQueue(waiting func() int) { m.queue.waiting.Store(&waiting) }

// queueCollector shows how many writes wait, once it is known whom to ask.
type queueCollector struct {
	desc    *prometheus.Desc
	waiting atomic.Pointer[func() int]
}

func newQueueCollector() *queueCollector {
	return &queueCollector{desc: prometheus.NewDesc("aether_registrar_writes_waiting", "Writes that wait for a transaction.", nil, nil)}
}

// Describe implements prometheus.Collector.
func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	if waiting := c.waiting.Load(); waiting != nil {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64((*waiting)()))
	}
}

// wrote counts a write.
func (m *Metrics) wrote(operation string, start time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = registry.KindOf(err).String()
	}
	m.writes.WithLabelValues(operation, outcome).Inc()
	m.writeTime.WithLabelValues(operation).Observe(time.Since(start).Seconds())
}

// viewCollector shows a view as it is when it is asked.
type viewCollector struct {
	endpoints, held, state, age, version, streams *prometheus.Desc

	mu   sync.Mutex
	view *View
}

func newViewCollector() *viewCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("aether_registrar_"+name, help, labels, nil)
	}
	return &viewCollector{
		endpoints: desc("endpoints", "Endpoints served, by origin.", "origin"),
		held:      desc("held_changes", "Changes of a region that is shown, kept until it is complete or proven alive.", "origin"),
		state:     desc("region_state", "1 for the state that a region is in: own, syncing, live, stale or lapsed.", "origin", "state"),
		age:       desc("region_age_seconds", "Time since a region was last proven alive.", "origin"),
		version:   desc("view_version", "Version of the view; it counts up with each change."),
		streams:   desc("watch_streams", "Watchers connected."),
	}
}

func (c *viewCollector) watch(v *View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.view = v
}

// Describe implements prometheus.Collector.
func (c *viewCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.endpoints, c.held, c.state, c.age, c.version, c.streams} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *viewCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	view := c.view
	c.mu.Unlock()
	if view == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	version, streams := view.Stats()
	gauge(c.version, float64(version))
	gauge(c.streams, float64(streams))
	for _, r := range view.Regions() {
		gauge(c.endpoints, float64(r.Endpoints), r.Region)
		gauge(c.held, float64(r.Held), r.Region)
		if r.Age >= 0 {
			gauge(c.age, r.Age.Seconds(), r.Region)
		}
		for _, state := range States() {
			value := 0.0
			if state == r.State {
				value = 1
			}
			gauge(c.state, value, r.Region, string(state))
		}
	}
}
