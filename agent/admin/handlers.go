package admin

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-xds/holdfast/agent/admin/page"
	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/webguard"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// health serves the kubelet and Prometheus.
func (s *Server) health() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", s.livez)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /startupz", s.startupz)
	mux.Handle("GET /metrics", s.metrics())
	return mux
}

// forKubelet serves Health. The kubelet and Prometheus may use any name for it, and a browser none but the listener's own.
func (s *Server) forKubelet() http.Handler {
	mux := s.health()
	if s.cfg.Istio != nil {
		mux.HandleFunc("GET /healthz/ready", s.readyz)
		s.cfg.Istio.Register(mux)
	}
	host, _, _ := net.SplitHostPort(s.cfg.Health)
	return webguard.Guard{Host: host, Machines: true}.Wrap(mux)
}

// full serves everything. Actions and profiles are on a Unix socket only.
func (s *Server) full(unix bool) http.Handler {
	mux := s.health()
	mux.HandleFunc("GET /{$}", s.root)
	mux.HandleFunc("GET /status.json", s.status)
	mux.HandleFunc("GET /dump", s.dump)
	mux.HandleFunc("GET /explain", s.explain)
	mux.HandleFunc("GET /rehearsal", s.rehearsal)
	if s.cfg.Events != nil {
		mux.HandleFunc("GET /events", s.events)
	}
	if s.cfg.Seeds != nil {
		mux.HandleFunc("GET /seed", s.seed)
	}
	if s.cfg.Histories != nil {
		mux.HandleFunc("GET /history", s.history)
		mux.HandleFunc("GET /content", s.content)
		mux.HandleFunc("GET /diff", s.diff)
	}
	if !unix {
		host, _, _ := net.SplitHostPort(s.cfg.Addr)
		return webguard.Guard{Host: host}.Wrap(mux)
	}
	if s.cfg.Quit != nil {
		mux.HandleFunc("POST /quit", s.quit)
	}
	if s.cfg.Changes != nil {
		mux.HandleFunc("POST /freeze", s.freeze)
		mux.HandleFunc("POST /rollback", s.rollback)
		mux.HandleFunc("POST /offer-again", s.offerAgain)
	}
	if s.cfg.Rehearser != nil {
		mux.HandleFunc("POST /rehearsal", s.rehearseLive)
	}
	if s.cfg.LogLevel != nil {
		mux.HandleFunc("POST /loglevel", s.logLevel)
	}
	if s.cfg.Pprof {
		// The command line is left out, where there may be tokens in headers. (The package also adds
		// them to http.DefaultServeMux, which nothing here serves.)
		mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and those that have a name: heap, goroutine, …
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	for name, do := range s.cfg.Actions {
		mux.HandleFunc("POST /"+name, s.action(name, do))
	}
	if s.cfg.Takeover != nil {
		mux.HandleFunc("POST /takeover", s.takeover)
	}
	return readOnly(mux)
}

func (s *Server) metrics() http.Handler {
	return promhttp.HandlerFor(s.cfg.Metrics.Gatherer(s.cfg.State), promhttp.HandlerOpts{
		ErrorLog: logErrors{s.cfg.Log},
		// If one metric cannot be collected, the others are still served.
		ErrorHandling: promhttp.ContinueOnError,
	})
}

type logErrors struct{ *slog.Logger }

func (l logErrors) Println(v ...any) { l.Warn("metrics are incomplete", "err", fmt.Sprint(v...)) }

func (s *Server) livez(w http.ResponseWriter, _ *http.Request) {
	if err := s.cfg.State.Live(); err != nil {
		text(w, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	text(w, http.StatusOK, "ok\n")
}

func (s *Server) startupz(w http.ResponseWriter, _ *http.Request) {
	if !s.cfg.State.Started() {
		text(w, http.StatusServiceUnavailable, "starting\n")
		return
	}
	text(w, http.StatusOK, "ok\n")
}

// readyz answers "ok", or the reasons, one per line; with ?verbose all conditions as JSON.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	conditions := s.conditions()
	code, reasons := http.StatusOK, ""
	for _, c := range conditions {
		if !c.OK {
			code = http.StatusServiceUnavailable
			reasons += c.Name + ": " + c.Reason + "\n"
		}
	}
	switch {
	case r.URL.Query().Has("verbose"):
		writeJSON(w, code, struct {
			Ready      bool        `json:"ready"`
			Conditions []Condition `json:"conditions"`
		}{code == http.StatusOK, notNil(conditions)})
	case code == http.StatusOK:
		text(w, code, "ok\n")
	default:
		text(w, code, reasons)
	}
}

// outputOf describes the output of the log; nil for a queue that is nil.
func outputOf(queue *logqueue.Queue) *Output {
	if queue == nil {
		return nil
	}
	stats := queue.Stats()
	out := &Output{Dropped: stats.Dropped, Stuck: stats.Stuck}
	if stats.Err != nil {
		out.Error = stats.Err.Error()
	}
	return out
}

// snapshot returns the status with the fields that the server sets.
func (s *Server) snapshot() Status {
	st := s.cfg.State.Status()
	st.Now = time.Now()
	st.Conditions = notNil(s.conditions())
	st.Groups = notNil(st.Groups)
	s.findDangling(st.Groups)
	for _, g := range st.Groups {
		for i, t := range g.Types {
			if t.Errors > 0 {
				g.Types[i].ErrorNames, g.Types[i].ErrorReason = s.errors(g, t)
			}
			if t.Resources[xds.Nacked.String()]+t.Resources[xds.Suspect.String()] > 0 {
				s.notAccepted(g, &g.Types[i])
			}
		}
	}
	st.Streams = notNil(st.Streams)
	st.Admin = s.cfg.Addr
	st.Output = outputOf(s.cfg.Output)
	st.Found = notNil(st.Problems())
	return st
}

// conditions returns the conditions of readiness, with the time since when one does not hold.
func (s *Server) conditions() []Condition {
	conditions, now := slices.Clone(s.cfg.State.Ready()), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range conditions {
		c := &conditions[i]
		if c.OK {
			delete(s.failing, c.Name)
			continue
		}
		if _, known := s.failing[c.Name]; !known {
			s.failing[c.Name] = now
		}
		c.Since = s.failing[c.Name]
	}
	return conditions
}

// notAccepted sets what is known of the contents of a type that are rejected or suspect.
func (s *Server) notAccepted(g Group, t *Type) {
	for r := range s.cfg.State.Resources(Filter{Type: t.TypeURL}) {
		if r.Group != g.NodeID || r.Standing != xds.Nacked && r.Standing != xds.Suspect {
			continue
		}
		if !r.Changed.IsZero() && (t.NotAccepted.IsZero() || r.Changed.Before(t.NotAccepted)) {
			t.NotAccepted = r.Changed
		}
		if !r.Served() {
			t.NotAcceptedNew++
		}
		if len(t.NotAcceptedNames) < maxErrorNames {
			t.NotAcceptedNames = append(t.NotAcceptedNames, r.Name)
			t.NotAcceptedReason = cmp.Or(t.NotAcceptedReason, r.Reason)
		}
	}
}

// danglingSince returns since when a resource leads to a cluster that is not there.
func (s *Server) danglingSince(r Resource, cluster string) time.Time {
	since := r.Changed
	if s.cfg.Events == nil {
		return since
	}
	for _, e := range s.cfg.Events.Select(events.Filter{Node: r.Group, Type: xds.Short(xds.ClusterType), Name: cluster}) {
		if removed := latest(e.Time, e.Until); e.Counts["removed"] > 0 && removed.After(since) {
			since = removed
		}
	}
	return since
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// maxDangling bounds the dangling references that a group lists.
const maxDangling = 10

// findDangling sets what leads to clusters that are not there, for groups that know all of their clusters.
func (s *Server) findDangling(groups []Group) {
	type name struct{ group, cluster string }
	clusters := make(map[name]bool)
	for r := range s.cfg.State.Resources(Filter{Type: xds.ClusterType}) {
		if r.served() != nil {
			clusters[name{r.Group, r.Name}] = true
		}
	}
	for i := range groups {
		g := &groups[i]
		if !g.knowsAll(xds.ClusterType) {
			continue
		}
		for _, typeURL := range xds.Types() {
			if !xds.Info(typeURL).LeadsToClusters {
				continue
			}
			for r := range s.cfg.State.Resources(Filter{Type: typeURL}) {
				if r.Group != g.NodeID || r.served() == nil || r.Going {
					continue
				}
				seen := make(map[string]bool)
				xds.LeadsToClusters(&xds.Resource{Type: typeURL, Body: r.served()}, func(cluster string) {
					if seen[cluster] || clusters[name{r.Group, cluster}] {
						return
					}
					seen[cluster] = true
					if g.DanglingTotal++; len(g.Dangling) < maxDangling {
						g.Dangling = append(g.Dangling, Dangling{xds.Short(typeURL), r.Name, cluster, s.danglingSince(r, cluster)})
					}
				})
			}
		}
	}
}

// knowsAll reports whether all resources of a type are known.
func (g *Group) knowsAll(typeURL string) bool {
	return slices.ContainsFunc(g.Types, func(t Type) bool { return t.TypeURL == typeURL && t.Knowledge == xds.Complete.String() })
}

// errors returns the first names of a type for which an upstream reported an error, and the error of the first of them.
func (s *Server) errors(g Group, t Type) (names []string, first string) {
	for r := range s.cfg.State.Resources(Filter{Type: t.TypeURL}) {
		if r.Group == g.NodeID && r.Error != "" {
			if len(names) == 0 {
				first = r.Error
			}
			if names = append(names, r.Name); len(names) == maxErrorNames {
				break
			}
		}
	}
	return names, first
}

// maxErrorNames bounds how many names with an error a type lists.
const maxErrorNames = 3

// notNil returns an empty list for nil, which is [] in JSON.
func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.snapshot())
}

// root serves the page to browsers, and to others the status as text, as `holdfast status` prints it.
func (s *Server) root(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		page.ServeHTTP(w, r)
		return
	}
	var b strings.Builder
	_ = s.snapshot().WriteText(&b) // a Builder returns no error
	b.WriteString("\nMore: /livez /readyz?verbose /startupz /metrics /status.json /dump?type=CDS&name=NAME /explain?host=HOST&path=PATH /history\n" +
		"In a browser, this is a page.\n")
	text(w, http.StatusOK, b.String())
}

