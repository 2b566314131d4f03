package sweep

import "github.com/prometheus/client_golang/prometheus"

// metrics of a sweeper.
type metrics struct {
	removed, errors, held  prometheus.Counter
	isHeld, ghosts, leader prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "aether_sweep_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "aether_sweep_" + name, Help: help})
	}
	m := metrics{
		removed: counter("removed_endpoints_total", "Endpoints of absent nodes that were removed."),
		errors:  counter("errors_total", "Passes in which removing failed."),
		held:    counter("held_total", "Times that the brake began to hold the sweep."),
		isHeld:  gauge("held", "1 while the brake holds the sweep: too many endpoints would go."),
		ghosts:  gauge("ghosts", "Endpoints whose node is absent."),
		leader:  gauge("leader", "1 while this registrar sweeps its cluster."),
	}
	r.MustRegister(m.removed, m.errors, m.held, m.isHeld, m.ghosts, m.leader)
	return m
}

// saw shows what a pass found.
func (m metrics) saw(p Plan, leading bool) {
	ghosts := 0
	for _, g := range p.Ghosts {
		ghosts += len(g.Holdings)
	}
	m.ghosts.Set(float64(ghosts))
	m.isHeld.Set(truth(p.Held != ""))
	m.leader.Set(truth(leading))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
