package explain

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest/fromyaml"
)

// resource makes an accepted resource from YAML; name is "CDS/name".
func resource(t *testing.T, name, text string) Resource {
	t.Helper()
	short, name, _ := strings.Cut(name, "/")
	typeURL, ok := xds.TypeByShort(short)
	if !ok {
		t.Fatalf("no type %s", short)
	}
	r := Resource{Key: Key{typeURL, name}, Facts: Facts{Standing: "accepted", Version: "v1", Source: "xds:1"}}
	if text == "" {
		return r
	}
	r.Body = fromyaml.Resource(t, typeURL, text)
	return r
}

// http is a listener on a port with an HTTP connection manager; chain and manager are what else they have.
func http(t *testing.T, name, port, chains string) Resource {
	t.Helper()
	return resource(t, "LDS/"+name, "name: "+name+"\naddress: {socket_address: {address: 0.0.0.0, port_value: "+port+"}}\nfilter_chains:\n"+chains)
}

// chain is a filter chain that leads to a route configuration.
func chain(match, routes string) string {
	return `
- filter_chain_match: {` + match + `}
  filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      rds: {route_config_name: ` + routes + `, config_source: {ads: {}}}
      http_filters:
      - {name: authz, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz}}
      - {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
`
}

// tls is the transport socket of a filter chain.
const tls = `  transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext}}
`

const eds = "type: EDS\neds_cluster_config: {eds_config: {ads: {}}}\n"

func TestNamesHaveNoControlCharacters(t *testing.T) {
	evil := resource(t, "CDS/evil", "name: evil")
	evil.Name, evil.Reason = "e\x1b[31mX\nProblems\n  none \a", "no\nsuch \x1b thing"
	route := resource(t, "RDS/r", "name: r\nvirtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: \"a\\nb\\e\"}}]}]")
	for _, q := range []Query{{}, {Resource: &evil.Key}, {Resource: &route.Key}, {Request: &Request{Request: routing.Request{Host: "h", Path: "/"}}}} {
		text := Explain("n", []Resource{evil, route}, q).Text()
		if strings.ContainsAny(text, "\x1b\a") || strings.Contains(text, "\nProblems") {
			t.Errorf("%q", text)
		}
	}
}

func TestWhatIsHeldBackAfterCrashesIsSaid(t *testing.T) {
	deadly := resource(t, "CDS/deadly", "name: deadly\ntype: STATIC")
	deadly.FellBack, deadly.GoodVersion = true, "v0"
	none := resource(t, "CDS/new", "")
	none.FellBack = true
	for name, want := range map[string]string{
		"deadly": "held back, because Envoy crashed with it: clients get version v0 instead of v1",
		"new":    "held back, because Envoy crashed with it: clients do not get it",
	} {
		text := Explain("n", []Resource{deadly, none}, Query{Resource: &Key{xds.ClusterType, name}}).Text()
		if !strings.Contains(text, want) || strings.Contains(text, "NOT KNOWN") {
			t.Errorf("%s: want %q in\n%s", name, want, text)
		}
	}
}

