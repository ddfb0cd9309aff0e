// Package prometheus reads with Prometheus' own parsers what the agent makes of an application's metrics.
package prometheus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/agent/istio"
	metrics "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

const (
	text        = "text/plain"
	openMetrics = "application/openmetrics-text"
)

// asks are the formats that a scrape asks for, and whether it may get names in quotation marks.
var asks = []struct {
	accept string
	utf8   bool
}{
	{"text/plain;version=0.0.4", false},
	{openMetrics + ";version=1.0.0", false},
	{openMetrics + ";version=1.0.0;escaping=allow-utf-8", true},
}

// pod is an agent with an application.
type pod struct {
	agent             *http.ServeMux
	contentType, body string // what the application answers
}

func newPod(t testing.TB) *pod {
	p := &pod{agent: http.NewServeMux()}
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", p.contentType)
		_, _ = io.WriteString(w, p.body)
	}))
	t.Cleanup(app.Close)
	at, err := url.Parse(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	annotations := fmt.Sprintf(`{"scrape":"true","port":"%s"}`, at.Port())
	cfg, err := istio.FromEnv(func(name string) string {
		if name == "ISTIO_PROMETHEUS_ANNOTATIONS" {
			return annotations
		}
		return ""
	}, 15020)
	if err != nil {
		t.Fatal(err)
	}
	own := metrics.NewRegistry()
	own.MustRegister(metrics.NewGauge(metrics.GaugeOpts{Name: "agent", Help: "The last part."}))
	istio.New(*cfg, istio.Parts{
		Envoy:   func(context.Context, string) (*http.Response, error) { return nil, errors.New("there is none") },
		Own:     own,
		Scraped: func(string, string) {},
	}).Register(p.agent)
	return p
}

// scrape returns the merged scrape, in a format.
func (p *pod) scrape(ctx context.Context, accept string) (body, contentType string) {
	rec := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/stats/prometheus", nil)
	req.Header.Set("Accept", accept)
	p.agent.ServeHTTP(rec, req)
	return rec.Body.String(), rec.Header().Get("Content-Type")
}

// check reads an exposition as Prometheus does, which rejects a whole scrape for one line.
func check(exposition, contentType string, utf8 bool) error {
	symbols := labels.NewSymbolTable()
	parser := textparse.NewPromParser([]byte(exposition), symbols, false)
	if strings.HasPrefix(contentType, openMetrics) {
		parser = textparse.NewOpenMetricsParser([]byte(exposition), symbols)
	}
	scheme := model.LegacyValidation
	if utf8 {
		scheme = model.UTF8Validation
	}
	samples := 0
	for {
		entry, err := parser.Next()
		switch {
		case errors.Is(err, io.EOF) && samples == 0:
			return errors.New("the agent's own metrics are missing")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case entry != textparse.EntrySeries:
			continue
		}
		samples++
		var l labels.Labels
		parser.Labels(&l)
		if name, twice := l.HasDuplicateLabelNames(); twice || !l.IsValid(scheme) || !l.Has(model.MetricNameLabel) {
			return fmt.Errorf("the labels %s are invalid (twice: %q)", l, name)
		}
	}
}

var seeds = []string{
	"", "a 1\n", "{\"\"} 1\n", "a{\"\"=\"x\"} 1\n", "a{x=\"\x00\"} 1\n", "# HELP a \x00\na 1\n", "# TYPE \"\" gauge\n", "a 1 # {\"\"=\"x\"} 1\n",
	"{\"a\x00\"} 1\n", "# TYPE \"a\x00\" gauge\n", "# HELP \"a\x00\" b\n", "# HELP \"\" b\n", "a 1 # {b=\"\x00\"} 1\n", "# UNIT \"a_s\" s\n",
	"# TYPE a_s gauge\n# UNIT a_s m\na_s 1\n", "# UNIT s s\n", "# TYPE a counter\na_total 1 # {x=\"1\"} 2 3\n", "a 1 # {} 1\n", "a 1# {x=\"1\"} 1\n",
	"# TYPE \"a.b\" counter\n{\"a.b_total\"} 1 2\n", "a\v1\n", "a 1\u0085 2\n", "{\"a\\nb\",\"c\\\"\"=\"d\"} 1\n", "a{\"c\\\"\"=\"1\",\"c\\\"\"=\"2\"} 1\n",
	"# HELP a \\\na 1\n", "# TYPE a\tgauge\na 1\n", "# UNIT a_s s \na_s 1\n", "a{b=\"1\",b=\"2\"} 1\n", "<html>\n", "a 1 1e400\n", "agent 1\n# TYPE agent counter\n",
}

// Whatever an application answers, Prometheus takes the merged scrape, and the agent's own part is in it.
func FuzzPrometheusTakesTheMergedScrape(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed, false)
		f.Add(seed+"# EOF\n", true)
	}
	p := newPod(f)
	f.Fuzz(func(t *testing.T, body string, open bool) {
		p.contentType, p.body = text, body
		if open {
			p.contentType = openMetrics
		}
		for _, ask := range asks {
			answer, got := p.scrape(t.Context(), ask.accept)
			if err := check(answer, got, ask.utf8); err != nil {
				t.Errorf("%v\nthe application answers %q\nthe agent, as %s\n%q", err, body, got, answer)
			}
		}
	})
}