func (s *Server) quit(w http.ResponseWriter, _ *http.Request) {
	s.cfg.Log.Info("shutdown requested")
	text(w, http.StatusOK, "shutting down\n")
	s.cfg.Quit()
}

// logLevel changes the level of the log until the process ends.
func (s *Server) logLevel(w http.ResponseWriter, r *http.Request) {
	var level slog.Level
	name := r.URL.Query().Get("level")
	if err := level.UnmarshalText([]byte(name)); err != nil || !slices.Contains(LogLevels, strings.ToLower(name)) {
		text(w, http.StatusBadRequest, fmt.Sprintf("level %q: want one of %s\n", name, strings.Join(LogLevels, ", ")))
		return
	}
	before := s.cfg.LogLevel.Level()
	s.cfg.LogLevel.Set(min(level, slog.LevelInfo)) // so that the change is in the log
	s.cfg.Log.Info("log level changed", "from", before, "to", level)
	s.cfg.LogLevel.Set(level)
	text(w, http.StatusOK, fmt.Sprintf("the log level is %s, and was %s\n", strings.ToLower(level.String()), strings.ToLower(before.String())))
}

// LogLevels are the names of the levels of the log.
var LogLevels = []string{"debug", "info", "warn", "error"}

// action runs an action, and answers when it is done.
func (s *Server) action(name string, do func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.cfg.Log.Info(name + " requested")
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the action may take long
		if err := do(r.Context()); err != nil {
			text(w, http.StatusConflict, err.Error()+"\n")
			return
		}
		text(w, http.StatusOK, "done\n")
	}
}

