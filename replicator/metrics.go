package replicator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of all mirrors, by peer.
type metrics struct {
	stateIs          *prometheus.GaugeVec
	lagSeconds       *prometheus.GaugeVec
	lagRevs          *prometheus.GaugeVec
	pending          *prometheus.GaugeVec
	keys             *prometheus.GaugeVec
	leases           *prometheus.GaugeVec
	inFlight         *prometheus.GaugeVec
	window           *prometheus.GaugeVec
	poison           *prometheus.GaugeVec
	renewedAt        *prometheus.GaugeVec
	operations       *prometheus.CounterVec
	errors           *prometheus.CounterVec
	sessions         *prometheus.CounterVec
	resyncs          *prometheus.CounterVec
	resyncTime       *prometheus.HistogramVec
	takeovers        *prometheus.CounterVec
	foreign, drifted *prometheus.CounterVec
}

// newMetrics makes the metrics and registers them, unless r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "aether", Subsystem: "replicator", Name: name, Help: help}, append([]string{"peer"}, labels...))
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "aether", Subsystem: "replicator", Name: name, Help: help}, append([]string{"peer"}, labels...))
	}
	m := &metrics{
		stateIs:    gauge("state", "1 for the state that the mirror is in, 0 for the others.", "state"),
		lagSeconds: gauge("lag_seconds", "For how long the oldest unacknowledged change has waited."),
		lagRevs:    gauge("lag_revisions", "How many revisions the origin is ahead of the checkpoint."),
		pending:    gauge("pending_keys", "Keys whose latest change the peer has yet to acknowledge."),
		keys:       gauge("keys", "Keys of the origin that are mirrored."),
		leases:     gauge("leases", "Leases that the mirrored keys are on."),
		inFlight:   gauge("batches_in_flight", "Transactions under way to the peer."),
		window:     gauge("window_batches", "How many transactions may be under way."),
		poison:     gauge("poison_keys", "Keys that the peer refuses."),
		renewedAt:  gauge("renewed_timestamp_seconds", "When the peer last confirmed the keepalive of all leases."),
		operations: counter("operations_total", "Operations that the peer acknowledged.", "operation"),
		errors:     counter("errors_total", "Transactions that the peer did not apply, by kind.", "kind"),
		sessions:   counter("sessions_ended_total", "Sessions that ended before their time, by cause.", "cause"),
		resyncs:    counter("resyncs_total", "Full rebuilds of the mirror, by reason.", "reason"),
		resyncTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "aether", Subsystem: "replicator", Name: "resync_duration_seconds",
			Help: "How long full rebuilds took.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 14),
		}, []string{"peer"}),
		takeovers: counter("takeovers_total", "Mirrors taken over, adopted as they were or rebuilt.", "outcome"),
		foreign:   counter("foreign_deletes_total", "Ranges in which somebody else deleted mirrored keys."),
		drifted:   counter("drift_repaired_total", "Keys that an audit found different from the origin and had mended."),
	}
	if r != nil {
		r.MustRegister(m.stateIs, m.lagSeconds, m.lagRevs, m.pending, m.keys, m.leases, m.inFlight, m.window,
			m.poison, m.renewedAt, m.operations, m.errors, m.sessions, m.resyncs, m.resyncTime, m.takeovers,
			m.foreign, m.drifted)
	}
	return m
}

// meter is the metrics of one mirror.
type meter struct {
	m    *metrics
	peer string
}

func (m *metrics) of(peer string) meter { return meter{m, peer} }

func (t meter) state(now State) {
	for _, s := range []State{StateStandby, StateConnecting, StateRefused, StateSyncing, StateLive, StateHeld, StateFull, StateStale} {
		is := 0.0
		if s == now {
			is = 1
		}
		t.m.stateIs.WithLabelValues(t.peer, string(s)).Set(is)
	}
}

func (t meter) progress(p progress) {
	lag := 0.0
	if !p.oldest.IsZero() {
		lag = time.Since(p.oldest).Seconds()
	}
	t.m.lagSeconds.WithLabelValues(t.peer).Set(lag)
	t.m.lagRevs.WithLabelValues(t.peer).Set(float64(p.behind))
	t.m.pending.WithLabelValues(t.peer).Set(float64(p.pending))
	t.m.keys.WithLabelValues(t.peer).Set(float64(p.keys))
	t.m.leases.WithLabelValues(t.peer).Set(float64(p.leases))
	t.m.inFlight.WithLabelValues(t.peer).Set(float64(p.inFlight))
	t.m.window.WithLabelValues(t.peer).Set(float64(p.window))
	t.m.poison.WithLabelValues(t.peer).Set(float64(len(p.poison)))
}

func (t meter) renewed(at time.Time) {
	t.m.renewedAt.WithLabelValues(t.peer).Set(float64(at.UnixMilli()) / 1000)
}

func (t meter) sent(puts, deletes int) {
	t.m.operations.WithLabelValues(t.peer, "put").Add(float64(puts))
	t.m.operations.WithLabelValues(t.peer, "delete").Add(float64(deletes))
}

func (t meter) failed(v verdict) { t.m.errors.WithLabelValues(t.peer, v.String()).Inc() }

func (t meter) sessionEnded(cause string) { t.m.sessions.WithLabelValues(t.peer, cause).Inc() }

func (t meter) takeover(outcome string) { t.m.takeovers.WithLabelValues(t.peer, outcome).Inc() }

func (t meter) resync(reason string, took time.Duration) {
	t.m.resyncs.WithLabelValues(t.peer, reason).Inc()
	t.m.resyncTime.WithLabelValues(t.peer).Observe(took.Seconds())
}

func (t meter) foreignDelete() { t.m.foreign.WithLabelValues(t.peer).Inc() }

func (t meter) drift() { t.m.drifted.WithLabelValues(t.peer).Inc() }
