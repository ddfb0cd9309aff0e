package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/prometheustest"
)

var update = flag.Bool("update", false, "write the rules for the Operator in deploy/monitoring anew")

const dashboardFile = "monitoring/dashboard.json"

// ruleSet is a file of rules of deploy/monitoring, and what belongs to it.
type ruleSet struct {
	name string // of the objects for the Operator
	file string // its rules, below deploy
	rule string // the same for the Operator
	// page has a paragraph for each alert, metrics a table of those that the rules may be about, those that match others
	// excepted.
	page, metrics string
	others        *regexp.Regexp
	cases         []alertCase
}

var ruleSets = []ruleSet{
	{"holdfast", "monitoring/rules.yaml", "monitoring/prometheusrule.yaml", "troubleshooting.md", "metrics.md", regexp.MustCompile(`^(up|process_start_time_seconds)$`), alertCases},
	// That etcd has the metrics of its name, test/peers/etcd shows.
	{"holdfast-mesh", "monitoring/mesh-rules.yaml", "monitoring/mesh-prometheusrule.yaml", "mesh-production.md", "mesh.md", regexp.MustCompile(`^etcd_`), meshAlertCases},
	// That the API server has the metrics of its name, test/kubernetes shows.
	{"holdfast-injector", "monitoring/injector-rules.yaml", "monitoring/injector-prometheusrule.yaml", "injector.md", "injector.md", regexp.MustCompile(`^apiserver_`), injectorAlertCases},
}

// alert is a rule.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alerts returns the rules of a file by their names.
func (set ruleSet) alerts(t *testing.T) map[string]alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(tree(t)[set.file], &file); err != nil {
		t.Fatal(err)
	}
	rules := make(map[string]alert)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if _, twice := rules[r.Alert]; twice {
				t.Errorf("%s is there twice", r.Alert)
			}
			rules[r.Alert] = r
		}
	}
	return rules
}

