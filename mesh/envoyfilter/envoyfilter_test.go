package envoyfilter

import (
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

const inboundContext, outboundContext = networking.EnvoyFilter_SIDECAR_INBOUND, networking.EnvoyFilter_SIDECAR_OUTBOUND

// message reads a message in YAML.
func message[M proto.Message](t testing.TB, m M, text string) M {
	t.Helper()
	nodes, err := yamlproto.Read([]byte(text), yamlproto.YAML)
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) > 0 {
		if err := nodes[0].Unmarshal(m); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// patches reads the configPatches of an EnvoyFilter in YAML. All of them must be valid.
func patches(t testing.TB, text string) *Set {
	t.Helper()
	spec := message(t, &networking.EnvoyFilter{}, "configPatches:\n"+text)
	compiled := Compile("EnvoyFilter a/b", spec)
	if len(compiled) != len(spec.GetConfigPatches()) {
		t.Fatalf("%d of %d patches are valid", len(compiled), len(spec.GetConfigPatches()))
	}
	return NewSet(compiled)
}

func equal(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func sentences(failures []Failure) (out []string) {
	for _, f := range failures {
		out = append(out, f.String())
	}
	return out
}

func wantFailures(t *testing.T, got []Failure, want ...string) {
	t.Helper()
	if texts := sentences(got); !slices.Equal(texts, want) {
		t.Errorf("failures\n%s\nwant\n%s", strings.Join(texts, "\n"), strings.Join(want, "\n"))
	}
}

const web = `
name: "outbound|80|v1|web.test"
type: EDS
connect_timeout: 1s
circuit_breakers: {thresholds: [{max_connections: 1}]}
`

func TestAClusterIsMerged(t *testing.T) {
	s := patches(t, `
- {applyTo: CLUSTER, match: {cluster: {service: web.test, subset: v1, portNumber: 80}}, patch: {operation: MERGE, value: {connect_timeout: 0.5s, circuit_breakers: {thresholds: [{max_connections: 2}]}}}}
- {applyTo: CLUSTER, match: {cluster: {service: other.test}}, patch: {operation: REMOVE}}
- {applyTo: CLUSTER, match: {context: SIDECAR_INBOUND}, patch: {operation: REMOVE}}
`)
	before := message(t, &clusterv3.Cluster{}, web)
	in := proto.CloneOf(before)
	out, failures := s.Cluster(outboundContext, in, func() []string { return nil })
	wantFailures(t, failures)
	equal(t, in, before)
	equal(t, out, message(t, &clusterv3.Cluster{}, strings.NewReplacer("1s", "0.5s", "[{max_connections: 1}]", "[{max_connections: 1}, {max_connections: 2}]").Replace(web)))
	if out, _ := s.Cluster(inboundContext, in, func() []string { return nil }); out != nil {
		t.Errorf("a REMOVE for all clusters leaves %v", out)
	}
}

func TestAMergeThatReplacesLists(t *testing.T) {
	s := patches(t, `
- {applyTo: CLUSTER, patch: {operation: MERGE_AND_REPLACE_LIST, value: {circuit_breakers: {thresholds: [{max_connections: 2}]}}}}
`)
	out, failures := s.Cluster(outboundContext, message(t, &clusterv3.Cluster{}, web), nil)
	wantFailures(t, failures)
	equal(t, out, message(t, &clusterv3.Cluster{}, strings.ReplaceAll(web, "max_connections: 1", "max_connections: 2")))
}

func TestAnInboundClusterIsFoundByItsServices(t *testing.T) {
	s := patches(t, `
- {applyTo: CLUSTER, match: {context: SIDECAR_INBOUND, cluster: {service: web.test, portNumber: 8080}}, patch: {operation: REMOVE}}
`)
	for _, tc := range []struct {
		name, hosts string
		removed     bool
	}{{"inbound|8080||", "web.test", true}, {"inbound|8080||", "other.test", false}, {"inbound|8081||", "web.test", false}, {"outbound|8080||other.test", "web.test", false}} {
		out, _ := s.Cluster(inboundContext, &clusterv3.Cluster{Name: tc.name}, func() []string { return []string{tc.hosts} })
		if (out == nil) != tc.removed {
			t.Errorf("%s of %s: %v", tc.name, tc.hosts, out)
		}
	}
}

// A transport socket is merged into that of the same name, and with it the rest of the patch.
func TestATransportSocketIsMergedIntoThatOfItsName(t *testing.T) {
	const socket = `{name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: SNI, max_session_keys: KEYS}}`
	with := func(sni, keys string) string { return strings.NewReplacer("SNI", sni, "KEYS", keys).Replace(socket) }
	s := patches(t, "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: x, transport_socket: "+strings.Replace(with("b", "0"), ", max_session_keys: 0", "", 1)+"}}}\n")
	matches := func(name, of string) string {
		return "name: a\ntransport_socket_matches: [{name: m, transport_socket: " + strings.Replace(of, "name: tls", "name: "+name, 1) + "}]"
	}
	for _, tc := range []struct{ name, before, after, failure string }{
		{"of the cluster", "name: a\ntransport_socket: " + with("a", "7"), "name: a\nalt_stat_name: x\ntransport_socket: " + with("b", "7"), ""},
		{"none", "name: a", "name: a\nalt_stat_name: x\ntransport_socket: " + strings.Replace(with("b", "0"), ", max_session_keys: 0", "", 1), ""},
		{"of endpoints", matches("tls", with("a", "7")), matches("tls", with("b", "7")) + "\nalt_stat_name: x", ""},
		{"of endpoints, with another name", matches("other", with("a", "7")), matches("other", with("a", "7")),
			`EnvoyFilter a/b spec.configPatches[0] is left out of a: the endpoints decide about its transport socket, and there is none with the name "tls"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, failures := s.Cluster(outboundContext, message(t, &clusterv3.Cluster{}, tc.before), nil)
			equal(t, out, message(t, &clusterv3.Cluster{}, tc.after))
			if tc.failure != "" {
				wantFailures(t, failures, tc.failure)
			} else {
				wantFailures(t, failures)
			}
		})
	}
}

const hosts = `
name: "80"
virtual_hosts:
- {name: a, domains: [a.test], routes: [{name: one, match: {prefix: /1}, direct_response: {status: 201}}, {name: two, match: {prefix: /2}, redirect: {}}]}
- {name: b, domains: [b.test]}
`

// names returns the virtual hosts and routes by name: "a(one two) b()".
func names(rc *routev3.RouteConfiguration) string {
	var out []string
	for _, vh := range rc.GetVirtualHosts() {
		var routes []string
		for _, r := range vh.GetRoutes() {
			routes = append(routes, r.GetName())
		}
		out = append(out, vh.GetName()+"("+strings.Join(routes, " ")+")")
	}
	return strings.Join(out, " ")
}

func TestRoutesArePatched(t *testing.T) {
	route := func(op, match string) string {
		return "- {applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {name: a" + match + "}}}, patch: {operation: " + op + ", value: {name: new, match: {prefix: /}, direct_response: {status: 204}}}}\n"
	}
	for _, tc := range []struct{ name, patches, want string }{
		{"ADD", route("ADD", ""), "a(one two new) b()"},
		{"INSERT_FIRST", route("INSERT_FIRST", ""), "a(new one two) b()"},
		{"INSERT_FIRST of a route that is there", route("INSERT_FIRST", ", route: {name: two}"), "a(new one two) b()"},
		{"INSERT_FIRST of a route that is not there", route("INSERT_FIRST", ", route: {name: none}"), "a(one two) b()"},
		{"INSERT_BEFORE", route("INSERT_BEFORE", ", route: {name: two}"), "a(one new two) b()"},
		{"INSERT_BEFORE none", route("INSERT_BEFORE", ", route: {name: none}"), "a(one two) b()"},
		{"INSERT_BEFORE all", route("INSERT_BEFORE", ""), "a(new one two) b()"},
		{"INSERT_AFTER", route("INSERT_AFTER", ", route: {name: one}"), "a(one new two) b()"},
		{"INSERT_AFTER all", route("INSERT_AFTER", ""), "a(one two new) b()"},
		{"REMOVE", "- {applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {name: a, route: {action: REDIRECT}}}}, patch: {operation: REMOVE}}", "a(one) b()"},
		{"REMOVE of what is inserted", route("ADD", "") + "- {applyTo: HTTP_ROUTE, match: {routeConfiguration: {vhost: {route: {name: new}}}}, patch: {operation: REMOVE}}", "a(one two new) b()"},
		{"REMOVE of a virtual host", "- {applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {domainName: b.test}}}, patch: {operation: REMOVE}}", "a(one two)"},
		{"REPLACE of a virtual host", "- {applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {name: a}}}, patch: {operation: REPLACE, value: {name: c, domains: [c.test]}}}", "c() b()"},
		{"ADD of a virtual host", "- {applyTo: VIRTUAL_HOST, match: {routeConfiguration: {portNumber: 80}}, patch: {operation: ADD, value: {name: c, domains: [c.test]}}}", "a(one two) b() c()"},
		{"another port", "- {applyTo: VIRTUAL_HOST, match: {routeConfiguration: {portNumber: 81}}, patch: {operation: REMOVE}}", "a(one two) b()"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, failures := patches(t, tc.patches).Routes(outboundContext, message(t, &routev3.RouteConfiguration{}, hosts), "")
			wantFailures(t, failures)
			if got := names(out); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestRoutesOfGatewaysAreFoundByPortAndGateway(t *testing.T) {
	for _, tc := range []struct {
		match, name string
		matches     bool
	}{
		{"portNumber: 443", "https.443.tls.edge.infra", true}, {"portNumber: 80", "https.443.tls.edge.infra", false},
		{"gateway: infra/edge", "https.443.tls.edge.infra", true}, {"gateway: edge/infra", "https.443.tls.edge.infra", false},
		{"portName: tls", "https.443.tls.edge.infra", true}, {"portName: tls", "http.80", false},
		{"portNumber: 80", "http.80", true}, {"portNumber: 80", "http.80.10.0.0.1", true}, {"name: http.80", "http.80", true}, {"name: http.8080", "http.80", true}, {"name: http.81", "http.80", false},
	} {
		s := patches(t, "- {applyTo: VIRTUAL_HOST, match: {context: GATEWAY, routeConfiguration: {"+tc.match+"}}, patch: {operation: REMOVE}}")
		out, _ := s.Routes(networking.EnvoyFilter_GATEWAY, &routev3.RouteConfiguration{Name: tc.name, VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"a"}}}}, "http.8080")
		if (len(out.GetVirtualHosts()) == 0) != tc.matches {
			t.Errorf("%s and %s: %v", tc.match, tc.name, out)
		}
	}
}

const manager = `{name: envoy.filters.network.http_connection_manager, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: a, ` +
	`route_config: {name: "inbound|8080||", virtual_hosts: [{name: all, domains: ["*"]}]}, http_filters: [{name: envoy.filters.http.cors, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}, ` +
	`{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}`

const listener = `
name: virtualInbound
address: {socket_address: {address: 0.0.0.0, port_value: 15006}}
filter_chains:
- {name: a, filter_chain_match: {destination_port: 8080, server_names: [a.test], transport_protocol: tls, application_protocols: [http/1.1, h2c]}, filters: [` + manager + `]}
- {name: b, filter_chain_match: {destination_port: 9090}, filters: [{name: envoy.filters.network.tcp_proxy, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: a, cluster: a}}]}
default_filter_chain: {name: c, filters: [` + manager + `]}
`

// filters returns the names of the filters of a listener, without what their names begin with.
func filters(t *testing.T, l *listenerv3.Listener) string {
	t.Helper()
	var out []string
	for _, c := range append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain()) {
		var in []string
		for _, f := range c.GetFilters() {
			name := f.GetName()[strings.LastIndexByte(f.GetName(), '.')+1:]
			m := &managerv3.HttpConnectionManager{}
			if f.GetTypedConfig().UnmarshalTo(m) == nil {
				for _, h := range m.GetHttpFilters() {
					name += "/" + h.GetName()[strings.LastIndexByte(h.GetName(), '.')+1:]
				}
			}
			in = append(in, strings.TrimPrefix(name, "http_connection_manager/"))
		}
		if c != nil {
			out = append(out, c.GetName()+"("+strings.Join(in, " ")+")")
		}
	}
	return strings.Join(out, " ")
}

func TestListenersArePatched(t *testing.T) {
	const none = "a(cors/router) b(tcp_proxy) c(cors/router)"
	const lua = `{name: lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}`
	const rbac = `{name: rbac, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, stat_prefix: a}}`
	http := func(op, listener string) string {
		return "- {applyTo: HTTP_FILTER, match: {listener: {" + listener + "}}, patch: {operation: " + op + ", value: " + lua + "}}\n"
	}
	network := func(op, chain string) string {
		return "- {applyTo: NETWORK_FILTER, match: {listener: {filterChain: {" + chain + "}}}, patch: {operation: " + op + ", value: " + rbac + "}}\n"
	}
	of := func(sub string) string {
		return "filterChain: {name: a, filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http." + sub + "}}}"
	}
	for _, tc := range []struct{ name, patches, want string }{
		{"a port is that of the chain", http("INSERT_FIRST", "portNumber: 8080"), "a(lua/cors/router) b(tcp_proxy) c(cors/router)"},
		{"another name", http("INSERT_FIRST", "name: virtualOutbound"), none},
		{"another context", strings.Replace(http("INSERT_FIRST", "portNumber: 8080"), "match: {", "match: {context: GATEWAY, ", 1), none},
		{"all chains", http("INSERT_BEFORE", "name: virtualInbound"), "a(lua/cors/router) b(tcp_proxy) c(lua/cors/router)"},
		{"SNI", http("INSERT_FIRST", "filterChain: {sni: a.test}"), "a(lua/cors/router) b(tcp_proxy) c(cors/router)"},
		{"another SNI", http("INSERT_FIRST", "filterChain: {sni: b.test}"), none},
		{"transport", http("INSERT_FIRST", "filterChain: {transportProtocol: tls}"), "a(lua/cors/router) b(tcp_proxy) c(cors/router)"},
		{"another transport", http("INSERT_FIRST", "filterChain: {transportProtocol: raw_buffer}"), none},
		{"protocols", http("INSERT_FIRST", "filterChain: {applicationProtocols: 'h2c,http/1.1'}"), "a(lua/cors/router) b(tcp_proxy) c(cors/router)"},
		{"another protocol", http("INSERT_FIRST", "filterChain: {applicationProtocols: 'h2c,h2'}"), none},
		{"destination port", http("INSERT_FIRST", "filterChain: {destinationPort: 8080}"), "a(lua/cors/router) b(tcp_proxy) c(cors/router)"},
		{"after cors", http("INSERT_AFTER", of("cors")), "a(cors/lua/router) b(tcp_proxy) c(cors/router)"},
		{"before the router", http("INSERT_BEFORE", of("router")), "a(cors/lua/router) b(tcp_proxy) c(cors/router)"},
		{"replaced", http("REPLACE", of("cors")), "a(lua/router) b(tcp_proxy) c(cors/router)"},
		{"REPLACE without a name", http("REPLACE", ""), none},
		{"removed", "- {applyTo: HTTP_FILTER, match: {listener: {" + of("cors") + "}}, patch: {operation: REMOVE}}", "a(router) b(tcp_proxy) c(cors/router)"},
		{"REMOVE without a name", "- {applyTo: HTTP_FILTER, patch: {operation: REMOVE}}", none},
		{"a network filter first", network("INSERT_FIRST", "name: b"), "a(cors/router) b(rbac tcp_proxy) c(cors/router)"},
		{"a network filter before another", network("INSERT_BEFORE", "filter: {name: envoy.filters.network.tcp_proxy}"), "a(cors/router) b(rbac tcp_proxy) c(cors/router)"},
		{"a network filter removed", network("INSERT_FIRST", "name: b") + "- {applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: rbac}}}}, patch: {operation: REMOVE}}", none},
		{"a chain removed", "- {applyTo: FILTER_CHAIN, match: {listener: {filterChain: {name: b}}}, patch: {operation: REMOVE}}", "a(cors/router) c(cors/router)"},
		{"the default chain removed", "- {applyTo: FILTER_CHAIN, match: {listener: {filterChain: {name: c}}}, patch: {operation: REMOVE}}", "a(cors/router) b(tcp_proxy)"},
		{"a chain added", "- {applyTo: FILTER_CHAIN, patch: {operation: ADD, value: {name: d, filter_chain_match: {destination_port: 1}, filters: [" + rbac + ", " + strings.NewReplacer("name: rbac", "name: echo", "rbac.v3.RBAC, stat_prefix: a", "echo.v3.Echo").Replace(rbac) + "]}}}", "a(cors/router) b(tcp_proxy) d(rbac echo) c(cors/router)"},
		{"a name merged", "- {applyTo: HTTP_FILTER, match: {listener: {" + of("cors") + "}}, patch: {operation: MERGE, value: {name: renamed}}}", "a(renamed/router) b(tcp_proxy) c(cors/router)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, failures := patches(t, tc.patches).Listener(inboundContext, message(t, &listenerv3.Listener{}, listener))
			wantFailures(t, failures)
			if got := filters(t, out); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestRoutesInAnInboundListenerArePatched(t *testing.T) {
	s := patches(t, `
- {applyTo: VIRTUAL_HOST, match: {context: SIDECAR_INBOUND, routeConfiguration: {portNumber: 8080}}, patch: {operation: ADD, value: {name: b, domains: [b]}}}
`)
	l := message(t, &listenerv3.Listener{}, listener)
	out, failures := s.Listener(inboundContext, l)
	wantFailures(t, failures)
	m := &managerv3.HttpConnectionManager{}
	if err := out.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(m); err != nil || names(m.GetRouteConfig()) != "all() b()" {
		t.Errorf("%v %v", err, m)
	}
	if same, _ := s.Listener(outboundContext, l); same != l {
		t.Error("an outbound listener is patched by what is for inbound ones")
	}
}

func TestWhatNoPatchIsForIsTheSameMessage(t *testing.T) {
	s := patches(t, "- {applyTo: CLUSTER, match: {cluster: {name: other}}, patch: {operation: REMOVE}}\n- {applyTo: HTTP_FILTER, match: {listener: {filterChain: {name: none}}}, patch: {operation: REMOVE}}")
	c, l := message(t, &clusterv3.Cluster{}, web), message(t, &listenerv3.Listener{}, listener)
	if out, _ := s.Cluster(outboundContext, c, nil); out != c {
		t.Error("the cluster is another message")
	}
	if out, _ := s.Listener(outboundContext, l); out != l {
		t.Error("the listener is another message")
	}
}

type node struct {
	version  string
	metadata map[string]string
}

func (n node) Version() string { return n.version }
func (n node) Metadata(key string) (string, bool) {
	text, ok := n.metadata[key]
	return text, ok
}

func TestPatchesAreForProxiesByVersionAndMetadata(t *testing.T) {
	for _, tc := range []struct {
		match string
		node  node
		want  bool
	}{
		{"{}", node{}, true},
		{`{proxyVersion: '^1\.31'}`, node{version: "1.31.2"}, true},
		{`{proxyVersion: '^1\.31'}`, node{version: "1.30.0"}, false},
		{`{proxyVersion: '.*'}`, node{}, false},
		{"{metadata: {A: b}}", node{metadata: map[string]string{"A": "b", "C": "d"}}, true},
		{"{metadata: {A: b, C: e}}", node{metadata: map[string]string{"A": "b", "C": "d"}}, false},
		{"{metadata: {A: ''}}", node{}, false},
	} {
		s := patches(t, "- {applyTo: CLUSTER, match: {proxy: "+tc.match+"}, patch: {operation: REMOVE}}")
		if got := s.by[networking.EnvoyFilter_CLUSTER][0].Matches(tc.node); got != tc.want {
			t.Errorf("%s and %v: %v", tc.match, tc.node, got)
		}
	}
}

func TestAdditionsAreForTheirContext(t *testing.T) {
	const cluster = "value: {name: NAME, type: STATIC}}}\n"
	s := patches(t, strings.NewReplacer("VALUE", "").Replace(
		"- {applyTo: CLUSTER, patch: {operation: ADD, "+strings.ReplaceAll(cluster, "NAME", "any")+
			"- {applyTo: CLUSTER, match: {context: SIDECAR_INBOUND}, patch: {operation: INSERT_FIRST, "+strings.ReplaceAll(cluster, "NAME", "in")+
			"- {applyTo: CLUSTER, match: {context: GATEWAY}, patch: {operation: ADD, "+strings.ReplaceAll(cluster, "NAME", "gateway")))
	for context, want := range map[Context]string{inboundContext: "in", outboundContext: "any", networking.EnvoyFilter_GATEWAY: "any gateway"} {
		var got []string
		for _, a := range s.Added(context, networking.EnvoyFilter_CLUSTER) {
			got = append(got, a.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", context, got, want)
		}
	}
}
