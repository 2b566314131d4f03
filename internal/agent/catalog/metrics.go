package catalog

import "github.com/prometheus/client_golang/prometheus"

// metrics of a catalog.
type metrics struct {
	interruptions, saves, saveErrors, refused, cutOff prometheus.Counter
}

func newMetrics(c *Catalog, r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "aether_agent_" + name, Help: help})
	}
	m := &metrics{
		interruptions: counter("registrar_interruptions_total", "Times that no registrar was followed any more."),
		saves:         counter("view_saves_total", "Times that the last known view was saved."),
		saveErrors:    counter("view_save_errors_total", "Saves of the last known view that failed."),
		refused:       counter("view_refused_total", "Last known views that were not served, because they could not be read."),
		cutOff:        counter("watchers_cut_off_total", "Watchers cut off because they were too slow."),
	}
	if r == nil {
		return m
	}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "aether_agent_view_age_seconds", Help: "Time since the view was last all that a registrar had; -1 if it never was.",
	}, func() float64 {
		if age := c.Age(); age >= 0 {
			return age.Seconds()
		}
		return -1
	})
	endpoints := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "aether_agent_view_endpoints", Help: "Endpoints in the view.",
	}, func() float64 { return float64(c.size()) })
	r.MustRegister(m.interruptions, m.saves, m.saveErrors, m.refused, m.cutOff, age, endpoints)
	return m
}

// size returns the number of endpoints.
func (c *Catalog) size() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := 0
	for _, of := range c.counts {
		n += of
	}
	return n
}
