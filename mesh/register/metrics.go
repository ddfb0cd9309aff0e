package register

import "github.com/prometheus/client_golang/prometheus"

var workloadsDesc = prometheus.NewDesc("holdfast_mesh_workloads", "Workloads whose proxies are connected, or have gone a moment ago, to register with a WorkloadGroup: registered; crowded, which wait for a place of their account (--max-workloads-per-account); or refused.", []string{"state"}, nil)

// collector makes metrics of a Registrar.
type collector struct{ registrar *Registrar }

// NewCollector returns the metrics of a Registrar.
func NewCollector(r *Registrar) prometheus.Collector { return collector{r} }

func (c collector) Describe(out chan<- *prometheus.Desc) { out <- workloadsDesc }

func (c collector) Collect(out chan<- prometheus.Metric) {
	for state, n := range c.registrar.states() {
		out <- prometheus.MustNewConstMetric(workloadsDesc, prometheus.GaugeValue, float64(n), state)
	}
}

// states counts the workloads by what became of them.
func (r *Registrar) states() map[string]int {
	r.events.Lock()
	defer r.events.Unlock()
	n := map[string]int{"registered": 0, "crowded": 0, "refused": 0}
	for _, m := range r.members {
		switch {
		case m.entry != nil:
			n["registered"]++
		case r.crowded[m.accountOf()][m]:
			n["crowded"]++
		case m.refused != "":
			n["refused"]++
		}
	}
	return n
}