// metrics returns the names of a page's tables, and the series of histograms.
func metrics(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `((?:holdfast|pilot)_[a-z0-9_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(text), -1) {
		if row[2] != "histogram" {
			known[row[1]] = true
			continue
		}
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			known[row[1]+suffix] = true
		}
	}
	return known
}

var metricName = regexp.MustCompile(`\b(?:holdfast|pilot|etcd|apiserver)_[a-z0-9_]+`)

// The Operator gets the same rules.
func TestMonitoringHasTheSameRulesForTheOperator(t *testing.T) {
	for _, set := range ruleSets {
		var b strings.Builder
		fmt.Fprintf(&b, `# The rules of %s for the Prometheus Operator, whose Prometheus must select this object
# (ruleSelector). Made from %[1]s by: go test ./test/deploy -run Monitoring -update
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: %[2]s
  labels:
    app.kubernetes.io/name: %[2]s
spec:
`, filepath.Base(set.file), set.name)
		for line := range strings.Lines(string(tree(t)[set.file])) {
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.TrimSpace(line) == "":
				b.WriteString(line)
			default:
				b.WriteString("  " + line)
			}
		}
		if *update {
			if err := os.WriteFile(filepath.Join(root(t), "deploy", filepath.FromSlash(set.rule)), []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := string(tree(t)[set.rule]); got != b.String() {
			t.Errorf("deploy/%s is not made of deploy/%s: run `go test . -run Monitoring -update` in test/deploy", set.rule, set.file)
		}
	}
}

// What the Operator's objects say is what its types know, and selects the pods of deploy/.
func TestMonitoringSelectsThePodsOfDeploy(t *testing.T) {
	files := filesys.MakeFsInMemory()
	for name, data := range tree(t) {
		if strings.HasPrefix(name, "monitoring/") {
			if err := files.WriteFile("/"+name, data); err != nil {
				t.Fatal(err)
			}
		}
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/monitoring")
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	monitors := make(map[string]*monitoringv1.PodMonitor)
	rules := make(map[string]int)
	d := deployment{"monitoring", decode(t, "monitoring", text)}
	for _, object := range d.objects {
		switch o := object.(type) {
		case *monitoringv1.PodMonitor:
			monitors[o.Name] = o
		case *monitoringv1.PrometheusRule:
			for _, g := range o.Spec.Groups {
				rules[o.Name] += len(g.Rules)
			}
		}
	}
	for _, set := range ruleSets {
		if want := len(set.alerts(t)); rules[set.name] != want {
			t.Errorf("the PrometheusRule %s has %d rules, and %s %d", set.name, rules[set.name], set.file, want)
		}
		if m := monitors[set.name]; m == nil || len(m.Spec.PodMetricsEndpoints) != 1 {
			t.Fatalf("the PodMonitor %s is %v", set.name, m)
		}
	}
	selectsTheMesh(t, monitors["holdfast-mesh"])
	injector := only[*appsv1.Deployment](t, injectorObjects(t)).Spec.Template
	scrapes(t, monitors["holdfast-injector"], injector, "deploy/injector")
	monitor := monitors["holdfast"]
	if !json.Valid([]byte(d.config(t, "holdfast-dashboard")["holdfast.json"])) {
		t.Error("the ConfigMap holdfast-dashboard has no holdfast.json")
	}
	if len(monitor.Spec.Selector.MatchExpressions) != 1 {
		t.Fatalf("the PodMonitor is %v", monitor)
	}
	port, label := monitor.Spec.PodMetricsEndpoints[0].Port, monitor.Spec.Selector.MatchExpressions[0].Key
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template
		if _, ok := pod.Labels[label]; !ok {
			t.Errorf("%s: the pods lack the label %s, by which the PodMonitor selects", d.name, label)
		}
		for _, c := range containers(pod.Spec) {
			ports := 0
			for _, p := range c.Ports {
				if p.Name == *port {
					ports++
				}
			}
			if runs(c) != (ports == 1) {
				t.Errorf("%s: container %s has %d ports %q, which the PodMonitor scrapes", d.name, c.Name, ports, *port)
			}
		}
	}
}

// selectsTheMesh fails the test unless a PodMonitor selects the pods of the Deployment in docs/mesh-production.md.
func selectsTheMesh(t *testing.T, monitor *monitoringv1.PodMonitor) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "mesh-production.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	scrapes(t, monitor, d.Spec.Template, "docs/mesh-production.md")
}

// scrapes fails the test unless a PodMonitor selects pods, which a file describes, and scrapes a port that they have.
func scrapes(t *testing.T, monitor *monitoringv1.PodMonitor, pod corev1.PodTemplateSpec, file string) {
	t.Helper()
	for name, value := range monitor.Spec.Selector.MatchLabels {
		if pod.Labels[name] != value {
			t.Errorf("the PodMonitor selects %s=%s, and the pods of %s have %v", name, value, file, pod.Labels)
		}
	}
	if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == *monitor.Spec.PodMetricsEndpoints[0].Port }) {
		t.Errorf("the pods of %s have no port %q", file, *monitor.Spec.PodMetricsEndpoints[0].Port)
	}
}

// Each alert uses metrics that there are, says how bad it is, and has a paragraph of a page that its runbook_url leads to.
func TestMonitoringAlertsHaveARunbook(t *testing.T) {
	for _, set := range ruleSets {
		text, err := os.ReadFile(filepath.Join(root(t), "docs", set.page))
		if err != nil {
			t.Fatal(err)
		}
		paragraphs := make(map[string]string) // by the name of the alert
		for _, part := range strings.Split(string(text), "\n### ")[1:] {
			name, paragraph, _ := strings.Cut(part, "\n")
			paragraph, _, _ = strings.Cut(paragraph, "\n## ")
			if strings.HasPrefix(name, "Holdfast") {
				paragraphs[name] = strings.TrimSpace(paragraph)
			}
		}
		known := metrics(t, set.metrics)
		rules := set.alerts(t)
		for name, r := range rules {
			for _, metric := range metricName.FindAllString(r.Expr, -1) {
				if !known[metric] && !set.others.MatchString(metric) {
					t.Errorf("%s: docs/%s does not know %s", name, set.metrics, metric)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s: severity %q", name, r.Labels["severity"])
			}
			if len(paragraphs[name]) < 100 {
				t.Errorf("%s: docs/%s has no paragraph with its name as a heading (###): %q", name, set.page, paragraphs[name])
			}
			page := "https://github.com/holdfast-xds/holdfast/blob/main/docs/" + set.page + "#"
			if want := page + strings.ToLower(name); r.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url is %s, want %s", name, r.Annotations["runbook_url"], want)
			}
		}
		for name := range paragraphs {
			if _, ok := rules[name]; !ok {
				t.Errorf("docs/%s has a paragraph for %s, which is no alert", set.page, name)
			}
		}
	}
}

// dashboard is what the tests look at.
type dashboard struct {
	UID    string `json:"uid"`
	Panels []struct {
		ID          int    `json:"id"`
		Type        string `json:"type"`
		Title       string `json:"title"`
		Description string `json:"description"`
		Datasource  struct {
			UID string `json:"uid"`
		} `json:"datasource"`
		GridPos struct{ X, Y, W, H int } `json:"gridPos"`
		Targets []struct {
			Expr       string `json:"expr"`
			RefID      string `json:"refId"`
			Datasource struct {
				UID string `json:"uid"`
			} `json:"datasource"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name string `json:"name"`
		} `json:"list"`
	} `json:"templating"`
}

