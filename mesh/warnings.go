package mesh

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/gatewayapi"
)

// warnEvery is how often documents that have changed are looked at for the log and the metric. Who asks for the status gets it at once.
const warnEvery = 30 * time.Second

// maxLogged is how many warnings are logged at once.
const maxLogged = 50

// warnings are what `holdfast-mesh validate` says of documents beside each other, in a server: references to what does not exist, and what
// two documents ask for (config.References, gatewayapi.Convert).
type warnings struct {
	reader config.Reader
	domain string
	log    *slog.Logger
	count  prometheus.Gauge

	mu       sync.Mutex
	stale    bool // documents have changed
	problems []config.Problem
	contests []config.Contest
	logged   []config.Problem
}

// newWarnings returns the warnings of documents, which must not have been read yet.
func newWarnings(cache config.Cache, domain string, registry prometheus.Registerer, log *slog.Logger) *warnings {
	w := &warnings{reader: cache, domain: domain, log: log, stale: true, count: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "holdfast_mesh_document_warnings", Help: "Warnings about documents beside each other: references to what does not exist, and what two of them ask for.",
	})}
	registry.MustRegister(w.count)
	for _, schema := range config.Schemas {
		if schema.Kind == config.EndpointSlice {
			continue // no warning is about them, and they change all the time
		}
		cache.RegisterHandler(schema.Kind, func(config.Event) {
			w.mu.Lock()
			w.stale = true
			w.mu.Unlock()
		})
	}
	return w
}

// current returns the warnings about the documents as they are, and what two of them ask for.
func (w *warnings) current() ([]config.Problem, []config.Contest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stale {
		return w.problems, w.contests
	}
	w.stale = false
	problems := append(config.References(w.reader, w.domain), gatewayapi.Convert(w.reader, w.domain).Problems...)
	for i := range problems {
		p := &problems[i]
		p.Severity = config.SeverityWarning // the document is used
		if doc := w.reader.Get(p.Key); doc != nil {
			p.File = doc.Origin
		}
	}
	config.SortProblems(problems)
	w.problems, w.contests = problems, config.Contests(w.reader, w.domain)
	w.count.Set(float64(len(problems)))
	return w.problems, w.contests
}

// Run logs warnings that are new, and counts them, until ctx ends.
func (w *warnings) Run(ctx context.Context) {
	for {
		problems, _ := w.current()
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
	_, contests := w.current()
	for i := range contests {
		if contests[i].Host == host {
			p := contests[i].Problem()
			out = append(out, p.Key.String()+" ("+contests[i].Other.Origin+") asks for the same: "+p.Message)
		}
	}
	return out
}