func shop(t *testing.T) []Resource {
	t.Helper()
	rejected := resource(t, "CDS/bad", "name: bad\ntype: STATIC")
	rejected.Standing, rejected.Reason, rejected.GoodVersion = "rejected", "no such thing", "v0"
	rejected.Restored, rejected.RemovalHeldBack = true, true
	changed := resource(t, "RDS/unused", "name: unused")
	changed.ChangeHeldBack = true
	unanswered := resource(t, "CDS/silent", "")
	unanswered.Error = "no answer from the control plane"
	return []Resource{
		http(t, "plain", "80", chain("", "shop")),
		http(t, "secure", "443", chain("server_names: [shop.com]", "shop")+tls+chain("server_names: ['*.com']", "other")+tls+chain("transport_protocol: raw_buffer", "missing")),
		http(t, "tls only", "8443", chain("", "shop")+tls),
		http(t, "mail", "25", `
- filters:
  - {name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, weighted_clusters: {clusters: [{name: web, weight: 1}, {name: gone, weight: 3}]}}}`),
		resource(t, "RDS/shop", `
name: shop
virtual_hosts:
- {name: plain, domains: [other.org]}
- name: shop
  domains: [shop.com, "shop.com:*"]
  routes:
  - {match: {path: /gone}, route: {cluster: gone}}
  - {match: {path: /empty}, route: {cluster: empty}}
  - {match: {path: /wait}, route: {cluster: waits}}
  - {match: {path: /tls}, route: {cluster: tls}}
  - {match: {path: /all}, route: {cluster: all}}
  - match: {path: /fault}
    route: {cluster: web, request_mirror_policies: [{cluster: all}]}
    typed_per_filter_config: {f: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, abort: {http_status: 418, percentage: {numerator: 100}}}}
  - match: {path: /slow}
    route: {cluster: web, request_mirror_policies: [{cluster: all}]}
    typed_per_filter_config: {f: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, delay: {fixed_delay: 2s, percentage: {numerator: 5000, denominator: TEN_THOUSAND}}}}
  - {match: {path: /redirect}, redirect: {https_redirect: true}}
  - {match: {path: /header}, route: {cluster_header: x-cluster, cluster_not_found_response_code: NOT_FOUND}}
  - name: canary
    match: {prefix: /canary, runtime_fraction: {default_value: {numerator: 10}}}
    route: {weighted_clusters: {clusters: [{name: web, weight: 3}, {name: gone, weight: 1}]}}
  - {match: {prefix: /canary}, route: {cluster: web}}
  - {match: {prefix: /}, route: {cluster: web}}
- {name: lost, domains: [lost.com], routes: [{match: {prefix: /}, route: {cluster: gone, cluster_not_found_response_code: INTERNAL_SERVER_ERROR}}]}
`),
		resource(t, "RDS/other", "name: other\nvirtual_hosts: [{name: o, domains: [a.com], routes: [{match: {path: /}, direct_response: {status: 418}}]}]"),
		changed,
		resource(t, "CDS/web", "name: web\n"+eds),
		resource(t, "CDS/empty", "name: empty\n"+eds),
		resource(t, "CDS/waits", "name: waits\n"+eds),
		resource(t, "CDS/all", `{name: all, cluster_type: {name: aggregate, typed_config: {"@type": type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig, clusters: [gone, web]}}}`),
		resource(t, "CDS/tls", `
name: tls
type: STATIC
load_assignment: {cluster_name: tls, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}}]}]}
transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: {tls_certificate_sds_secret_configs: [{name: own, sds_config: {ads: {}}}]}}}`),
		rejected, unanswered,
		resource(t, "EDS/web", "cluster_name: web\nendpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}}, {health_status: UNHEALTHY, endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 2}}}}]}]"),
		resource(t, "EDS/empty", "cluster_name: empty"),
	}
}

