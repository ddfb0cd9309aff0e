package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/inspect"
	"github.com/holdfast-xds/holdfast/mesh/server"
)

// maxProblems is how many problems a status names.
const maxProblems = 500

// Status is what GET /status returns: who is connected, and what is wrong in the configuration.
type Status struct {
	Version string `json:"version"`
	// Started is when the process began.
	Started time.Time `json:"started"`
	Ready   bool      `json:"ready"`
	// NotReady says why proxies are not served; "" if they are.
	NotReady string      `json:"not_ready,omitempty"`
	Store    StoreStatus `json:"store"`
	// Documents are the numbers of documents in use, by kind.
	Documents map[string]int `json:"documents"`
	// Pushes is how many responses were sent to proxies since Started.
	Pushes int64 `json:"pushes"`
	// MaxProxies is how many proxies may be connected, 0 for any number; Full is set while a further one is refused.
	MaxProxies int                  `json:"max_proxies,omitempty"`
	Full       bool                 `json:"full,omitempty"`
	Proxies    []server.ProxyStatus `json:"proxies"`
	// Problems are errors of documents, and what is wrong with the server or its store.
	Problems []string `json:"problems"`
	// Warnings are at most 500 of WarningCount; Suppressed is how many more documents suppress.
	Warnings     []config.Report `json:"warnings"`
	WarningCount int             `json:"warning_count"`
	Suppressed   int             `json:"suppressed_warnings"`
}

// Document is a document as GET /documents returns it.
type Document struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Namespace  string            `json:"namespace,omitempty"`
	Name       string            `json:"name"`
	Labels     map[string]string `json:"labels,omitempty"`
	Origin     string            `json:"origin,omitempty"`
	Spec       json.RawMessage   `json:"spec"`
	// Status is that of a document of the Gateway API, of a ServiceEntry and of a WorkloadEntry.
	Status json.RawMessage `json:"status,omitempty"`
	// Problems are errors of what was written last, which is not in use, and warnings.
	Problems []config.Report `json:"problems,omitempty"`
}

// explain answers GET /explain?proxy=&host=&port=&path=&method=&header=NAME:VALUE&claims=JSON, with
// principal=, source= and sni= for the client of a gateway, and with inbound=true, these and tcp=true for a request that
// comes to the workload.
func (e *Environment) explain(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	req := inspect.Request{Host: q.Get("host"), Path: q.Get("path"), Method: q.Get("method"), Headers: make(map[string]string)}
	if text := q.Get("port"); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			http.Error(w, fmt.Sprintf("port %q: want a number from 1 to 65535", text), http.StatusBadRequest)
			return
		}
		req.Port = uint32(port)
	}
	for _, header := range q["header"] {
		name, value, _ := strings.Cut(header, ":")
		req.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	req.TCP = q.Get("tcp") == "true"
	req.Client = inspect.Client{Principal: q.Get("principal"), Address: q.Get("source"), ServerName: q.Get("sni")}
	if text := q.Get("claims"); text != "" {
		claims, err := inspect.ParseClaims(text)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Client.Claims = claims
	}
	explain := e.Explain
	if q.Get("inbound") == "true" {
		explain = e.ExplainInbound
	}
	explanation, err := explain(q.Get("proxy"), req)
	if errors.Is(err, ErrClient) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	respond(w, explanation)
}

// DiffRequest is the body of POST /diff, DiffResponse its answer.
type (
	DiffRequest struct {
		Proxy string            `json:"proxy"`
		Files map[string]string `json:"files"`
	}
	DiffResponse struct {
		Problems []string          `json:"problems"`
		Invalid  bool              `json:"invalid"`
		Proxies  []ProxyDifference `json:"proxies"`
	}
)

