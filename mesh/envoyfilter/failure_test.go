package envoyfilter

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
)

// A patch that cannot be applied is left out as a whole, also where a part of it could be, and all others
// are applied.
func TestAPatchThatFailsIsLeftOutAlone(t *testing.T) {
	const lua = `{name: lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}`
	const good = "- {applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: " + lua + "}}\n"
	const applied = "a(lua/cors/router) b(tcp_proxy) c(lua/cors/router)"
	for _, tc := range []struct{ name, broken, reason string }{
		{"another type", `- {applyTo: HTTP_FILTER, patch: {operation: MERGE, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, suppress_envoy_headers: true}}}}`,
			"a envoy.extensions.filters.http.router.v3.Router cannot be merged into a envoy.extensions.filters.http.lua.v3.Lua"},
		{"after the router", "- {applyTo: HTTP_FILTER, patch: {operation: ADD, value: " + strings.Replace(lua, "name: lua", "name: late", 1) + "}}",
			"the filter envoy.filters.http.router must be the last HTTP filter: use INSERT_BEFORE"},
		{"after the proxy", "- {applyTo: NETWORK_FILTER, match: {listener: {portNumber: 9090}}, patch: {operation: ADD, value: {name: rbac, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, stat_prefix: a}}}}",
			"the filter envoy.filters.network.tcp_proxy must be the last of its filter chain: use INSERT_BEFORE"},
		{"a rule of the API", `- {applyTo: NETWORK_FILTER, match: {listener: {portNumber: 9090}}, patch: {operation: MERGE, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, tunneling_config: {}}}}}`,
			"tunneling_config.hostname: value length must be at least 1 runes"},
		{"two chains for one connection", "- {applyTo: FILTER_CHAIN, patch: {operation: ADD, value: {name: d, filter_chain_match: {destination_port: 9090}, filters: [" + strings.Replace(lua, "http.lua.v3.Lua", "network.echo.v3.Echo", 1) + "]}}}",
			`another filter chain takes the same connections as "d"`},
		{"a domain twice", "- {applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: b, domains: ['*']}}}", `two virtual hosts have the domain "*"`},
		{"a virtual host twice", "- {applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: all, domains: [b]}}}", `there is another virtual host "all"`},
		{"another name of the listener", "- {applyTo: LISTENER, patch: {operation: MERGE, value: {name: other}}}", `it would give the resource the name "other"`},
		{"no chain", "- {applyTo: FILTER_CHAIN, patch: {operation: REMOVE}}", "there must be a filter chain"},
		{"no router", "- {applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}, patch: {operation: REMOVE}}",
			"no HTTP filter answers requests: the last one, envoy.filters.http.cors, hands them on"},
		{"no filter", "- {applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.cors}}}}}, patch: {operation: REMOVE}}\n" +
			"- {applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: lua}}}}}, patch: {operation: REMOVE}}\n" +
			"- {applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}, patch: {operation: REMOVE}}", "there must be an HTTP filter"},
		{"no proxy", "- {applyTo: NETWORK_FILTER, match: {listener: {portNumber: 9090}}, patch: {operation: INSERT_FIRST, value: {name: rbac, typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, stat_prefix: a}}}}\n" +
			"- {applyTo: NETWORK_FILTER, match: {listener: {portNumber: 9090, filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}}, patch: {operation: REMOVE}}",
			"no filter of a chain handles its connections: the last one, rbac, hands them on"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := message(t, &listenerv3.Listener{}, listener)
			in := proto.CloneOf(before)
			out, failures := patches(t, good+tc.broken).Listener(inboundContext, in)
			equal(t, in, before)
			if len(failures) != 1 || failures[0].Reason != tc.reason || failures[0].Patch.Index == 0 {
				t.Fatalf("failures %v, want %s", sentences(failures), tc.reason)
			}
			if got := filters(t, out); !strings.HasPrefix(tc.name, "no filter") && tc.name != "no proxy" && got != applied {
				t.Errorf("got %s", got)
			}
			if err := broken(out); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAResultThatBreaksARuleOfEnvoyIsLeftOut(t *testing.T) {
	s := patches(t, `
- {applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 2s}}}
- {applyTo: CLUSTER, patch: {operation: MERGE, value: {load_assignment: {policy: {overprovisioning_factor: 140}}}}}
- {applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: x}}}
`)
	out, failures := s.Cluster(outboundContext, message(t, &clusterv3.Cluster{}, web), nil)
	wantFailures(t, failures, "EnvoyFilter a/b spec.configPatches[1] is left out of outbound|80|v1|web.test: load_assignment.cluster_name: value length must be at least 1 runes")
	equal(t, out, message(t, &clusterv3.Cluster{}, strings.Replace(web, "1s", "2s", 1)+"alt_stat_name: x\n"))
}

// Several patches that fail, each for its own reason, are all told, and the others are applied.
func TestSeveralPatchesThatFailAreLeftOut(t *testing.T) {
	const router = `{typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, suppress_envoy_headers: true}}`
	const of = "match: {listener: {filterChain: {name: a, filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.NAME}}}}}"
	s := patches(t, strings.ReplaceAll("- {applyTo: HTTP_FILTER, "+of+", patch: {operation: MERGE, value: "+router+"}}\n", "NAME", "cors")+
		"- {applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: b, domains: ['*']}}}\n"+
		strings.ReplaceAll("- {applyTo: HTTP_FILTER, "+of+", patch: {operation: MERGE, value: "+router+"}}\n", "NAME", "router")+
		"- {applyTo: LISTENER, patch: {operation: MERGE, value: {stat_prefix: x}}}\n")
	out, failures := s.Listener(inboundContext, message(t, &listenerv3.Listener{}, listener))
	wantFailures(t, failures,
		"EnvoyFilter a/b spec.configPatches[0] is left out of virtualInbound: a envoy.extensions.filters.http.router.v3.Router cannot be merged into a envoy.extensions.filters.http.cors.v3.Cors",
		`EnvoyFilter a/b spec.configPatches[1] is left out of virtualInbound: two virtual hosts have the domain "*"`)
	if out.GetStatPrefix() != "x" || !strings.Contains(out.GetFilterChains()[0].String(), "suppress_envoy_headers:true") {
		t.Errorf("the other patches are not applied: %v", out)
	}
}

// A patch that stands on one that is left out finds nothing.
func TestAPatchOfWhatIsLeftOutFindsNothing(t *testing.T) {
	s := patches(t, `
- {applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: a, domains: [c.test]}}}
- {applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: c, domains: [c.test]}}}
- {applyTo: VIRTUAL_HOST, patch: {operation: ADD, value: {name: d, domains: [c.test]}}}
`)
	out, failures := s.Routes(outboundContext, message(t, &routev3.RouteConfiguration{}, hosts), "")
	wantFailures(t, failures,
		`EnvoyFilter a/b spec.configPatches[0] is left out of 80: there is another virtual host "a"`,
		`EnvoyFilter a/b spec.configPatches[2] is left out of 80: two virtual hosts have the domain "c.test"`)
	if got := names(out); got != "a(one two) b() c()" {
		t.Errorf("got %s", got)
	}
}

// What our own resource breaks is not the fault of a patch.
func TestAResourceThatIsBrokenBeforeIsPatched(t *testing.T) {
	s := patches(t, "- {applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: x}}}")
	out, failures := s.Cluster(outboundContext, &clusterv3.Cluster{}, nil)
	wantFailures(t, failures)
	equal(t, out, &clusterv3.Cluster{AltStatName: "x"})
}
