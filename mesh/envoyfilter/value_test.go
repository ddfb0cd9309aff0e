package envoyfilter

import (
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

func TestProblemsOfValuesNameTheField(t *testing.T) {
	for _, tc := range []struct {
		name, patch string
		want        []string
	}{
		{"valid", "applyTo: CLUSTER, patch: {operation: ADD, value: {name: a, connect_timeout: 1s}}", nil},
		{"an unknown field", "applyTo: CLUSTER, patch: {operation: MERGE, value: {conect_timeout: 1s}}", []string{`conect_timeout: unknown field "conect_timeout", did you mean connect_timeout?`}},
		{"a wrong type", "applyTo: CLUSTER, patch: {operation: MERGE, value: {connectTimeout: 1}}", []string{`connectTimeout: must be a string as in 1.5s, and is a number`}},
		{"an unknown message", `applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/a.B}}}`,
			[]string{`typed_config.@type: type "type.googleapis.com/a.B" is not known to this build`}},
		{"version 2", `applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.config.filter.http.lua.v2.Lua}}}`,
			[]string{`typed_config.@type: type "type.googleapis.com/envoy.config.filter.http.lua.v2.Lua" is not known to this build: version 2 of Envoy's API is gone, write the message of version 3`}},
		{"a missing field", "applyTo: CLUSTER, patch: {operation: ADD, value: {connect_timeout: 1s}}", []string{"name: value length must be at least 1 runes"}},
		{"a field that is missing in a merge", "applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 1s}}", nil},
		{"a value in a merge", "applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 0s, outlier_detection: {max_ejection_percent: 101}}}",
			[]string{"connect_timeout: value must be greater than 0s", "outlier_detection.max_ejection_percent: value must be less than or equal to 100"}},
		{"a rule inside an Any", `applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, token_bucket: {max_tokens: 1, fill_interval: 0s}}}}`,
			[]string{"typed_config.stat_prefix: value length must be at least 1 runes", "typed_config.token_bucket.fill_interval: value must be greater than 0s"}},
		{"a rule inside an Any of a merge", `applyTo: HTTP_FILTER, patch: {operation: MERGE, value: {typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, status: {code: 700}}}}`,
			[]string{"typed_config.status.code: value must be one of the defined enum values"}},
		{"a list in a merge", "applyTo: VIRTUAL_HOST, patch: {operation: MERGE, value: {routes: [{name: a, match: {prefix: /}, route: {cluster: ''}}]}}", []string{"routes[0].route.cluster: value length must be at least 1 runes"}},
		{"Istio's own filter", `applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/stats.PluginConfig, disable_host_header_fallback: true}}}`, nil},
		{"a regular expression", "applyTo: HTTP_ROUTE, patch: {operation: MERGE, value: {match: {safe_regex: {regex: '('}}}}", []string{"match.safe_regex.regex: is no RE2 regular expression: missing closing ): `(`"}},
		{"a Struct of a message", `applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/xds.type.v3.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, value: {a: b}}}}`,
			[]string{`typed_config.value.a: unknown field "a"`}},
		{"a Struct of a message that is not known", `applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/a.B, value: {a: b}}}}`, nil},
		{"a filter of another kind", `applyTo: NETWORK_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}}`,
			[]string{"typed_config: envoy.extensions.filters.http.lua.v3.Lua is a filter of the kind http, and here are those of the kind network"}},
		{"a filter of another kind in a Struct", `applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {"@type": type.googleapis.com/xds.type.v3.TypedStruct, type_url: type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, value: {}}}}`,
			[]string{"typed_config: envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy is a filter of the kind network, and here are those of the kind http"}},
		{"a filter of another kind in a listener", `applyTo: LISTENER, patch: {operation: MERGE, value: {listener_filters: [{name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy}}]}}`,
			[]string{"listener_filters[0].typed_config: envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy is a filter of the kind network, and here are those of the kind listener"}},
		{"a listener filter of UDP", `applyTo: LISTENER_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig, stat_prefix: a, matcher: {}}}}`, nil},
		{"a listener that Envoy would reject", `applyTo: LISTENER, patch: {operation: ADD, value: {name: a, filter_chains: [{filters: []}, {name: b}]}}`, []string{`another filter chain takes the same connections as "b"`}},
		{"a part of a bootstrap", "applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_flush_interval: 1s}}", nil},
		{"a bootstrap that breaks a rule", "applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_flush_interval: 301s, nod: {}}}", []string{`nod: unknown field "nod", did you mean node?`}},
		{"a value in a bootstrap", "applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {stats_flush_interval: 301s}}", []string{"stats_flush_interval: value must be inside range [1ms, 5m0s)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, problems := Check(one(t, tc.patch))
			var got []string
			for _, p := range problems {
				got = append(got, strings.TrimPrefix(p.Field+": "+p.Message, ": "))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if compiled := Compile("", &networking.EnvoyFilter{ConfigPatches: []*networking.EnvoyFilter_EnvoyConfigObjectPatch{one(t, tc.patch)}}); len(compiled) > 0 != (tc.want == nil) {
				t.Errorf("%d patches", len(compiled))
			}
		})
	}
}

func one(t *testing.T, text string) *networking.EnvoyFilter_EnvoyConfigObjectPatch {
	t.Helper()
	return message(t, &networking.EnvoyFilter_EnvoyConfigObjectPatch{}, "{"+text+"}")
}

func TestWhatHasNoEffectIsTold(t *testing.T) {
	const lua = `{name: lua, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}}`
	for _, tc := range []struct{ patch, want string }{
		{"applyTo: CLUSTER, patch: {operation: REMOVE}", ""},
		{"applyTo: CLUSTER, patch: {operation: REMOVE, value: {name: a}}", "patch.value: has no effect in a REMOVE"},
		{"applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {}}", ""},
		{"applyTo: BOOTSTRAP, patch: {operation: ADD, value: {}}", "patch.operation: ADD has no effect on BOOTSTRAP"},
		{"applyTo: BOOTSTRAP, patch: {operation: MERGE_AND_REPLACE_LIST, value: {}}", "patch.operation: MERGE_AND_REPLACE_LIST has no effect on BOOTSTRAP"},
		{"applyTo: BOOTSTRAP, match: {context: GATEWAY}, patch: {operation: MERGE, value: {}}", "match.context: has no effect on BOOTSTRAP: match.proxy selects"},
		{"applyTo: CLUSTER, patch: {operation: REPLACE, value: {name: a}}", "patch.operation: REPLACE has no effect on CLUSTER"},
		{"applyTo: CLUSTER, patch: {operation: INSERT_BEFORE, value: {name: a}}", ""},
		{"applyTo: HTTP_ROUTE, patch: {operation: REPLACE, value: {match: {prefix: /}, redirect: {}}}", "patch.operation: REPLACE has no effect on HTTP_ROUTE"},
		{"applyTo: ROUTE_CONFIGURATION, patch: {operation: REMOVE}", "patch.operation: REMOVE has no effect on ROUTE_CONFIGURATION"},
		{"applyTo: HTTP_FILTER, patch: {operation: MERGE_AND_REPLACE_LIST, value: {name: a}}", "patch.operation: MERGE_AND_REPLACE_LIST has no effect on HTTP_FILTER"},
		{"applyTo: HTTP_FILTER, patch: {operation: REMOVE}", "match: REMOVE of HTTP_FILTER has no effect without the name of a filter"},
		{"applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: a}}}}, patch: {operation: REPLACE, value: " + lua + "}", "match: REPLACE of HTTP_FILTER has no effect without the name of a filter"},
		{"applyTo: LISTENER_FILTER, patch: {operation: MERGE, value: {name: a}}", "match: MERGE of LISTENER_FILTER has no effect without the name of a filter"},
		{"applyTo: HTTP_FILTER, patch: {operation: MERGE, value: {name: a, disabled: true}}", "patch.value: only name and typed_config of a filter are merged, and not disabled"},
		{"applyTo: LISTENER, match: {listener: {filterChain: {name: a}}}, patch: {operation: REMOVE}", "match.listener.filterChain: has no effect on LISTENER"},
		{"applyTo: FILTER_CHAIN, match: {listener: {filterChain: {filter: {name: a}}}}, patch: {operation: REMOVE}", "match.listener.filterChain.filter: has no effect on FILTER_CHAIN"},
	} {
		warnings, problems := Check(one(t, tc.patch))
		var got []string
		for _, w := range warnings {
			got = append(got, w.Field+": "+w.Message)
		}
		if strings.Join(got, "; ") != tc.want || len(problems) > 0 {
			t.Errorf("%s: %v %v, want %s", tc.patch, got, problems, tc.want)
		}
	}
}
