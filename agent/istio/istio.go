// Package istio lets the agent stand in for Istio's pilot-agent in a pod that istiod's webhook has changed.
//
// The webhook leads the kubelet's probes and Prometheus to port 15020, where pilot-agent listens; a Server
// serves the same paths on the agent's health listener:
//
//   - /app-health/CONTAINER/{readyz,livez,startupz} and /app-lifecycle/CONTAINER/{prestopz,poststartz}: the
//     application's probes and lifecycle handlers (ISTIO_KUBE_APP_PROBERS);
//   - /stats/prometheus: the metrics of Envoy, the application (ISTIO_PROMETHEUS_ANNOTATIONS) and the agent;
//   - /healthz/ready: readiness, which the health listener itself answers, as /readyz;
//   - POST /quitquitquit and POST /drain: the end of the pod's proxy, for Jobs, and its drain. The end is the
//     agent's usual one: an Envoy that is its child is drained first, which pilot-agent leaves out. Only processes
//     of the pod may call them: the peer must have a loopback address, and not one of those from which Envoy
//     passes on requests of other pods (127.0.0.6 and ::6), which pilot-agent does not exclude. Who may run a
//     process in the pod's network could as well break the proxy by other means.
//
// What pilot-agent also serves and the agent does not: /metrics is the agent's own metrics only, as without
// this package (pilot-agent answers it like /stats/prometheus). /debug/ndsz shows the table of pilot-agent's
// DNS proxy, which the agent does not have. /debug/pprof is on the admin socket (--pprof), which says who
// asks, and not on a port of the pod.
//
// CheckResource, for the sources of the agent, rejects Wasm modules that pilot-agent would download.
//
// All methods may be called concurrently. What a request starts has ended when its handler returns.
package istio

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-xds/holdfast/agent/probe"
)

// Config says what the webhook has written into the environment of the container. FromEnv reads it.
type Config struct {
	probers      map[string]*prober // by path
	destination  string             // of probes: the pod's address, or localhost
	source       netip.Addr         // of probes
	applications []string           // URLs of metrics
	envoy        string             // URL of Envoy's metrics, if its admin interface is not known
}

// Parts are the parts of the agent that a Server needs.
type Parts struct {
	// Envoy requests Envoy's metrics in Prometheus' text format, with a query of the client. If it is nil,
	// they are requested from Envoy's listener for Prometheus.
	Envoy func(ctx context.Context, query string) (*http.Response, error)
	// Own gathers the metrics of the agent.
	Own prometheus.Gatherer
	// Scraped counts a part of a scrape and its result, one of Results.
	Scraped func(part, result string)
	// Quit begins the graceful end of the agent and must not block. Drain drains Envoy, and returns when
	// that is done or the agent ends.
	Quit  func()
	Drain func() error
	Log   *slog.Logger // may be nil
}

// Server serves what pilot-agent serves. Make one with New.
type Server struct {
	cfg     Config
	parts   Parts
	probes  *http.Client // of the application
	scrapes *http.Client // of metrics
	mark    string       // of its requests, see ownHeader

	probing, scraping *slots

	mu      sync.Mutex
	failing map[string]bool // by what is scraped, whether the last scrape failed
}

// New returns a Server; it does no I/O.
func New(cfg Config, parts Parts) *Server {
	parts.Log = cmp.Or(parts.Log, slog.New(slog.DiscardHandler))
	return &Server{
		cfg: cfg, parts: parts, probes: probe.NewClient(probe.DialFrom(cfg.source), withinHost), scrapes: newScrapeClient(), mark: rand.Text(),
		probing: newSlots("probes", 0, maxProbesOfOne), scraping: newSlots("scrapes", maxScrapes, maxOfOne),
		failing: make(map[string]bool),
	}
}

// Register adds the paths of the package comment, but for /healthz/ready.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /app-health/", s.probe)
	mux.HandleFunc("GET /app-lifecycle/", s.probe)
	mux.HandleFunc("GET /stats/prometheus", s.merged)
	mux.HandleFunc("POST /quitquitquit", fromThePod(s.quit))
	mux.HandleFunc("POST /drain", fromThePod(s.drain))
}

func (s *Server) quit(w http.ResponseWriter, _ *http.Request) {
	s.parts.Log.Info("shutdown requested with /quitquitquit")
	text(w, http.StatusOK, "OK")
	s.parts.Quit()
}

// drain answers at once, as pilot-agent does: clients wait for the answer, and a drain takes long.
func (s *Server) drain(w http.ResponseWriter, _ *http.Request) {
	s.parts.Log.Info("drain requested with /drain")
	w.Header().Set("Content-Length", "2")
	text(w, http.StatusOK, "OK")
	_ = http.NewResponseController(w).Flush()
	if err := s.parts.Drain(); err != nil {
		s.parts.Log.Warn("the drain that was requested with /drain ended early", "err", err)
	}
}

// Envoy sends requests of other pods to the pod's ports from these addresses, and traffic from them is not
// redirected to Envoy again.
var (
	inboundIPv4 = netip.AddrFrom4([4]byte{127, 0, 0, 6})
	inboundIPv6 = netip.AddrFrom16([16]byte{15: 6})
)

// fromThePod rejects requests that do not come from a process of the pod.
func fromThePod(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if addr := peer.Addr().Unmap(); err != nil || !addr.IsLoopback() || addr == inboundIPv4 {
			text(w, http.StatusForbidden, "only processes of this pod may do this: send the request to localhost\n")
			return
		}
		next(w, r)
	}
}

// text answers with a text that may be of the application: a browser must not take it for a page.
func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(s)) // whoever asked may have gone
}
