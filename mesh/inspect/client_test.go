package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// guardedBy returns a listener of a direction, with fields of its filter chain and of its HTTP connection manager, and a policy
// for a principal of RBAC.
func guardedBy(t *testing.T, direction, action, principal, chain, manager string) set {
	t.Helper()
	return resources(t, fmt.Sprintf(`"@type": type.googleapis.com/envoy.config.listener.v3.Listener
name: l
traffic_direction: %s
address: {socket_address: {address: 0.0.0.0, port_value: 80}}
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: x
      normalize_path: true
      %s
      route_config: {virtual_hosts: [{name: a, domains: ["*"], routes: [{match: {prefix: /admin}, direct_response: {status: 201}}, {match: {prefix: /}, direct_response: {status: 200}}]}]}
      http_filters:
      - name: rbac
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
          rules:
            action: %s
            policies: {"ns[shop]-policy[p]-rule[0]": {permissions: [{any: true}], principals: [%s]}}
  %s`, direction, manager, action, principal, chain))
}

const (
	outside  = "{remote_ip: {address_prefix: 203.0.113.0, prefix_len: 24}}"
	loopback = "{direct_remote_ip: {address_prefix: 127.0.0.0, prefix_len: 8}}"
	web      = "{authenticated: {principal_name: {suffix: /sa/web}}}"
	anybody  = "{any: true}"
	gateway  = "use_remote_address: true"
	mutual   = `transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, require_client_certificate: true, common_tls_context: {combined_validation_context: {default_validation_context: {%s}, validation_context_sds_secret_config: {name: ROOTCA}}}}}`
)

func ofDomains(field string) string {
	return fmt.Sprintf(mutual, field)
}

func TestTheClientOfAGatewayIsWhoTheQuestionSays(t *testing.T) {
	peers := `match_subject_alt_names: [{prefix: "spiffe://cluster.local/"}, {prefix: "spiffe://old.example/"}]`
	for name, tc := range map[string]struct {
		action, principal, chain string
		client                   Client
		want                     string
	}{
		"an address":              {"ALLOW", loopback, "", Client{Address: "127.0.0.1"}, "200: answered"},
		"another address":         {"ALLOW", loopback, "", Client{Address: "10.0.0.1"}, "403: denied because no rule allows it"},
		"no address":              {"ALLOW", loopback, "", Client{}, "not known: whether rules[0] of AuthorizationPolicy shop/p takes the request depends on the address of the client: give --from; if it may pass: 200: answered"},
		"no address to deny":      {"DENY", loopback, "", Client{}, "not known: whether rules[0]"},
		"no address, but not":     {"DENY", "{not_id: " + loopback + "}", "", Client{}, "not known: whether rules[0]"},
		"no address is needed":    {"DENY", "{and_ids: {ids: [" + loopback + ", {not_id: {any: true}}]}}", "", Client{}, "200: answered"},
		"nor for either":          {"ALLOW", "{or_ids: {ids: [" + loopback + ", {any: true}]}}", "", Client{}, "200: answered"},
		"a certificate":           {"ALLOW", web, ofDomains(peers), Client{Principal: "spiffe://cluster.local/ns/a/sa/web"}, "200: answered"},
		"another":                 {"ALLOW", web, ofDomains(peers), Client{Principal: "spiffe://old.example/ns/a/sa/db"}, "403: denied because"},
		"of another trust domain": {"ALLOW", anybody, ofDomains(peers), Client{Principal: "spiffe://evil.example/ns/a/sa/web"}, "closed: the TLS handshake fails: the trust domain evil.example of the client is none of those that the listener accepts (cluster.local, old.example)"},
		"one that is not known":   {"ALLOW", web, ofDomains(peers), Client{}, "not known: whether rules[0] of AuthorizationPolicy shop/p takes the request depends on who the client is: give --as"},
		"one nobody asks for":     {"ALLOW", web, "", Client{Principal: "spiffe://cluster.local/ns/a/sa/web"}, "403: denied because"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Explain(guardedBy(t, "OUTBOUND", tc.action, tc.principal, tc.chain, gateway), Request{Host: "a", Client: tc.client})
			if !strings.HasPrefix(e.Outcome, tc.want) {
				t.Errorf("got %q, want %q\n%v", e.Outcome, tc.want, e.Steps)
			}
		})
	}
}