// dump writes {"resources": […]}, one resource at a time, because the state may be large.
func (s *Server) dump(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	for key := range query {
		if key != "type" && key != "name" {
			text(w, http.StatusBadRequest, fmt.Sprintf("unknown parameter %q: want type or name\n", key))
			return
		}
	}
	filter := Filter{Name: query.Get("name")}
	if short := query.Get("type"); short != "" {
		var err error
		if filter.Type, err = ParseType(short); err != nil {
			text(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
	}
	header(w, "application/json", http.StatusOK)
	out := bufio.NewWriterSize(w, 64<<10)
	_, _ = out.WriteString("{\n  \"resources\": [")
	separator := "\n    "
	for res := range s.cfg.State.Resources(filter) {
		b, err := json.MarshalIndent(shown(res), "    ", "  ")
		if err != nil {
			b = fmt.Appendf(nil, "%q", "not shown: "+res.Name)
		}
		_, _ = out.WriteString(separator)
		if _, err := out.Write(b); err != nil {
			return // the client has disconnected
		}
		separator = ",\n    "
	}
	_, _ = out.WriteString("\n  ]\n}\n")
	_ = out.Flush()
}

// ParseType returns the type URL for a short name ("CDS", in any case), a message name or a type URL.
func ParseType(s string) (typeURL string, err error) {
	if url, ok := xds.TypeByShort(s); ok {
		return url, nil
	}
	switch {
	case strings.Contains(s, "/"):
		return s, nil
	case strings.Contains(s, "."):
		return "type.googleapis.com/" + s, nil
	}
	var known []string
	for _, url := range xds.Types() {
		known = append(known, xds.Short(url))
	}
	return "", fmt.Errorf("unknown type %q: want %s or a type URL", s, strings.Join(known, ", "))
}

// dumped is the JSON form of a Resource.
type dumped struct {
	Group string `json:"group"`
	Type  string `json:"type"`
	Resource
	Size int             `json:"size"`
	Body json.RawMessage `json:"resource,omitempty"`
	Good json.RawMessage `json:"good,omitempty"`
}

func shown(r Resource) dumped {
	d := dumped{Group: r.Group, Type: xds.Short(r.Type), Resource: r, Size: len(r.Body.GetValue())}
	if r.Body != nil {
		d.Body = redact.JSON(r.Body)
	}
	if r.Good != nil {
		d.Good = redact.JSON(r.Good)
	}
	return d
}

func header(w http.ResponseWriter, contentType string, code int) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(code)
}

func text(w http.ResponseWriter, code int, s string) {
	header(w, "text/plain; charset=utf-8", code)
	_, _ = w.Write([]byte(s)) // whoever asked may have gone
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	header(w, "application/json", code)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v)
}