// diff answers POST /diff. The request is read before its place among the comparisons is taken, so that nobody waits for a slow sender, and to its
// end, so that its context ends when the client leaves.
func (e *Environment) diff(w http.ResponseWriter, r *http.Request) {
	if !e.enter(e.doors.bodies, w, r) {
		return
	}
	defer func() { <-e.doors.bodies }()
	var req DiffRequest
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, e.cfg.MaxDiff))
	if err == nil {
		err = json.Unmarshal(text, &req)
	}
	if err != nil {
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			e.doors.refused.WithLabelValues(refusedSize).Inc()
			http.Error(w, fmt.Sprintf("the documents have more than %d bytes, which is what --max-diff-bytes of this server allows: compare some of them, or raise it", e.cfg.MaxDiff), http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, "the request cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	e.one(e.doors.diffs, func(w http.ResponseWriter, r *http.Request) { e.compare(w, r, req) })(w, r)
}

func (e *Environment) compare(w http.ResponseWriter, r *http.Request, req DiffRequest) {
	proxies, problems, err := e.Diff(r.Context(), req.Proxy, req.Files)
	switch {
	case r.Context().Err() != nil:
		http.Error(w, "the client has left", http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	resp := DiffResponse{Proxies: proxies, Problems: []string{}, Invalid: config.Invalid(problems)}
	shown, _ := config.Unsuppressed(problems)
	for _, p := range shown {
		resp.Problems = append(resp.Problems, p.String())
	}
	respond(w, resp)
}

func respond(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client went away
}

// countReady registers whether proxies are served, for alerts.
func (e *Environment) countReady() {
	e.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_mesh_ready", Help: "1 if /ready says that proxies are served, otherwise 0.",
	}, func() float64 {
		if e.ready() != nil {
			return 0
		}
		return 1
	}))
}

// ready returns nil once proxies are served, and otherwise why they are not.
func (e *Environment) ready() error {
	switch {
	case !e.listening.Load():
		if why := e.config.Waiting(); why != nil {
			return why
		}
		return errors.New("the configuration has not been read yet")
	case e.stopping.Load():
		return errors.New("the control plane is stopping")
	}
	if why, _ := e.behind(); why != "" {
		return errors.New("this replica is behind the others: " + why)
	}
	if e.ca != nil {
		_, err := e.ca.Certificate()
		return err
	}
	return nil
}

// Status returns who is connected, and what is wrong in the configuration.
func (e *Environment) Status() Status {
	why := e.ready()
	s := Status{
		Version: e.cfg.Version, Started: e.started, Ready: why == nil, Store: e.storeStatus(), Documents: e.documentCounts(), Pushes: e.pushes(),
		MaxProxies: e.cfg.MaxProxies, Full: e.server.Full(), Proxies: e.server.Proxies(), Problems: []string{}, Warnings: []config.Report{},
	}
	if why != nil {
		s.NotReady = why.Error()
	}
	if why, _ := e.behind(); why != "" {
		s.Problems = append(s.Problems, "this replica is behind the others, and serves nobody: "+why)
	}
	s.addProblems(e.problems(s.Ready))
	return s
}

// Documents returns the documents of some kinds, of a namespace and with a name; none or "" for all. The workloads that have
// registered follow the WorkloadEntries that are documents. Secrets have no content.
func (e *Environment) Documents(kinds []config.Kind, namespace, name string) []Document {
	out := []Document{}
	var status apiStatus
	problems := make(map[config.Key][]config.Report)
	shown, _ := config.Unsuppressed(e.problems(e.ready() == nil))
	for _, p := range shown {
		problems[p.Key] = append(problems[p.Key], p.Report())
	}
	for _, schema := range config.Schemas {
		if len(kinds) > 0 && !slices.Contains(kinds, schema.Kind) {
			continue
		}
		all := e.config.List(schema.Kind, namespace)
		if schema.Kind == config.WorkloadEntry {
			all = e.registrar.WorkloadEntries(namespace)
		}
		for _, c := range all {
			if name == "" || c.Name == name {
				d := document(c)
				d.Problems = problems[c.Meta.Key]
				if schema.Group == gatewayv1.GroupName {
					if status == nil {
						status = e.apiStatus()
					}
					status.add(&d, c.Meta.Key)
				}
				out = append(out, d)
			}
		}
	}
	return out
}

func document(c *config.Config) Document {
	d := Document{
		APIVersion: c.APIVersion, Kind: c.Kind.Short(), Namespace: c.Namespace, Name: c.Name, Labels: c.Labels, Origin: c.Origin,
	}
	switch spec := c.Spec.(type) {
	case proto.Message:
		d.Spec, _ = protojson.Marshal(spec) // it was read from JSON
	default:
		if c.Kind != config.Secret {
			d.Spec, _ = json.Marshal(spec)
		}
	}
	if c.Status != nil {
		d.Status, _ = protojson.Marshal(c.Status) // it was read from JSON, or made here
	}
	if d.Spec == nil {
		d.Spec = json.RawMessage("{}")
	}
	return d
}