func TestARequestIsFollowed(t *testing.T) {
	g := New(shop(t))
	for _, tc := range []struct {
		name    string
		request Request
		// want are the outcomes of the listeners, and texts are in some step.
		want    []string
		problem bool
		texts   []string
	}{
		{"to a cluster", ask("shop.com", "/"), []string{"the request goes to the cluster web"}, false, []string{"2, of them 1 UNHEALTHY", "authz", "6 routes before these", `the path "/" is not "/redirect"`}},
		{"to none", ask("shop.com", "/gone"), []string{"503: the cluster gone is not known"}, true, nil},
		{"to no endpoints", ask("shop.com", "/empty"), []string{"503: the cluster empty has no endpoints"}, true, nil},
		{"to endpoints that are not known", ask("shop.com", "/wait"), []string{"503: the endpoints of the cluster waits are not known, so that Envoy waits for them"}, true, nil},
		{"without a certificate", ask("shop.com", "/tls"), []string{"503: the secret own of the cluster tls is not known"}, true, nil},
		{"to an aggregate", ask("shop.com", "/all"), []string{"the request goes to the cluster all"}, false, []string{"of the aggregate all, it is not known"}},
		{"aborted by a fault", ask("shop.com", "/fault"), []string{"418: all requests are aborted by the fault"}, false, []string{"100 % are aborted with 418"}},
		{"delayed by a fault, and mirrored", ask("shop.com", "/slow"), []string{"the request goes to the cluster web"}, false, []string{"50 % are delayed by 2s", "mirror all gets a copy"}},
		{"redirected", ask("shop.com", "/redirect"), []string{"redirected: https_redirect:true"}, false, nil},
		{"to a cluster that is missing", ask("lost.com", "/"), []string{"500: the cluster gone is not known"}, true, nil},
		{"by a header that is missing", ask("shop.com", "/header"), []string{"404: the header x-cluster, which names the cluster, is missing"}, true, nil},
		{"by a header", Request{Request: routing.Request{Host: "shop.com", Path: "/header", Headers: []routing.Header{{Name: "X-Cluster", Value: "nowhere"}}}},
			[]string{"404: the cluster nowhere is not known"}, true, nil},
		{"by weight", ask("shop.com", "/canary"), []string{"75 %: the request goes to the cluster web; 25 %: 503: the cluster gone is not known; or the request goes to the cluster web"}, true,
			[]string{"10 (canary)", "10 % of the requests", "90 % of the requests"}},
		{"of an unknown host", ask("else.com", "/"), []string{`404: no virtual host of the route configuration has the host "else.com"`}, true, nil},
		{"of a host with a port", ask("other.org:80", "/"), []string{`404: no virtual host of the route configuration has the host "other.org:80"; the virtual host plain has it without the port`}, true, nil},
		{"over TLS", Request{Request: routing.Request{Scheme: "https", Host: "shop.com"}}, []string{"the request goes to the cluster web"}, false, []string{"secure"}},
		{"over TLS, to another host", Request{Request: routing.Request{Scheme: "https", Host: "a.com"}}, []string{"418: the route answers itself"}, false, nil},
		{"over TLS, to a host of no chain", Request{Request: routing.Request{Scheme: "https", Host: "a.org"}}, []string{"the connection is closed: no filter chain of the listener takes it"}, true, nil},
		{"over TLS where there is none", Request{Request: routing.Request{Scheme: "https", Host: "shop.com:80"}}, []string{"the connection fails: the filter chain has no TLS, and the request is https"}, true, nil},
		{"TLS through the TCP proxy", Request{Request: routing.Request{Scheme: "https", Host: "mail.com:25"}}, []string{"25 %: the request goes to the cluster web; 75 %: the connection is closed: the cluster gone is not known"}, true, nil},
		{"http where there is only TLS", Request{Request: routing.Request{Scheme: "http", Host: "shop.com:8443"}}, []string{"the connection fails: the filter chain takes TLS only, and the request is http"}, true, nil},
		{"without a scheme where there is only TLS", ask("shop.com:8443", "/"), []string{"the request goes to the cluster web"}, false, nil},
		{"without TLS where it is wanted", ask("shop.com:443", "/"), []string{"404, or no answer while the listener waits: the route configuration missing is not known"}, true, nil},
		{"not HTTP", ask("mail.com:25", "/"), []string{"25 %: the request goes to the cluster web; 75 %: the connection is closed: the cluster gone is not known"}, true, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, steps := g.Request(tc.request), ""
			var outcomes []string
			problem := false
			for _, a := range got.Answers {
				outcomes = append(outcomes, a.Outcome)
				problem = problem || a.Problem
				for _, s := range a.Steps {
					steps += s.Kind + " " + s.Name + " " + s.Detail + "\n"
				}
			}
			if !slices.Equal(outcomes, tc.want) || problem != tc.problem || got.Note != "" {
				t.Errorf("got %q, problem %v, note %q, want %q\n%s", outcomes, problem, got.Note, tc.want, steps)
			}
			for _, text := range tc.texts {
				if !strings.Contains(steps, text) {
					t.Errorf("no step has %q:\n%s", text, steps)
				}
			}
		})
	}
	if got := g.Request(ask("shop.com:81", "/")); len(got.Answers) != 4 || !strings.Contains(got.Note, "no listener has the port 81") {
		t.Errorf("got %d answers, %q", len(got.Answers), got.Note)
	}
	if got := New(nil).Request(ask("a", "/")); len(got.Answers) != 0 || got.Note != "there is no listener: connections are refused" {
		t.Errorf("got %d answers, %q", len(got.Answers), got.Note)
	}
}

func ask(host, path string) Request { return Request{Request: routing.Request{Host: host, Path: path}} }

const scopes = `
name: a
address: {socket_address: {address: 0.0.0.0, port_value: 80}}
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      scoped_routes:
        name: s
        scope_key_builder: {fragments: [{header_value_extractor: {name: x-scope, element_separator: ",", element: {separator: "=", key: tenant}}}]}
        scoped_rds: {scoped_rds_config_source: {ads: {}}}
`

