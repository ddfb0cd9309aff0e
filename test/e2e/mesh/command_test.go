package mesh

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

func TestGetShowsTheDocumentsThatAreServed(t *testing.T) {
	w := newWorld(t)
	w.startMesh()
	code, out, _ := run(t, "get", "--admin", w.admin)
	for _, want := range []string{"KIND", "ServiceEntry", "DestinationRule", "VirtualService", "shop", "route.yaml"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("get: %d, without %q:\n%s", code, want, out)
		}
	}
	code, out, _ = run(t, "get", "virtualservices", "web", "-n", "shop", "-o", "yaml", "--admin", w.admin)
	var docs []map[string]any
	if err := yaml.Unmarshal([]byte(out), &docs); code != 0 || err != nil || len(docs) != 1 || docs[0]["name"] != "web" || docs[0]["spec"] == nil {
		t.Errorf("get of one: %d %v\n%s", code, err, out)
	}
	w.write("route", strings.Replace(w.route(0, 100), "weight: 100", "weight: -1", 1))
	w.problem("weight")
	if _, after, _ := run(t, "get", "VirtualService", "web", "-o", "yaml", "--admin", w.admin); after != out {
		t.Errorf("of a document that is not valid any more, get shows\n%s\nwant its last valid content\n%s", after, out)
	}
	if _, same, _ := run(t, "get", "virtualservices", "shop/web", "-o", "yaml", "--admin", w.admin); same != out {
		t.Errorf("by its plural and its namespace, get shows\n%s\nwant\n%s", same, out)
	}
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"a kind without documents", []string{"get", "Gateway"}, 1, "the server has no Gateway"},
		{"a kind that does not exist", []string{"get", "Services"}, 1, "the server has no Service"},
		{"a kind that nobody knows", []string{"get", "Foo"}, 2, "want one of ServiceEntry, "},
		{"a name that is not there", []string{"get", "ServiceEntry", "nobody"}, 1, "the server has no ServiceEntry nobody: `holdfast-mesh get ServiceEntry` lists what it has"},
		{"a name in another namespace", []string{"get", "ServiceEntry", "other/web"}, 1, "the server has no ServiceEntry web in the namespace other"},
		{"two namespaces", []string{"get", "ServiceEntry", "shop/web", "-n", "other"}, 2, "leave one of them out"},
		{"another format", []string{"get", "-o", "xml"}, 2, `--output: "xml": want table, yaml or json`},
		{"too many arguments", []string{"get", "a", "b", "c"}, 2, "accepts at most 2 arg(s)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, stderr := run(t, append(tc.args, "--admin", w.admin)...)
			if code != tc.code || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, %q; want %d, %q", code, stderr, tc.code, tc.stderr)
			}
		})
	}
}

