package inspect

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// set is resources by type and name.
type set map[xds.Key]*xds.Resource

func (s set) Lookup(typeURL, name string) *xds.Resource { return s[xds.Key{Type: typeURL, Name: name}] }

func (s set) All(typeURL string) (out []*xds.Resource) {
	for key, r := range s {
		if key.Type == typeURL {
			out = append(out, r)
		}
	}
	return out
}

// resources reads YAML documents with "@type".
func resources(t *testing.T, text string) set {
	t.Helper()
	s := make(set)
	for doc := range strings.SplitSeq(text, "\n---\n") {
		data, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		var body anypb.Any
		if err := protojson.Unmarshal(data, &body); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		r, err := xds.FromAny(body.TypeUrl, "", &body, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		s[xds.Key{Type: r.Type, Name: r.Name}] = r
	}
	return s
}

const sidecar = `"@type": type.googleapis.com/envoy.config.listener.v3.Listener
name: 0.0.0.0_80
bind_to_port: false
traffic_direction: OUTBOUND
address: {socket_address: {address: 0.0.0.0, port_value: 80}}
default_filter_chain:
  filters:
  - name: tcp
    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: x, cluster: PassthroughCluster}
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: x
      rds: {route_config_name: "80", config_source: {ads: {}}}
---
"@type": type.googleapis.com/envoy.config.listener.v3.Listener
name: 10.0.0.7_3306
traffic_direction: OUTBOUND
address: {socket_address: {address: 10.0.0.7, port_value: 3306}}
filter_chains:
- filter_chain_match: {server_names: [other.internal]}
  filters:
  - {name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: x, cluster: other}}
- filters:
  - {name: tcp, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: x, cluster: db}}
---
"@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
name: "80"
virtual_hosts:
- name: a
  domains: [a.internal, a]
  routes:
  - {name: admin, match: {path: /admin, headers: [{name: x-role, string_match: {exact: root}}]}, direct_response: {status: 200}}
  - {name: q, match: {prefix: /, query_parameters: [{name: debug, string_match: {safe_regex: {regex: "o.*"}}}]}, direct_response: {status: 201}}
  - {name: not, match: {safe_regex: {regex: "/v[0-9]+"}, headers: [{name: x-old, present_match: true, invert_match: true}]}, direct_response: {status: 202}}
  - {name: seg, match: {path_separated_prefix: /seg}, redirect: {host_redirect: b}}
  - {name: dynamic, match: {prefix: /dynamic}, route: {cluster: dynamic}}
  - {name: gone, match: {prefix: /gone}, route: {cluster: gone, cluster_not_found_response_code: INTERNAL_SERVER_ERROR}}
  - {name: nowhere, match: {prefix: /nowhere}, route: {cluster: gone, cluster_not_found_response_code: NOT_FOUND}}
  - name: abort
    match: {prefix: /abort}
    typed_per_filter_config: {fault: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, abort: {http_status: 503, percentage: {numerator: 1000000, denominator: MILLION}}}}
    route: {cluster: v1}
  - name: delay
    match: {prefix: /delay}
    typed_per_filter_config: {fault: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, delay: {fixed_delay: 2s, percentage: {numerator: 25}}, abort: {http_status: 500, percentage: {numerator: 1, denominator: TEN_THOUSAND}}}}
    route: {cluster: v1}
  - name: all
    match: {prefix: /}
    metadata: {filter_metadata: {istio: {config: /apis/networking.istio.io/v1/namespaces/default/virtual-service/a}}}
    route: {weighted_clusters: {clusters: [{name: v1, weight: 9}, {name: gone, weight: 1}]}}
- {name: any-internal, domains: ["*.internal"], routes: []}
- {name: allow_any, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: PassthroughCluster}}]}
---
"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: dynamic
cluster_type: {name: envoy.clusters.dynamic_forward_proxy}
---
"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: v1
type: EDS
---
"@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
cluster_name: v1
endpoints:
- lb_endpoints:
  - {endpoint: {address: {socket_address: {address: 10.0.0.1, port_value: 8080}}}}
  - {health_status: UNHEALTHY, endpoint: {address: {socket_address: {address: 10.0.0.2, port_value: 8080}}}}
---
"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: db
type: EDS
---
"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
name: PassthroughCluster
type: ORIGINAL_DST
`

func TestARequestIsFollowed(t *testing.T) {
	r := resources(t, sidecar)
	for name, tc := range map[string]struct {
		req  Request
		want string // parts of the steps and of the outcome
	}{
		"by weight":                  {Request{Host: "a.internal"}, "route all /apis/|cluster v1  EDS weight 9|endpoint 10.0.0.1:8080|endpoint 10.0.0.2:8080  priority 0, weight 1, not ready|cluster gone  weight 1 it does not exist|one of 2 clusters, by weight; 503 if that is gone, which does not exist"},
		"a header that is there":     {Request{Host: "a", Path: "/admin", Headers: map[string]string{"X-Role": "root"}}, "route admin|200: answered"},
		"a header that is not there": {Request{Host: "a", Path: "/admin"}, "route all"},
		"a query parameter":          {Request{Host: "a", Path: "/x?a=b&debug=on"}, "route q|201"},
		"an inverted header":         {Request{Host: "a", Path: "/v12"}, "route not|202"},
		"an inverted header, there":  {Request{Host: "a", Path: "/v12", Headers: map[string]string{"x-old": "1"}}, "route all"},
		"whole segments":             {Request{Host: "a", Path: "/seg/x"}, "route seg|redirected: host_redirect"},
		"a dynamic cluster":          {Request{Host: "a", Path: "/dynamic"}, "cluster dynamic  envoy.clusters.dynamic_forward_proxy|endpoint by DNS|the cluster dynamic"},
		"a cluster that is missing":  {Request{Host: "a", Path: "/gone"}, "cluster gone  it does not exist|500: the cluster gone does not exist"},
		"one that counts as nothing": {Request{Host: "a", Path: "/nowhere"}, "404: the cluster gone does not exist"},
		"all are aborted":            {Request{Host: "a", Path: "/abort"}, "filter of the route fault  100 % are aborted with 503|503: all requests are aborted"},
		"some are":                   {Request{Host: "a", Path: "/delay"}, "25 % are delayed by 2s, 0.01 % are aborted with 500|the request goes to the cluster v1"},
		"half a segment":             {Request{Host: "a", Path: "/segment"}, "route all"},
		"a wildcard host":            {Request{Host: "b.internal"}, "virtual host any-internal|404: no route"},
		"any host":                   {Request{Host: "example.com"}, "virtual host allow_any|the request goes to the cluster PassthroughCluster"},
		"a port that nothing has":    {Request{Host: "a", Port: 81}, "no listener for port 81"},
		"TCP to a service's address": {Request{Host: "db.internal", Port: 3306, Addresses: []string{"10.0.0.7"}}, "listener 10.0.0.7_3306|cluster db|endpoint none|closed: the cluster db has no endpoints"},
		"by SNI":                     {Request{Host: "other.internal", Port: 3306, Addresses: []string{"10.0.0.7"}}, "cluster other"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Explain(r, tc.req)
			var b strings.Builder
			for _, s := range e.Steps {
				b.WriteString(strings.Join([]string{s.Kind, s.Name, s.Document, s.Detail}, " ") + "\n")
			}
			b.WriteString(e.Outcome)
			for part := range strings.SplitSeq(tc.want, "|") {
				if !strings.Contains(b.String(), part) {
					t.Errorf("%q is not in\n%s", part, b.String())
				}
			}
		})
	}
}

