package server

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/mesh/jwks"
	"github.com/holdfast-xds/holdfast/mesh/register"
)

// names collects the names of the metrics that are registered.
type names struct {
	prometheus.Registerer
	all []string
}

func (n *names) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		described := make(chan *prometheus.Desc, 10)
		c.Describe(described)
		close(described)
		for d := range described {
			n.all = append(n.all, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1])
		}
	}
}

func TestTheManualNamesEveryMetric(t *testing.T) {
	registered := &names{}
	NewMetrics(registered)
	jwks.New(jwks.Config{Metrics: registered})
	registered.MustRegister(etcd.NewCollector(nil), register.NewCollector(nil))
	registered.all = append(registered.all, "holdfast_mesh_ready", "holdfast_mesh_document_warnings", "holdfast_mesh_admin_refused_total", "holdfast_mesh_document_errors") // of package mesh, which this one cannot import
	page, err := os.ReadFile("../../docs/mesh.md")
	if err != nil {
		t.Fatal(err)
	}
	var described []string
	for _, line := range regexp.MustCompile("(?m)^\\| `((?:pilot|holdfast_mesh)_[a-z_]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		described = append(described, line[1])
	}
	slices.Sort(registered.all)
	slices.Sort(described)
	if !slices.Equal(registered.all, described) {
		t.Errorf("registered %q, in docs/mesh.md %q", registered.all, described)
	}
}