// explain and diff ask about a proxy that is connected; what they change is nothing.
func TestExplainAndDiffAskAboutAProxy(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.synced()
	before := w.updates()
	to := fmt.Sprintf("%s:%d/", host, w.port)
	w.check(os.Mkdir(w.path("next"), 0o700))
	for name, text := range map[string]string{"service": w.entry(host, w.port, w.v1, w.v2), "rule": subsets("v1", "v2"), "route": w.route(0, 100)} {
		w.check(os.WriteFile(w.path("next/"+name+".yaml"), []byte(text), 0o600))
	}
	w.check(os.WriteFile(w.path("bad.yaml"), []byte(w.route(-1, 101)), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"a request", []string{"explain", "--proxy", "client-1", to}, 0, "DestinationRule shop/web (rule.yaml:1)"},
		{"a host that nobody has", []string{"explain", "--proxy", "client-1", "nobody.internal:" + strconv.Itoa(w.port)}, 0, "PassthroughCluster"},
		{"a request, checked", []string{"explain", "--check", "--proxy", "client-1", to}, 0, "DestinationRule shop/web (rule.yaml:1)"},
		{"a request that nobody gets", []string{"explain", "--check", "--proxy", "client-1", "web.shop.internal:1"}, 1, "has no listener for port 1"},
		{"a proxy that is not connected", []string{"explain", "--proxy", "nobody", to}, 1, "nobody"},
		{"no proxy", []string{"explain", to}, 2, "--proxy"},
		{"no request", []string{"explain", "--proxy", "client-1"}, 2, ""},
		{"the documents that are served", []string{"diff", w.path("documents")}, 0, "client-1: nothing changes"},
		{"others", []string{"diff", "--proxy", "client-1", w.path("next")}, 1, "RDS " + strconv.Itoa(w.port) + " is changed"},
		{"others, whatever the exit code", []string{"diff", "--exit-zero", "--proxy", "client-1", w.path("next")}, 0, "RDS " + strconv.Itoa(w.port) + " is changed"},
		{"a document that is not valid", []string{"diff", w.path("bad.yaml")}, 2, "bad.yaml:8: VirtualService shop/web: spec.http[0].route[0].weight: "},
		{"nothing to compare with", []string{"diff"}, 2, "no directory or file to compare with"},
		{"a directory that is not there", []string{"diff", w.path("nowhere")}, 2, "no such file or directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, stderr := run(t, append(tc.args, "--admin", w.admin)...)
			if code != tc.code || !strings.Contains(out+stderr, tc.says) {
				t.Errorf("exit code %d, want %d with %q:\n%s%s", code, tc.code, tc.says, out, stderr)
			}
		})
	}
	if u := w.changed(before, func(updates) bool { return true }); u != (updates{}) {
		t.Errorf("Envoy took in %+v", u)
	}
}

func TestCommandsSayThatNoServerAnswers(t *testing.T) {
	w := newWorld(t)
	for _, command := range []string{"get", "proxies"} {
		code, _, stderr := run(t, command, "--admin", w.admin)
		if code != 1 || !strings.Contains(stderr, "no answer from "+w.admin) || !strings.Contains(stderr, "connection refused") {
			t.Errorf("%s: exit code %d, %q", command, code, stderr)
		}
	}
}

func TestValidateNamesEachProblem(t *testing.T) {
	w := newWorld(t)
	if code, out, stderr := run(t, "validate", w.path("documents")); code != 0 || out != "" || stderr != "" {
		t.Errorf("of valid documents: exit code %d, %q, %q", code, out, stderr)
	}
	w.write("route", strings.Replace(w.route(50, 50), "subset: canary", "subset: nothing", 1))
	code, out, _ := run(t, "validate", w.path("documents"))
	if code != 0 || !strings.Contains(out, "route.yaml:9: VirtualService shop/web: ") || !strings.Contains(out, "warning: ") || !strings.Contains(out, "nothing") {
		t.Errorf("of a subset that is not there: exit code %d, %q", code, out)
	}
	w.write("route", strings.Replace(w.route(50, 50), "hosts: [", "hots: [", 1))
	w.write("rule", "kind: DestinationRule\nmetadata: {name: web}\n")
	code, out, stderr := run(t, "validate", w.path("documents/route.yaml"), w.path("documents/rule.yaml"))
	if lines := strings.Split(strings.TrimSpace(out), "\n"); code != 1 || stderr != "" || len(lines) < 2 ||
		!strings.Contains(out, "route.yaml:5: VirtualService shop/web: spec.hots: unknown field") || !strings.Contains(out, "rule.yaml:1: ") {
		t.Errorf("of two documents that are not valid: exit code %d, %q\n%s", code, stderr, out)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"nothing to check", []string{"validate"}, 2, "no directory or file to check"},
		{"a file that is not there", []string{"validate", w.path("nothing.yaml")}, 1, "no such file or directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, stderr := run(t, tc.args...)
			if code != tc.code || !strings.Contains(out+stderr, tc.says) {
				t.Errorf("exit code %d, %q", code, out+stderr)
			}
		})
	}
}

