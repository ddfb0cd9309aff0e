package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/prometheustest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// prometheus is a real one, which scrapes an agent and evaluates the rules of deploy/monitoring.
type prometheus struct {
	*world
	*testbed.Process
	addr string
}

// startPrometheus scrapes the agent at an address four times a second. Rules wait a fiftieth of
// the time that they have in production.
func (w *world) startPrometheus(agent string) *prometheus {
	w.Helper()
	rules, err := os.ReadFile(filepath.Join(envoytest.Root(w), "deploy", "monitoring", "rules.yaml"))
	w.check(err)
	quicker := regexp.MustCompile(`(?m)^( +for: )(\d+)m$`).ReplaceAllStringFunc(string(rules), func(line string) string {
		prefix, minutes, _ := strings.Cut(line, "for: ")
		n, err := strconv.Atoi(strings.TrimSuffix(minutes, "m"))
		w.check(err)
		return fmt.Sprintf("%sfor: %dms", prefix, n*60*1000/50)
	})
	w.check(os.WriteFile(w.path("rules.yaml"), []byte(quicker), 0o600))
	config, err := json.Marshal(map[string]any{ // which is YAML, too
		"global":     map[string]any{"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
		"rule_files": []string{w.path("rules.yaml")},
		"scrape_configs": []any{map[string]any{
			"job_name": "holdfast",
			"static_configs": []any{map[string]any{
				"targets": []string{agent}, "labels": map[string]string{"namespace": "shop", "pod": "web-1"},
			}},
		}},
	})
	w.check(err)
	w.check(os.WriteFile(w.path("prometheus.yaml"), config, 0o600))
	p := &prometheus{world: w, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))}
	p.Process, err = testbed.Start("prometheus", w.path("prometheus.log"), prometheustest.Binary(w, "prometheus"),
		"--config.file", w.path("prometheus.yaml"), "--storage.tsdb.path", w.path("tsdb"), "--web.listen-address", p.addr, "--log.level", "warn")
	w.check(err)
	w.Cleanup(func() {
		p.Kill()
		if w.Failed() {
			w.Logf("end of Prometheus's log:\n%s", p.Tail(30))
		}
	})
	return p
}

// get asks the API of Prometheus.
func (p *prometheus) get(path string, query url.Values, into any) error {
	got, err := fetch(&http.Client{Timeout: limit}, "http://"+p.addr+"/api/v1/"+path+"?"+query.Encode())
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil {
		return fmt.Errorf("%s answers %d %q: %w", path, got.status, got.body, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s %s: %s", path, query.Get("query"), answer.Error)
	}
	return nil
}

// series returns how many series are the answer to a query.
func (p *prometheus) series(query string) (int, error) {
	var data struct{ Result []json.RawMessage }
	err := p.get("query", url.Values{"query": {query}}, &data)
	return len(data.Result), err
}

// alerting waits until an alert is pending or firing.
func (p *prometheus) alerting(name string) {
	p.Helper()
	p.check(p.Process.Wait(limit, func() error {
		var data struct {
			Alerts []struct{ Labels map[string]string }
		}
		if err := p.get("alerts", nil, &data); err != nil {
			return err
		}
		var names []string
		for _, a := range data.Alerts {
			names = append(names, a.Labels["alertname"])
		}
		if !slices.Contains(names, name) {
			return fmt.Errorf("the alerts are %v, want %s", names, name)
		}
		return nil
	}))
}

// silent waits until no alert but those named is pending or firing.
func (p *prometheus) silent(but ...string) {
	p.Helper()
	p.check(p.Process.Wait(limit, func() error {
		n, err := p.series(`ALERTS{alertname!~"` + strings.Join(but, "|") + `"}`)
		if err == nil && n > 0 {
			var data any
			_ = p.get("alerts", nil, &data)
			err = fmt.Errorf("alerts: %v", data)
		}
		return err
	}))
}

// dashboardQueries are the queries of the panels and annotations of deploy/monitoring/dashboard.json, by
// title, with values for its variables.
func (w *world) dashboardQueries() map[string]string {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(envoytest.Root(w), "deploy", "monitoring", "dashboard.json"))
	w.check(err)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, RefID string }
		}
		Annotations struct {
			List []struct{ Name, Expr string }
		}
	}
	w.check(json.Unmarshal(text, &d))
	values := strings.NewReplacer("$namespace", "shop", "$pod", ".*", "$__rate_interval", "20s")
	queries := make(map[string]string)
	for _, panel := range d.Panels {
		for _, q := range panel.Targets {
			queries[panel.Title+" "+q.RefID] = values.Replace(q.Expr)
		}
	}
	for _, a := range d.Annotations.List {
		queries[a.Name] = values.Replace(a.Expr)
	}
	return queries
}

