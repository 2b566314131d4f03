package registrar

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// censusCollector shows a census as it is when it is asked.
type censusCollector struct {
	present, registrars, absent, dead *prometheus.Desc

	mu     sync.Mutex
	census *Census
}

func newCensusCollector() *censusCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("aether_registrar_"+name, help, labels, nil)
	}
	return &censusCollector{
		present:    desc("nodes_present", "Nodes of the own cluster that are present."),
		registrars: desc("registrars_present", "Registrars of the own cluster that are present."),
		absent:     desc("nodes_absent", "Nodes of the own cluster that hold endpoints and are not present."),
		dead:       desc("cluster_lost", "1 for a cluster of the own region whose endpoints are served as unhealthy because nothing of it is present.", "cluster"),
	}
}

func (c *censusCollector) watch(census *Census) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.census = census
}

// Describe implements prometheus.Collector.
func (c *censusCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.present, c.registrars, c.absent, c.dead} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *censusCollector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	census := c.census
	c.mu.Unlock()
	if census == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	present, registrars, absent := census.count()
	gauge(c.present, present)
	gauge(c.registrars, registrars)
	gauge(c.absent, absent)
	for _, cluster := range census.Dead() {
		gauge(c.dead, 1, cluster)
	}
}

// count tells how many nodes and registrars of the own cluster are present, and
// how many nodes are not although they hold endpoints.
func (c *Census) count() (present, registrars, absent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for node := range c.books.nodes {
		if !c.books.present[node] {
			absent++
		}
	}
	return len(c.books.present), len(c.books.registrars), absent
}