// The dashboard shows every metric that there is, each panel where no other is, and asks
// only the Prometheus and the pods that are chosen.
func TestMonitoringDashboardShowsEveryMetric(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal(tree(t)[dashboardFile], &d); err != nil {
		t.Fatal(err)
	}
	variables := []string{"__rate_interval"}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	known, shown := metrics(t, "metrics.md"), make(map[string]bool)
	maps.Copy(known, metrics(t, "injector.md"))
	ids := make(map[int]string)
	taken := make(map[[2]int]string) // squares of the grid
	for _, p := range d.Panels {
		if other, ok := ids[p.ID]; ok {
			t.Errorf("panels %q and %q have the same id", other, p.Title)
		}
		ids[p.ID] = p.Title
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 1 || p.GridPos.H < 1 {
			t.Errorf("panel %q is beside the grid: %v", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				square := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[square]; ok {
					t.Fatalf("panels %q and %q overlap", other, p.Title)
				}
				taken[square] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q lacks a description, a query, or the variable datasource", p.Title)
		}
		for _, q := range p.Targets {
			if q.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q: query %s does not ask the chosen Prometheus", p.Title, q.RefID)
			}
			for _, metric := range metricName.FindAllString(q.Expr, -1) {
				shown[metric] = true
				if !known[metric] {
					t.Errorf("panel %q: docs/metrics.md and docs/injector.md do not know %s", p.Title, metric)
				}
			}
			for _, v := range regexp.MustCompile(`\$\{?([a-z_]+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(variables, v[1]) {
					t.Errorf("panel %q: there is no variable %s", p.Title, v[1])
				}
			}
			if !strings.Contains(q.Expr, `namespace=~"$namespace",pod=~"$pod"`) {
				t.Errorf("panel %q: query %s shows pods that are not chosen", p.Title, q.RefID)
			}
		}
	}
	for metric := range known {
		if strings.HasSuffix(metric, "_sum") || metric == "holdfast_upstream_attempt_duration_seconds_count" || metric == "holdfast_injector_review_duration_seconds_count" {
			continue // of a histogram that is shown
		}
		if !shown[metric] {
			t.Errorf("no panel shows %s", metric)
		}
	}
}

// TestMonitoringAlertsFire has promtool evaluate each rule over series with which it fires, says
// what it is meant to say, and over series with which it is silent.
func TestMonitoringAlertsFire(t *testing.T) {
	promtool := prometheustest.Binary(t, "promtool")
	for _, set := range ruleSets {
		set.fire(t, promtool)
	}
}

// fire is TestMonitoringAlertsFire for one file.
func (set ruleSet) fire(t *testing.T, promtool string) {
	t.Helper()
	rules := set.alerts(t)
	type object = map[string]any
	var groups []object
	fires, silent := make(map[string]bool), make(map[string]bool)
	for i, c := range set.cases {
		rule, ok := rules[c.alert]
		if !ok {
			t.Errorf("there is no alert %s", c.alert)
			continue
		}
		var series []object
		for _, s := range c.series {
			name, values, _ := strings.Cut(s, " ")
			series = append(series, object{"series": strings.ReplaceAll(name, "POD", `namespace="shop",pod="web-1"`), "values": values})
		}
		expected := []object{}
		if c.summary == "" {
			silent[c.alert] = true
		} else {
			fires[c.alert] = true
			labels := object{"severity": rule.Labels["severity"]}
			for _, pair := range strings.Fields(strings.ReplaceAll(c.labels, "POD", "namespace=shop pod=web-1")) {
				name, value, _ := strings.Cut(pair, "=")
				labels[name] = strings.ReplaceAll(value, "_", " ")
			}
			expected = append(expected, object{"exp_labels": labels, "exp_annotations": object{
				"summary": c.summary, "runbook_url": rule.Annotations["runbook_url"],
			}})
		}
		groups = append(groups, object{
			"name": fmt.Sprintf("case %d, %s", i, c.alert), "interval": "1m", "input_series": series,
			"alert_rule_test": []object{{"eval_time": c.at, "alertname": c.alert, "exp_alerts": expected}},
		})
	}
	for name := range rules {
		if !fires[name] || !silent[name] {
			t.Errorf("%s: cases in which it fires: %v, in which it is silent: %v", name, fires[name], silent[name])
		}
	}
	file := filepath.Join(t.TempDir(), "cases.yaml")
	text, err := yaml.Marshal(object{
		"rule_files":          []string{filepath.Join(root(t), "deploy", filepath.FromSlash(set.file))},
		"evaluation_interval": "1m", "tests": groups,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}