func TestDifferencesAreNamed(t *testing.T) {
	before, after := resources(t, sidecar), resources(t, sidecar)
	delete(after, xds.Key{Type: xds.ClusterType, Name: "db"})
	changed, err := anypb.New(&clusterv3.Cluster{Name: "v1", AltStatName: "other"})
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]*anypb.Any{"v1": changed, "v2": changed} {
		r, err := xds.FromWrapper(xds.ClusterType, &discoveryv3.Resource{Name: name, Resource: body}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		after[xds.Key{Type: xds.ClusterType, Name: name}] = r
	}
	var got []string
	room := 1 << 10
	differences, _ := Diff(t.Context(), before, after, &room)
	for _, d := range differences {
		got = append(got, d.Type+" "+d.Name+" "+d.What)
		if d.What == "changed" && (!strings.Contains(d.Text, "+altStatName: other") || !strings.Contains(d.Text, "-type: EDS")) {
			t.Errorf("the text is %s", d.Text)
		}
	}
	if want := "CDS db removed, CDS v1 changed, CDS v2 added"; strings.Join(got, ", ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if again, ok := Diff(t.Context(), before, before, &room); len(again) != 0 || !ok {
		t.Errorf("nothing changed: %v", again)
	}
	room = 1 // there is room for the first text only
	if differences, _ = Diff(t.Context(), before, after, &room); differences[0].Text == notShown || differences[1].Text != notShown || differences[2].Text != notShown {
		t.Errorf("%v", differences)
	}
}

