package routing

import (
	"fmt"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/internal/xdstest/fromyaml"
)

func parse(t *testing.T, text string) *routev3.RouteConfiguration {
	t.Helper()
	config := &routev3.RouteConfiguration{}
	fromyaml.Into(t, text, config)
	return config
}

// describe returns a result in one line: the virtual host, the candidates, and the reasons of those that were passed.
func describe(r Result) string {
	if r.VirtualHost == nil {
		return "no virtual host"
	}
	out := []string{r.VirtualHost.GetName() + " by " + r.Domain}
	if r.RedirectsToTLS {
		out = append(out, "to https")
	}
	if r.Undecided != "" {
		out = append(out, r.Undecided)
	}
	for _, p := range r.Passed {
		out = append(out, fmt.Sprintf("not %d: %s", p.Index, p.Reason))
	}
	for _, c := range r.Candidates {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%d %.4g %s", c.Index, c.Share, strings.Join(c.If, " and "))))
	}
	return strings.Join(out, "; ")
}

const hosts = `
virtual_hosts:
- {name: exact, domains: [a.b.com, "c.com:8080"]}
- {name: suffix, domains: ["*.b.com", "*-x.com"]}
- {name: longer, domains: ["*.a.b.com"]}
- {name: prefix, domains: ["a.*", "a.b.*"]}
- {name: all, domains: ["*"]}
`

