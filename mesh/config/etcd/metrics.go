package etcd

import "github.com/prometheus/client_golang/prometheus"

// collector makes metrics of the State of a Source.
type collector struct{ source *Source }

var (
	upDesc       = prometheus.NewDesc("holdfast_mesh_store_up", "1 if etcd answers, otherwise 0.", nil, nil)
	revisionDesc = prometheus.NewDesc("holdfast_mesh_store_revision", "Revision of etcd up to which the copy of the documents is complete.", nil, nil)
	heldDesc     = prometheus.NewDesc("holdfast_mesh_store_removals_held", "Documents that a restored etcd lacks and that stay in use until it is asked again.", nil, nil)
	problemsDesc = prometheus.NewDesc("holdfast_mesh_store_invalid_documents", "Documents in etcd that are not valid, so that their last valid content stays in use.", nil, nil)
	unusedDesc   = prometheus.NewDesc("holdfast_mesh_store_unused_documents", "Documents in etcd that are not used, because their namespace has more than --max-namespace-documents or --max-namespace-bytes.", nil, nil)
)

// NewCollector returns the metrics of a Source.
func NewCollector(s *Source) prometheus.Collector { return collector{s} }

func (c collector) Describe(out chan<- *prometheus.Desc) {
	out <- upDesc
	out <- revisionDesc
	out <- heldDesc
	out <- problemsDesc
	out <- unusedDesc
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	state := c.source.State()
	up := 0.0
	if state.Away == nil && state.Revision > 0 && !state.FromFile {
		up = 1
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(upDesc, up)
	gauge(revisionDesc, float64(state.Revision))
	gauge(heldDesc, float64(state.Held))
	gauge(problemsDesc, float64(state.Invalid))
	gauge(unusedDesc, float64(state.Unused))
}