func TestAnInboundHandshakeNeedsAnAcceptedIdentity(t *testing.T) {
	for name, tc := range map[string]struct{ field, principal, want string }{
		"typed names":             {`match_typed_subject_alt_names: [{san_type: URI, matcher: {prefix: "spiffe://cluster.local/"}}]`, "spiffe://cluster.local/ns/a/sa/b", "allowed: "},
		"of another trust domain": {`match_typed_subject_alt_names: [{san_type: URI, matcher: {prefix: "spiffe://cluster.local/"}}]`, "spiffe://cluster.local.evil/ns/a/sa/b", "closed: the TLS handshake fails: the trust domain cluster.local.evil "},
		"of no URI":               {`match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: a}}]`, "spiffe://cluster.local/ns/a/sa/b", "closed: the TLS handshake fails: "},
		"one name":                {`match_subject_alt_names: [{exact: "spiffe://cluster.local/ns/a/sa/a"}]`, "spiffe://cluster.local/ns/a/sa/b", "closed: the TLS handshake fails: the identity spiffe://cluster.local/ns/a/sa/b of the client"},
		"any name":                {"", "spiffe://evil.example/ns/a/sa/b", "allowed: "},
		"an unverified one":       {`trust_chain_verification: ACCEPT_UNTRUSTED, match_subject_alt_names: [{exact: a}]`, "spiffe://evil.example/ns/a/sa/b", "allowed: "},
	} {
		t.Run(name, func(t *testing.T) {
			e := ExplainInbound(guardedBy(t, "INBOUND", "ALLOW", anybody, ofDomains(tc.field), ""), Request{Host: "a", Client: Client{Principal: tc.principal}})
			if !strings.HasPrefix(e.Outcome, tc.want) {
				t.Errorf("got %q, want %q", e.Outcome, tc.want)
			}
		})
	}
	e := ExplainInbound(guardedBy(t, "INBOUND", "ALLOW", loopback, "", ""), Request{Host: "a"})
	if want := "not known: whether rules[0] of AuthorizationPolicy shop/p takes the request depends on the address of the client: give --from"; e.Outcome != want {
		t.Errorf("got %q, want %q", e.Outcome, want)
	}
}

// These are the answers of Envoy 1.40.
func TestTheAddressOfTheFirstClientIsThatOfTrustedProxies(t *testing.T) {
	const peer = "127.0.0.1"
	for _, tc := range []struct {
		header                      string
		gw0, gw1, gw2, side0, side1 string
	}{
		{"203.0.113.7", peer, "203.0.113.7", peer, "203.0.113.7", peer},
		{"9.9.9.9,1.1.1.1, 203.0.113.7", peer, "203.0.113.7", "1.1.1.1", "203.0.113.7", "1.1.1.1"},
		{"1.1.1.1, junk", peer, peer, "1.1.1.1", peer, "1.1.1.1"},
		{"junk, 1.1.1.1", peer, "1.1.1.1", peer, "1.1.1.1", peer},
		{"2001:db8::1", peer, "2001:db8::1", peer, "2001:db8::1", peer},
		{"1.1.1.1:80", peer, peer, peer, peer, peer},
		{"1.1.1.1,", peer, peer, "1.1.1.1", peer, "1.1.1.1"},
		{"", peer, peer, peer, peer, peer},
	} {
		x := &explainer{Request: Request{Headers: map[string]string{"X-Forwarded-For": tc.header}, Client: Client{Address: peer}}}
		var got []string
		for _, m := range []*managerv3.HttpConnectionManager{
			{UseRemoteAddress: wrapperspb.Bool(true)}, {UseRemoteAddress: wrapperspb.Bool(true), XffNumTrustedHops: 1},
			{UseRemoteAddress: wrapperspb.Bool(true), XffNumTrustedHops: 2}, {}, {XffNumTrustedHops: 1},
		} {
			got = append(got, x.remote(m).String())
		}
		if want := []string{tc.gw0, tc.gw1, tc.gw2, tc.side0, tc.side1}; !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", tc.header, got, want)
		}
	}
}