func TestTheMostSpecificDomainWins(t *testing.T) {
	config := parse(t, hosts)
	for host, want := range map[string]string{
		"a.b.com": "exact by a.b.com", "A.B.com": "exact by a.b.com", "c.com:8080": "exact by c.com:8080", "c.com": "all by *", "a.b.com:80": "prefix by a.b.*",
		"x.b.com": "suffix by *.b.com", ".b.com": "all by *", "y-x.com": "suffix by *-x.com", "x.a.b.com": "longer by *.a.b.com",
		"a.org": "prefix by a.*", "a.b.org": "prefix by a.b.*", "a.": "all by *", "": "all by *",
	} {
		if got := describe(Find(config, Request{Host: host})); got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
	config.IgnorePortInHostMatching = true
	for host, want := range map[string]string{"a.b.com:80": "exact by a.b.com", "c.com:8080": "all by *", "[::1]:80": "all by *", "[::1]": "all by *"} {
		if got := describe(Find(config, Request{Host: host})); got != want {
			t.Errorf("without ports, %q: got %q, want %q", host, got, want)
		}
	}
	config.VhostHeader = "x-host"
	for value, want := range map[string]string{"a.b.com:80": "exact by a.b.com", "x": "all by *"} {
		if got := describe(Find(config, Request{Host: "c.com", Headers: []Header{{"X-Host", value}, {"x-host", "b"}}})); got != want {
			t.Errorf("by a header, %q: got %q, want %q", value, got, want)
		}
	}
	if got := describe(Find(config, Request{Host: "a.b.com"})); got != "no virtual host" {
		t.Errorf("without the header: got %q", got)
	}
	only := parse(t, "vhost_header: x-host\nvirtual_hosts: [{name: v, domains: ['*']}]")
	if got := describe(Find(only, Request{Host: "a"})); got != "v by *" {
		t.Errorf("only one virtual host: got %q", got)
	}
	config.VhostHeader = ""
	config.VirtualHosts = config.VirtualHosts[:4]
	if got := describe(Find(config, Request{Host: "z"})); got != "no virtual host" {
		t.Errorf("got %q", got)
	}
}

func TestRoutesAreMatched(t *testing.T) {
	template := func(text string) string {
		return `path_match_policy: {name: t, typed_config: {"@type": type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig, path_template: "` + text + `"}}`
	}
	for _, tc := range []struct {
		match   string
		request Request
		want    string // "" if it matches
	}{
		{"prefix: /a", Request{Path: "/ab?x"}, ""},
		{"prefix: /a", Request{Path: "/b"}, `the path "/b" does not begin with "/a"`},
		{"prefix: /A\ncase_sensitive: false", Request{Path: "/ab"}, ""},
		{"path: /a", Request{Path: "/a?b=c"}, ""},
		{"path: /a", Request{Path: "/a/"}, `the path "/a/" is not "/a"`},
		{"path_separated_prefix: /a", Request{Path: "/a/b"}, ""},
		{"path_separated_prefix: /a", Request{Path: "/ab"}, `the path "/ab" is not "/a", nor is it below that`},
		{"safe_regex: {regex: '/a|/b.*'}", Request{Path: "/bcd"}, ""},
		{"safe_regex: {regex: '/a|/b'}", Request{Path: "/ab"}, `the path "/ab" does not match the regular expression "/a|/b"`},
		{template("/a/{x}/c"), Request{Path: "/a/b/c"}, ""},
		{template("/a/{x=b/*}"), Request{Path: "/a/b/c"}, ""},
		{template("/a/**.mpd"), Request{Path: "/a/b/c.mpd"}, ""},
		{template("/a/*"), Request{Path: "/a/b/c"}, `the path "/a/b/c" does not match the template "/a/*"`},
		{"connect_matcher: {}", Request{}, "it takes CONNECT requests only"},
		{"connect_matcher: {}", Request{Method: "CONNECT"}, ""},
		{"connect_matcher: {}\nheaders: [{name: ':path'}]", Request{Method: "CONNECT"}, "the header :path is missing"},
		{"connect_matcher: {}\ngrpc: {}", Request{Method: "CONNECT", Headers: []Header{{"content-type", "application/grpc"}}}, "it is not a gRPC request (the content type is not application/grpc, or the method is CONNECT)"},
		{"prefix: /", Request{Method: "CONNECT"}, "it takes no CONNECT requests"},
		{"prefix: /\ngrpc: {}", Request{Headers: []Header{{"content-type", "application/grpc+proto"}}}, ""},
		{"prefix: /\ngrpc: {}", Request{Headers: []Header{{"content-type", "application/grpcx"}}}, "it is not a gRPC request (the content type is not application/grpc, or the method is CONNECT)"},
		{"prefix: /\nheaders: [{name: X, string_match: {exact: b}}]", Request{Headers: []Header{{"x", "a"}, {"X", "b"}}}, ""},
		{"prefix: /\nheaders: [{name: x, string_match: {exact: b}, invert_match: true}]", Request{Headers: []Header{{"x", "a"}, {"X", "b"}}}, `the header x is "a,b", and must not be so: must be "b"`},
		{"prefix: /\nheaders: [{name: x, string_match: {prefix: A, ignore_case: true}}]", Request{Headers: []Header{{"x", "ab"}}}, ""},
		{"prefix: /\nheaders: [{name: x, string_match: {suffix: a}}]", Request{Headers: []Header{{"x", "b"}}}, `the header x is "b", and must end with "a"`},
		{"prefix: /\nheaders: [{name: x, string_match: {contains: a}, invert_match: true}]", Request{Headers: []Header{{"x", "bab"}}}, `the header x is "bab", and must not be so: must contain "a"`},
		{"prefix: /\nheaders: [{name: x, string_match: {exact: a}, invert_match: true}]", Request{}, "the header x is missing"},
		{"prefix: /\nheaders: [{name: x, string_match: {exact: a}, invert_match: true, treat_missing_header_as_empty: true}]", Request{}, ""},
		{"prefix: /\nheaders: [{name: x}]", Request{}, "the header x is missing"},
		{"prefix: /\nheaders: [{name: x, present_match: false}]", Request{Headers: []Header{{"x", ""}}}, "the header x is there"},
		{"prefix: /\nheaders: [{name: x, range_match: {start: -1, end: 5}}]", Request{Headers: []Header{{"x", "4"}}}, ""},
		{"prefix: /\nheaders: [{name: x, range_match: {start: -1, end: 5}}]", Request{Headers: []Header{{"x", "5"}}}, `the header x is "5", and must be a number from -1, and less than 5`},
		{"prefix: /\nheaders: [{name: ':method', string_match: {exact: POST}}]", Request{Method: "POST"}, ""},
		{"prefix: /\nheaders: [{name: authorization, string_match: {exact: secret}}]", Request{Headers: []Header{{"authorization", "other"}}}, "the header authorization is [redacted], and must be another"},
		{"prefix: /\nquery_parameters: [{name: q, string_match: {exact: 'a%20b'}}]", Request{Path: "/?q=a%20b&q=c"}, ""},
		{"prefix: /\nquery_parameters: [{name: q, string_match: {exact: b}}]", Request{Path: "/?q=a&q=b"}, `the query parameter q is "a", and must be "b"`},
		{"prefix: /\nquery_parameters: [{name: q}]", Request{Path: "/?q"}, ""},
		{"prefix: /\nquery_parameters: [{name: q}]", Request{Path: "/?r=q"}, "the query parameter q is missing"},
		{"prefix: /\ncookies: [{name: c, string_match: {exact: a}}]", Request{Headers: []Header{{"cookie", `b=c; c="a"`}}}, ""},
		{"prefix: /\ncookies: [{name: c, string_match: {exact: a}}]", Request{Headers: []Header{{"cookie", "c=other"}}}, "the cookie c is [redacted], and must be another"},
		{"prefix: /\ncookies: [{name: c, string_match: {exact: a}, invert_match: true}]", Request{}, ""},
		{"prefix: /\ntls_context: {presented: true}", Request{}, "without TLS no client has presented a certificate"},
		{"prefix: /\ntls_context: {presented: false}", Request{}, ""},
		{"prefix: /\nruntime_fraction: {default_value: {numerator: 0}}", Request{}, "its runtime fraction takes none of the requests, or only those that routes before it take"},
	} {
		text := "virtual_hosts:\n- name: v\n  domains: ['*']\n  routes:\n  - direct_response: {status: 200}\n    match:\n      " + strings.ReplaceAll(tc.match, "\n", "\n      ")
		tc.request.Host = "h"
		want := "v by *; 0 1"
		if tc.want != "" {
			want = "v by *; not 0: " + tc.want
		}
		if got := describe(Find(parse(t, text), tc.request)); got != want {
			t.Errorf("%s\n%+v: got %q, want %q", tc.match, tc.request, got, want)
		}
	}
}

func TestWhatARequestDoesNotTellIsACondition(t *testing.T) {
	const text = `
virtual_hosts:
- name: v
  domains: ['*']
  require_tls: ALL
  routes:
  - {match: {prefix: /, runtime_fraction: {default_value: {numerator: 25}}}, direct_response: {status: 200}}
  - {match: {prefix: /, tls_context: {presented: true}, dynamic_metadata: [{filter: f, path: [{key: k}], value: {present_match: true}}]}, direct_response: {status: 200}}
  - {match: {prefix: /, runtime_fraction: {default_value: {numerator: 5000, denominator: TEN_THOUSAND}}}, direct_response: {status: 200}}
  - {match: {prefix: /, runtime_fraction: {default_value: {numerator: 20}}}, direct_response: {status: 200}}
  - {match: {prefix: /, filter_state: [{key: k, string_match: {exact: a}}]}, direct_response: {status: 200}}
  - {match: {prefix: /}, direct_response: {status: 200}}
  - {match: {prefix: /}, direct_response: {status: 200}}
`
	config := parse(t, text)
	if got := describe(Find(config, Request{Host: "h"})); got != "v by *; to https" {
		t.Errorf("got %q", got)
	}
	want := "v by *; not 3: its runtime fraction takes none of the requests, or only those that routes before it take; 0 0.25; 1 0.75 it is true that the client has presented a certificate and the dynamic metadata of f matches; 2 0.375; 4 0.375 the filter state k matches; 5 0.375"
	if got := describe(Find(config, Request{Host: "h", Scheme: "https"})); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParametersOfThePathCanBeIgnored(t *testing.T) {
	config := parse(t, "ignore_path_parameters_in_path_matching: true\nvirtual_hosts: [{name: v, domains: ['*'], routes: [{match: {path: /a}, direct_response: {status: 200}}]}]")
	if got := describe(Find(config, Request{Host: "h", Path: "/a;b=c?e"})); got != "v by *; 0 1" {
		t.Errorf("got %q", got)
	}
}
