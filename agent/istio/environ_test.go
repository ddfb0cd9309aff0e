package istio

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

const podIP = "10.0.0.7"

func TestTheVariableOfProbesIsRead(t *testing.T) {
	c, err := FromEnv(environ{addressVar: podIP, probersVar: `{
		"/app-health/app/readyz": {"httpGet": {"path": "/ready?deep=1", "port": 8080, "scheme": "HTTPS", "httpHeaders": [{"name":"A","value":"b"}]}, "timeoutSeconds": 3},
		"/app-health/app/livez": {"tcpSocket": {"port": 3306}},
		"/app-health/app/startupz": {"grpc": {"port": 9000, "service": "s"}, "timeoutSeconds": 1},
		"/app-lifecycle/app/prestopz": {"httpGet": {"path": "stop", "port": 80}},
		"/app-lifecycle/other/poststartz": {"tcpSocket": {"port": 65535}, "later": true}
	}`}.get, 15020)
	if err != nil {
		t.Fatal(err)
	}
	if c.destination != podIP || c.source != inboundIPv4 {
		t.Errorf("probes go to %s, from %s", c.destination, c.source)
	}
	var got []string
	for path, p := range c.probers {
		kind := "grpc " + p.service
		if p.tcp {
			kind = "tcp"
		} else if p.http != nil {
			kind = p.http.String()
		}
		got = append(got, strings.Join([]string{path, kind, p.timeout.String()}, " "))
	}
	slices.Sort(got)
	want := []string{
		"/app-health/app/livez tcp 1s",
		"/app-health/app/readyz https:///ready?deep=1 3s",
		"/app-health/app/startupz grpc s 1s",
		"/app-lifecycle/app/prestopz http:///stop 0s",
		"/app-lifecycle/other/poststartz tcp 0s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestWithoutTheVariablesThereIsNothingToServe(t *testing.T) {
	c, err := FromEnv(environ{}.get, 15020)
	if err != nil || len(c.probers)+len(c.applications) != 0 || c.envoy != "http://127.0.0.1:15090/stats/prometheus" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestProbesAreSentAsTheVariablesSay(t *testing.T) {
	for _, tc := range []struct {
		name, address, legacy string
		destination, source   string
	}{
		{"IPv4", podIP, "", podIP, "127.0.0.6"},
		{"IPv6", "fd00::7", "false", "fd00::7", "::6"},
		{"IPv4 in IPv6", "::ffff:10.0.0.7", "", "::ffff:10.0.0.7", "127.0.0.6"},
		{"localhost", podIP, "true", "localhost", "127.0.0.6"},
		{"localhost of an IPv6 pod", "fd00::7", "true", "localhost", "::6"},
		{"localhost without an address", "", "1", "localhost", "127.0.0.6"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := FromEnv(environ{
				addressVar: tc.address, legacyVar: tc.legacy, probersVar: `{"/app-health/a/livez":{"tcpSocket":{"port":1}}}`,
			}.get, 15020)
			if err != nil || c.destination != tc.destination || c.source.String() != tc.source {
				t.Errorf("probes go to %+v, %v", c, err)
			}
		})
	}
}

func TestAnApplicationIsScrapedAsItsAnnotationsSay(t *testing.T) {
	for _, tc := range []struct {
		name, annotations string
		want              []string
	}{
		{"nothing but the wish", `{"scrape":"true","path":"","port":""}`, []string{"http://localhost:80/metrics"}},
		{"port and path", `{"scrape":"true","path":"/m?x=1","port":"8080"}`, []string{"http://localhost:8080/m?x=1"}},
		{"a path without its slash", `{"path":"m","port":"8080"}`, []string{"http://localhost:8080/m"}},
		{"several targets", `{"port":"1","targets":[{"port":"8080"},{"port":"8081","path":"/x"}]}`, []string{"http://localhost:8080/metrics", "http://localhost:8081/x"}},
		{"not at all", `{"scrape":"false","port":"8080"}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := FromEnv(environ{annotationsVar: tc.annotations}.get, 15020)
			if err != nil || !slices.Equal(c.applications, tc.want) {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
}

// An error names the variable, says what is wrong, and what to do.
func TestAVariableThatCannotBeUsedIsAnError(t *testing.T) {
	probe := func(path, probe string) environ {
		return environ{addressVar: podIP, probersVar: `{"` + path + `":` + probe + `}`}
	}
	const livez = "/app-health/a/livez"
	for _, tc := range []struct {
		name string
		env  environ
		want []string
	}{
		{"no JSON", environ{probersVar: "{"}, []string{probersVar, "not valid JSON", "rewriteAppHTTPProbers"}},
		{"another JSON", environ{probersVar: "[]"}, []string{probersVar, "array"}},
		{"something after the JSON", environ{probersVar: "{} x"}, []string{probersVar, "not valid JSON"}},
		{"an unknown path", probe("/app-health/a/healthz", `{}`), []string{probersVar, `"/app-health/a/healthz"`, "want /app-health/CONTAINER/livez"}},
		{"a lifecycle handler among the probes", probe("/app-health/a/prestopz", `{"tcpSocket":{"port":1}}`), []string{"is not a path"}},
		{"a path with more", probe("/app-health/a/b/livez", `{"tcpSocket":{"port":1}}`), []string{"is not a path"}},
		{"no kind", probe(livez, `{}`), []string{livez, "there are 0"}},
		{"null", probe(livez, `null`), []string{livez, "there are 0"}},
		{"two kinds", probe(livez, `{"tcpSocket":{"port":1},"grpc":{"port":1}}`), []string{livez, "there are 2"}},
		{"port 0", probe(livez, `{"tcpSocket":{"port":0}}`), []string{livez, "port 0: want a number from 1 to 65535"}},
		{"a port that is too large", probe(livez, `{"grpc":{"port":65536}}`), []string{"port 65536: want"}},
		{"a named port", probe(livez, `{"httpGet":{"port":"http"}}`), []string{`port "http": want`}},
		{"no port", probe(livez, `{"httpGet":{}}`), []string{`port "": want`}},
		{"a scheme", probe(livez, `{"httpGet":{"port":1,"scheme":"FTP"}}`), []string{`scheme "FTP": want HTTP or HTTPS`}},
		{"a timeout", probe(livez, `{"tcpSocket":{"port":1},"timeoutSeconds":-1}`), []string{"timeoutSeconds is -1"}},
		{"no address", environ{probersVar: `{"` + livez + `":{"tcpSocket":{"port":1}}}`}, []string{addressVar, "status.podIP"}},
		{"an address", environ{addressVar: "pod"}, []string{addressVar, `"pod": want the pod's IP address`}},
		{"a destination", environ{legacyVar: "perhaps"}, []string{legacyVar, "want true or false"}},
		{"annotations that are no JSON", environ{annotationsVar: "x"}, []string{annotationsVar, "not valid JSON", "merge-metrics"}},
		{"a port of metrics", environ{annotationsVar: `{"port":"http"}`}, []string{annotationsVar, "port http: want"}},
		{"the agent's port", environ{annotationsVar: `{"port":"015020"}`}, []string{annotationsVar, "scrape itself"}},
		{"Envoy's port", environ{annotationsVar: `{"targets":[{"port":"8080"},{"port":"15090"}]}`}, []string{annotationsVar, "Envoy's metrics"}},
		{"DNS capture", environ{dnsVar: "True"}, []string{dnsVar, "no name would be resolved", "set it to false"}},
		{"the port of Envoy's metrics", environ{statsPortVar: "0"}, []string{statsPortVar, "port 0: want"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := FromEnv(tc.env.get, 15020)
			if err == nil {
				t.Fatal("there is no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
		})
	}
}

// What is accepted can be served: each probe has one kind, a port, a path of the agent, and a timeout.
func FuzzParseProbers(f *testing.F) {
	for _, text := range []string{
		``, `null`, `{}`, `{"/app-health/a/livez":{"httpGet":{"path":"/x","port":80,"scheme":"HTTPS"},"timeoutSeconds":2}}`,
		`{"/app-health/a/readyz":{"tcpSocket":{"port":1}},"/app-lifecycle/a/prestopz":{"httpGet":{"path":"%","port":65535}}}`,
		`{"/app-health/a/startupz":{"grpc":{"port":1,"service":null}}}`, `{"/app-health/a/livez":{"tcpSocket":{"port":1e2}}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		probers, err := parseProbers(text)
		if err != nil {
			if len(probers) > 0 || err.Error() == "" {
				t.Errorf("%d probes and %v", len(probers), err)
			}
			return
		}
		for path, p := range maps.All(probers) {
			kinds := 0
			for _, is := range []bool{p.http != nil, p.tcp, p.grpc} {
				if is {
					kinds++
				}
			}
			health := strings.HasPrefix(path, "/app-health/")
			switch {
			case kinds != 1 || p.port < 1 || p.port > 65535 || !proberPath.MatchString(path):
				t.Errorf("%s: %+v", path, p)
			case p.timeout < 0 || health && p.timeout < time.Second:
				t.Errorf("%s has the timeout %s", path, p.timeout)
			case p.http != nil && (p.http.Host != "" || !strings.HasPrefix(p.http.RequestURI(), "/")):
				t.Errorf("%s is a request to %s", path, p.http)
			}
		}
	})
}