func TestAGatewayTellsTheServerWhereTheConnectionComesFrom(t *testing.T) {
	side := guardedBy(t, "INBOUND", "ALLOW", outside, "", "")
	for name, tc := range map[string]struct{ manager, forwarded, address, want string }{
		"of a gateway":             {gateway, "10.0.0.1", "203.0.113.7", "allowed: "},
		"the client's own word":    {gateway, "203.0.113.7", "10.0.0.1", "403: "},
		"one that is not known":    {gateway, "203.0.113.7", "", "not known: "},
		"of a proxy that does not": {"", "203.0.113.7", "10.0.0.1", "allowed: "},
	} {
		req := Request{Host: "a", Headers: map[string]string{"X-Forwarded-For": tc.forwarded}, Client: Client{Address: tc.address}}
		there := Explain(guardedBy(t, "OUTBOUND", "ALLOW", anybody, "", tc.manager), req).Forwarded(req)
		there.Client = Client{Address: "10.9.9.9"}
		if e := ExplainInbound(side, there); !strings.HasPrefix(e.Outcome, tc.want) {
			t.Errorf("%s: got %q, want %q", name, e.Outcome, tc.want)
		}
		if req.Headers["X-Forwarded-For"] != tc.forwarded {
			t.Error("the request was changed")
		}
	}
}

func TestRoutesTakeTheNormalizedPath(t *testing.T) {
	s := guardedBy(t, "OUTBOUND", "ALLOW", anybody, "", "")
	for path, want := range map[string]string{`/x\..\admin`: "201: ", "/x/..;/admin": "201: ", "/admin%00": "400: ", "/x": "200: "} {
		if e := Explain(s, Request{Host: "a", Path: path}); !strings.HasPrefix(e.Outcome, want) {
			t.Errorf("%s: got %q, want %q", path, e.Outcome, want)
		}
	}
	if e := ExplainInbound(guardedBy(t, "INBOUND", "DENY", `{header: {name: ":path", string_match: {prefix: /admin}}}`, "", ""), Request{Host: "a", Path: "/x/..;/admin"}); !strings.HasPrefix(e.Outcome, "403: ") {
		t.Errorf("got %q", e.Outcome)
	}
}

func TestATokenNeedsOneRuleThatAcceptsIt(t *testing.T) {
	provider := func(name string) *jwtv3.JwtRequirement {
		return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}
	}
	c := &jwtv3.JwtAuthentication{
		Providers: map[string]*jwtv3.JwtProvider{
			"origins-0": {Issuer: "i", Audiences: []string{"one"}}, "origins-1": {Issuer: "i", Audiences: []string{"two"}}, "origins-2": {Issuer: "j"},
			"unused": {Issuer: "k"},
		},
		Rules: []*jwtv3.RequirementRule{{RequirementType: &jwtv3.RequirementRule_Requires{Requires: &jwtv3.JwtRequirement{
			RequiresType: &jwtv3.JwtRequirement_RequiresAny{RequiresAny: &jwtv3.JwtRequirementOrList{
				Requirements: []*jwtv3.JwtRequirement{provider("origins-0"), provider("origins-1"), provider("origins-2")},
			}},
		}}}},
	}
	for _, tc := range []struct{ issuer, audience, want string }{
		{"i", "one", ""}, {"i", "two", ""}, {"j", "three", ""},
		{"i", "three", "403: denied because the token is for three, and not for one, two"},
		{"k", "one", `401: the token's issuer "k" is none of those that are accepted (i, j)`},
	} {
		x := &explainer{Request: Request{Client: Client{Claims: map[string]any{"iss": tc.issuer, "aud": tc.audience}}}, Explanation: &Explanation{}}
		if claims, denied := x.tokens(c); denied != tc.want || (claims == nil) != (tc.want != "") {
			t.Errorf("%s for %s: %q, want %q", tc.issuer, tc.audience, denied, tc.want)
		}
	}
}

func TestClaimsAreAnObject(t *testing.T) {
	for _, text := range []string{"null", " null ", "[1]", "1", "{", ""} {
		if claims, err := ParseClaims(text); err == nil || claims != nil || !strings.HasPrefix(err.Error(), "claims: want an object of JSON") {
			t.Errorf("%q: %v, %v", text, claims, err)
		}
	}
	if claims, err := ParseClaims("{}"); err != nil || claims == nil {
		t.Errorf("an empty object: %v, %v", claims, err)
	}
}