func TestAScopeChoosesTheRoutes(t *testing.T) {
	g := New([]Resource{
		resource(t, "LDS/a", scopes),
		resource(t, "SRDS/one", "{name: one, route_configuration_name: r1, key: {fragments: [{string_key: blue}]}}"),
		resource(t, "SRDS/two", "{name: two, route_configuration_name: r2, key: {fragments: [{string_key: red}]}}"),
		resource(t, "RDS/r2", "name: r2\nvhds: {config_source: {ads: {}}}"),
		resource(t, "VHDS/r2/x", "{name: r2/x, domains: ['*'], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}"),
	})
	for header, want := range map[string]string{
		"a=b,tenant=red": "200: the route answers itself",
		"tenant=blue":    "404, or no answer while the listener waits: the route configuration r1 is not known",
		"tenant=green":   "404: no scope has the key green",
		"red":            "404: the header x-scope, which chooses the scope, is missing",
	} {
		r := ask("h", "/")
		r.Headers = []routing.Header{{Name: "x-scope", Value: header}}
		if got := g.Request(r).Answers[0].Outcome; got != want {
			t.Errorf("%s: got %q, want %q", header, got, want)
		}
	}
}

func TestTheGraphNamesWhatLeadsNowhere(t *testing.T) {
	x := Explain("n", shop(t), Query{})
	var dangling []string
	for _, d := range x.Dangling {
		dangling = append(dangling, d.From+" "+d.To)
	}
	want := []string{"CDS/tls SDS/own", "CDS/waits EDS/waits", "LDS/mail CDS/gone", "LDS/secure RDS/missing", "RDS/shop CDS/gone", "RDS/shop CDS/gone", "RDS/shop CDS/gone", "CDS/all CDS/gone"}
	slices.Sort(want)
	slices.Sort(dangling)
	if !slices.Equal(dangling, want) {
		t.Errorf("got %q, want %q", dangling, want)
	}
	text := x.Text()
	for _, want := range []string{
		"LDS/plain\n    version v1 from xds:1\n  RDS/shop\n    CDS/gone  NOT KNOWN\n    CDS/empty\n", "  RDS/shop  (above)\n", "no listener leads to\n  CDS/bad  rejected\n",
		"clients get version v0 instead of v1\n", "read from disk, and not confirmed", "the control plane removed it, which is held back", "Envoy NACKed it: no such thing\n", "CDS/silent  NOT KNOWN\n", "control plane: no answer from the control plane\n", "RDS/unused\n",
		"the control plane changed it, which is held back because it led to what was removed, and that looks like an accident (`holdfast diff RDS/unused served held`)",
		"RDS/shop names CDS/gone, which is not known, in\n    virtual_hosts[1].routes[0].route.cluster\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestAResourceHasWhatLeadsToIt(t *testing.T) {
	web := Key{xds.ClusterType, "web"}
	x := Explain("n", shop(t), Query{Resource: &web})
	if want := []string{"LDS/mail", "RDS/shop", "CDS/all"}; !sameElements(x.Referrers, want) || !x.Known() || len(x.Dangling) != 0 {
		t.Errorf("got %q, %v, %v, want %q", x.Referrers, x.Known(), x.Dangling, want)
	}
	other := Key{xds.ClusterType, "other"}
	if Explain("n", shop(t), Query{Resource: &other}).Known() {
		t.Error("a name that nobody knows is known")
	}
	gone := Key{xds.ClusterType, "gone"}
	if x := Explain("n", shop(t), Query{Resource: &gone}); !x.Known() || !strings.Contains(x.Text(), "CDS/gone  NOT KNOWN\nnamed by ") {
		t.Errorf("got\n%s", x.Text())
	}
}

func sameElements(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func TestAggregatesInACircleEnd(t *testing.T) {
	aggregate := func(name, of string) Resource {
		return resource(t, "CDS/"+name, `{name: `+name+`, cluster_type: {name: aggregate, typed_config: {"@type": type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig, clusters: [`+of+`]}}}`)
	}
	x := Explain("n", []Resource{aggregate("a", "b"), aggregate("b", "a"), http(t, "l", "80", chain("", "r")),
		resource(t, "RDS/r", "{name: r, virtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: a}}]}]}")}, Query{})
	if len(x.Listeners) != 1 || len(x.Dangling) != 0 || !strings.Contains(x.Text(), "CDS/a  (above)") {
		t.Errorf("got\n%s", x.Text())
	}
	g := New([]Resource{aggregate("a", "b"), aggregate("b", "a")})
	if _, others := g.Trees(); len(others) != 1 {
		t.Errorf("%d trees", len(others))
	}
	w := &walk{Graph: g, Answer: &Answer{}}
	w.toCluster("a", "", 503)
	if w.Outcome != "503: more than 10 aggregate clusters lead to one another" {
		t.Errorf("got %q", w.Outcome)
	}
}