func TestServeRejectsWrongUsage(t *testing.T) {
	w := newWorld(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	w.check(err)
	t.Cleanup(func() { _ = taken.Close() })
	docs, used := w.path("documents"), taken.Addr().String()
	w.check(os.WriteFile(w.path("empty.pem"), nil, 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no command", nil, 2, "no command"},
		{"an unknown command", []string{"sreve"}, 2, "sreve"},
		{"an unknown flag", []string{"serve", "--confg", docs}, 2, "unknown flag: --confg, did you mean --config? (`holdfast-mesh serve --help` lists the flags)"},
		{"no directory", []string{"serve"}, 2, "--config"},
		{"an argument", []string{"serve", docs}, 2, "unknown command"},
		{"an address without a port", []string{"serve", "--config", docs, "--listen", "127.0.0.1"}, 2, `--listen "127.0.0.1": want host:port`},
		{"nothing to listen on", []string{"serve", "--config", docs, "--listen", ""}, 2, "nothing to listen on"},
		{"a port in use", []string{"serve", "--config", docs, "--listen", used, "--admin", ""}, 1, "--listen: listen tcp " + used + ": bind: address already in use"},
		{"an admin port in use", []string{"serve", "--config", docs, "--listen", w.xds, "--admin", used}, 1, "--admin: listen tcp " + used},
		{"TLS without a certificate", []string{"serve", "--config", docs, "--tls-listen", w.xds}, 2, "--tls-listen needs --tls-cert and --tls-key"},
		{"a certificate without its key", []string{"serve", "--config", docs, "--tls-cert", "a.pem"}, 2, "--tls-cert and --tls-key go together"},
		{"a CA without a certificate", []string{"serve", "--config", docs, "--tls-client-ca", "a.pem"}, 2, "--tls-client-ca needs"},
		{"a certificate that is not there", []string{"serve", "--config", docs, "--tls-listen", w.xds, "--tls-cert", "a.pem", "--tls-key", "b.pem"}, 2, "--tls-cert, --tls-key: "},
		{"a certificate that is none", []string{"serve", "--config", docs, "--tls-listen", w.xds, "--tls-cert", w.path("empty.pem"), "--tls-key", w.path("empty.pem")}, 2, "--tls-cert, --tls-key: "},
		{"an admin for everybody", []string{"serve", "--config", docs, "--admin", ":0"}, 2, "--admin :0: whoever reaches it could read every document"},
		{"plaintext for everybody", []string{"serve", "--config", docs, "--listen", "0.0.0.0:0"}, 2, "--listen 0.0.0.0:0 is plaintext"},
		{"a health port in use", []string{"serve", "--config", docs, "--listen", w.xds, "--admin", "", "--health", used}, 1, "--health: listen tcp " + used},
		{"a throttle of nothing", []string{"serve", "--config", docs, "--push-throttle", "0"}, 2, "--push-throttle 0: want at least 1"},
		{"a debounce longer than its maximum", []string{"serve", "--config", docs, "--debounce-after", "1m"}, 2, "--debounce-max 10s must not be less"},
		{"an unknown level", []string{"serve", "--config", docs, "--log-level", "loud"}, 2, `--log-level: "loud": want debug, info, warn or error`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, stderr := run(t, tc.args...)
			if code != tc.code || !strings.HasPrefix(stderr, "holdfast-mesh: ") && tc.code == 2 || !strings.Contains(stderr, tc.says) || out != "" {
				t.Errorf("exit code %d, %q, %q; want %d and %q", code, out, stderr, tc.code, tc.says)
			}
		})
	}
}

// mesh.md M8: a directory that cannot be read is not an empty one.
func TestNobodyIsAnsweredBeforeTheDirectoryIsRead(t *testing.T) {
	w := newWorld(t)
	w.check(os.Rename(w.path("documents"), w.path("later")))
	p, err := testbed.Start("holdfast-mesh", w.path("mesh.log"), append([]string{binary(t, "holdfast-mesh")}, w.args...)...)
	w.check(err)
	w.mesh = p
	w.ends(p)
	w.problem("the directory cannot be read")
	if err := w.ready(); err == nil || !strings.Contains(err.Error(), "documents: no such file or directory") {
		t.Errorf("ready: %v", err)
	}
	w.startEnvoy()
	if proxies := w.status().Proxies; len(proxies) > 0 {
		t.Errorf("served: %+v", proxies)
	}
	w.check(os.Rename(w.path("later"), w.path("documents")))
	w.check(p.Wait(limit, w.ready))
	w.answers(w.request(), "200 v1")
}