// controlPlaneCertificate makes a certificate for the control plane, cert.pem with the key cert.key. The agent, too, uses
// and trusts it.
func (w *world) controlPlaneCertificate() tls.Certificate {
	w.Helper()
	out, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
		"-subj", "/CN=control plane", "-addext", "subjectAltName=IP:127.0.0.1", "-out", w.path("cert.pem"), "-keyout", w.path("cert.key")).CombinedOutput()
	if err != nil {
		w.Fatalf("openssl: %v\n%s", err, out)
	}
	pair, err := tls.LoadX509KeyPair(w.path("cert.pem"), w.path("cert.key"))
	w.check(err)
	return pair
}

// A real Prometheus gets an answer to every query of the dashboard from an agent that has all there
// is: a child, certificates, TLS to its control plane, a state, a seed, a rehearsal, metrics merged as for Istio, a probe. It loads the alerts, which are silent;
// when the control plane goes away, and when Envoy NACKs, they are not.
func TestTheDashboardAndTheAlertsWithARealPrometheus(t *testing.T) {
	testbed.Long(t)
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	server := w.controlPlaneCertificate()
	restart := func() {
		w.cp.Serve(w.listen(), grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{server}})))
	}
	w.cp.Stop()
	restart()
	file, adminAddr := w.bootstrap()
	health := net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
	seedKey, _ := w.seedKeys()
	w.agentArgs = []string{holdfast(t), "run", "--upstream", w.cpAddr,
		"--upstream-ca", w.path("cert.pem"), "--upstream-cert", w.path("cert.pem"), "--upstream-key", w.path("cert.key"),
		"--socket", w.path("xds.sock"), "--admin", "unix:" + w.path("admin.sock"), "--health", health, "--istio", "--workload-probe", "tcp://" + w.v1.Addr, "--workload-probe-period", "1s",
		"--state-dir", w.path("state"), "--seed-publish", w.path("seed"), "--seed-key", seedKey,
		"--ca", "dev:" + w.path("dev-ca"), "--identity", "spiffe://example.org/ns/shop/sa/web",
		"--bootstrap", file, "--", envoytest.Binary(t), "-c", file, "-l", "warn"}
	w.runAgent()
	w.envoy = &testbed.Envoy{Process: w.agent, Admin: adminAddr}
	w.serves("v1")
	w.check(testbed.Eventually(limit, w.ready))
	if code, out := run(t, "rehearse", "--admin", "unix:"+w.path("admin.sock")); code != 0 {
		t.Errorf("rehearse: %d\n%s", code, out)
	}
	if got, err := fetch(&http.Client{Timeout: limit}, "http://"+health+"/stats/prometheus"); err != nil || got.status != http.StatusOK {
		t.Errorf("/stats/prometheus: %d (%v)", got.status, err)
	}
	p := w.startPrometheus(health)

	var data struct {
		Groups []struct {
			Name  string
			Rules []struct{ Name, Health, LastError string }
		}
	}
	w.check(p.Process.Wait(limit, func() error {
		if err := p.get("rules", nil, &data); err != nil {
			return err
		}
		rules := 0
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				rules++
				if r.Health != "ok" {
					return fmt.Errorf("rule %s: %s %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		if rules < 18 {
			return fmt.Errorf("%d rules are loaded", rules)
		}
		return nil
	}))

	queries := w.dashboardQueries()
	if len(queries) < 60 {
		t.Fatalf("the dashboard has %d queries", len(queries))
	}
	w.cp.Set(xdstest.Route("ingress", "c2")) // so that there is a rate
	w.serves("v2")
	for title, query := range queries {
		// What is there only while something is wrong: an alternative of the same panel is always there. What a shadow
		// (TestAShadowGoesOnComparing) and an injector have is not there at all.
		if strings.HasSuffix(query, "> 0") || title == "Restarts of agents" || strings.Contains(query, "holdfast_shadow_") || strings.Contains(query, "holdfast_injector_") {
			if _, err := p.series(query); err != nil {
				t.Errorf("%s: %v", title, err)
			}
			continue
		}
		w.check(p.Process.Wait(limit, func() error {
			n, err := p.series(query)
			if err == nil && n == 0 {
				err = fmt.Errorf("%s: no answer to %s", title, query)
			}
			return err
		}))
	}
	p.silent()

	w.cp.Set(w.listenerAt(w.v1.Addr)) // whose port is taken
	p.alerting("HoldfastResourcesRejected")
	w.cp.Set(xdstest.Listener("ingress", uint32(w.port), "ingress"))
	p.silent()
	w.cp.Stop()
	p.alerting("HoldfastUpstreamDown")
	p.alerting("HoldfastFleetDisconnected")
	restart()
	p.silent()
	w.agent.Kill()
	p.alerting("HoldfastAgentDown")
}