// leaving are resources whose reader leaves when it is asked for the resources of the first type.
type leaving struct {
	Resources
	leave func()
	asked int
}

func (l *leaving) All(typeURL string) []*xds.Resource {
	l.asked++
	l.leave()
	return l.Resources.All(typeURL)
}

func TestDiff_EndsWhenNobodyWaitsForIt(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	before := &leaving{resources(t, sidecar), leave, 0}
	room := 1 << 10
	if differences, ok := Diff(ctx, before, before.Resources, &room); ok || differences != nil || before.asked != 1 {
		t.Errorf("%v, asked for %d types: %v", ok, before.asked, differences)
	}
}

func TestAServerNameChoosesTheFilterChain(t *testing.T) {
	const manager = `typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: x, route_config: {name: %s}}`
	const proxied = `typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: x, cluster: back}`
	chain := func(name, filter string) string {
		return "\n- {filter_chain_match: {server_names: ['" + name + "']}, filters: [{name: f, " + filter + "}]}"
	}
	s := resources(t, `"@type": type.googleapis.com/envoy.config.listener.v3.Listener
name: 0.0.0.0_443
traffic_direction: OUTBOUND
address: {socket_address: {address: 0.0.0.0, port_value: 443}}
filter_chains:`+chain("*.com", fmt.Sprintf(manager, "wide"))+chain("a.com", fmt.Sprintf(manager, "a"))+chain("p.com", proxied)+chain("*.b.com", fmt.Sprintf(manager, "b")))
	for host, want := range map[string]string{
		"a.com": "route configuration a", "x.com": "route configuration wide", "c.b.com": "route configuration b", "p.com": "cluster back",
	} {
		e := Explain(s, Request{Host: host, Port: 443})
		if got := e.Steps[1].Kind + " " + e.Steps[1].Name; got != want {
			t.Errorf("%s leads to %s, want %s", host, got, want)
		}
	}
	if e := Explain(s, Request{Host: "a.net", Port: 443}); !strings.HasPrefix(e.Outcome, "no filter chain of the listener takes the connection") {
		t.Errorf("another host: %s", e.Outcome)
	}
}

func TestVirtualHostsThatAreResourcesOfTheirOwnAreFollowed(t *testing.T) {
	s := resources(t, strings.ReplaceAll(sidecar[:strings.Index(sidecar, "\n---\n")], `"80"`, `"8000"`)+`
---
"@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
name: "8000"
vhds: {config_source: {ads: {}}}
virtual_hosts: [{name: block, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 502}}]}]
---
"@type": type.googleapis.com/envoy.config.route.v3.VirtualHost
name: 8000/a.com
domains: [a.com]
routes: [{match: {prefix: /}, direct_response: {status: 418}}]
---
"@type": type.googleapis.com/envoy.config.route.v3.VirtualHost
name: 80001/b.com
domains: [b.com]
routes: [{match: {prefix: /}, direct_response: {status: 418}}]`)
	for host, want := range map[string]string{"a.com": "418: answered by the proxy itself", "b.com": "502: answered by the proxy itself"} {
		if e := Explain(s, Request{Host: host, Port: 80}); e.Outcome != want {
			t.Errorf("%s: got %q, want %q", host, e.Outcome, want)
		}
	}
}

// A cluster that sends to the original destination has none for a connection to the proxy itself.
func TestAConnectionToTheProxyItselfHasNoOriginalDestination(t *testing.T) {
	for name, tc := range map[string]struct{ from, to, want string }{
		"handed over":  {"", "", "the request goes to the cluster PassthroughCluster"},
		"to the proxy": {"bind_to_port: false\n", "", "503: the cluster PassthroughCluster sends to the original destination, which a connection to the proxy itself does not have (INTERCEPTION_MODE=NONE)"},
		"redirected": {"bind_to_port: false\n", `listener_filters: [{name: original, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}]` + "\n",
			"the request goes to the cluster PassthroughCluster"},
	} {
		t.Run(name, func(t *testing.T) {
			r := resources(t, strings.Replace(sidecar, tc.from, tc.to, 1))
			if got := Explain(r, Request{Host: "example.com"}).Outcome; got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
