package mesh

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/analysis"
)

// warnEvery is how often documents that have changed are looked at for the log and the metric. Who asks for the status gets it at once.
const warnEvery = 30 * time.Second

// maxLogged is how many warnings are logged at once.
const maxLogged = 50

// warnings are what `holdfast-mesh validate` says of documents beside each other, in a server: references to what does not exist, and what
// two documents ask for (package analysis).
type warnings struct {
	reader config.Reader
	own    func() []config.Problem // those of documents by themselves, and errors
	domain string
	log    *slog.Logger
	// warned and failed describe the metrics of Collect.
	warned, failed *prometheus.Desc

	stale  atomic.Bool // documents have changed
	logged []config.Problem

	// mu is held while documents are looked at, which may take long: no handler of their changes waits for it.
	mu    sync.Mutex
	found analysis.Result
	last  atomic.Pointer[[]config.Problem] // of found
}

// newWarnings returns the warnings of documents, which must not have been read yet. own returns the problems of documents by themselves.
func newWarnings(cache config.Cache, own func() []config.Problem, domain string, registry prometheus.Registerer, log *slog.Logger) *warnings {
	w := &warnings{
		reader: cache, own: own, domain: domain, log: log,
		warned: prometheus.NewDesc("holdfast_mesh_document_warnings", "Warnings about documents that are not suppressed, by code.", []string{"code"}, nil),
		failed: prometheus.NewDesc("holdfast_mesh_document_errors", "Errors of documents: their last valid content, if they had any, stays in use.", nil, nil),
	}
	registry.MustRegister(w)
	w.stale.Store(true)
	for _, schema := range config.Schemas {
		if schema.Kind == config.EndpointSlice {
			continue // no warning is about them, and they change all the time
		}
		cache.RegisterHandler(schema.Kind, func(config.Event) { w.stale.Store(true) })
	}
	return w
}

// current returns what is wrong in the documents as they are.
func (w *warnings) current() analysis.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stale.Swap(false) {
		w.found = analysis.Of(w.reader, w.domain)
		config.SortProblems(w.found.Problems)
		w.last.Store(&w.found.Problems)
	}
	return w.found
}

// Describe and Collect make it a prometheus.Collector. Warnings of documents beside each other are those of the last look: a scrape does
// not wait for one.
func (w *warnings) Describe(descs chan<- *prometheus.Desc) {
	descs <- w.warned
	descs <- w.failed
}

func (w *warnings) Collect(metrics chan<- prometheus.Metric) {
	problems := w.own()
	if last := w.last.Load(); last != nil {
		problems = slices.Concat(problems, *last)
	}
	shown, _ := config.Unsuppressed(problems)
	errs, byCode := 0, make(map[config.Code]int)
	for _, p := range shown {
		if p.Severity == config.SeverityError {
			errs++
		} else {
			byCode[p.Code]++
		}
	}
	metrics <- prometheus.MustNewConstMetric(w.failed, prometheus.GaugeValue, float64(errs))
	for i := range config.Codes { // with those of which there is no warning, so that the metric is always there
		if code := config.Codes[i].Code; code != config.InvalidDocument {
			metrics <- prometheus.MustNewConstMetric(w.warned, prometheus.GaugeValue, float64(byCode[code]), string(code))
		}
	}
}

// Run logs warnings that are new, and counts them, until ctx ends.
func (w *warnings) Run(ctx context.Context) {
	for {
		problems, _ := config.Unsuppressed(w.current().Problems)
		before := make(map[config.Problem]bool, len(w.logged))
		for _, p := range w.logged {
			before[p] = true
		}
		fresh := slices.DeleteFunc(slices.Clone(problems), func(p config.Problem) bool { return before[p] })
		config.LogProblems(w.log, fresh[:min(len(fresh), maxLogged)], nil)
		if more := len(fresh) - maxLogged; more > 0 {
			w.log.Warn("further warnings about documents: the status names them", "count", more)
		}
		w.logged = problems
		if !wake.Sleep(ctx, warnEvery) {
			return
		}
	}
}

// about returns what two documents ask for that concerns a host.
func (w *warnings) about(host string) (out []string) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	contests := w.current().Contests
	for i := range contests {
		if p := contests[i].Problem(); contests[i].Host == host {
			out = append(out, p.Key.String()+" ("+contests[i].Other.Origin+") asks for the same: "+p.Message)
		}
	}
	return out
}
