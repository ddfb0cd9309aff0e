package authz

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	templatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// translation translates a rule.
type translation struct {
	*Builder
	namespace string // of the policy
	known     scope  // what is known of a connection or a request
	// strict says that the rule allows: it takes nothing if it has something that is not known of a connection. Another
	// rule takes the connection as if that were not there.
	strict   bool
	unusable bool
}

// rule returns a rule in Envoy's form; nil if it takes nothing. A request must have one of the sources, be one of the
// operations, and meet all conditions.
func (t *translation) rule(rule *security.Rule) *rbacv3.Policy {
	var who, what terms
	for _, when := range rule.GetWhen() {
		t.condition(&who, &what, when)
	}
	out := &rbacv3.Policy{}
	for _, from := range rule.GetFrom() {
		own := terms{}
		t.source(&own, from.GetSource())
		out.Principals = append(out.Principals, allPrincipals(append(own.principals, who.principals...)))
	}
	if len(rule.GetFrom()) == 0 {
		out.Principals = append(out.Principals, allPrincipals(who.principals))
	}
	for _, to := range rule.GetTo() {
		own := terms{}
		t.operation(&own, to.GetOperation())
		out.Permissions = append(out.Permissions, allPermissions(append(own.permissions, what.permissions...)))
	}
	if len(rule.GetTo()) == 0 {
		out.Permissions = append(out.Permissions, allPermissions(what.permissions))
	}
	if t.unusable {
		return nil
	}
	return out
}

// terms are what a request must all meet. Envoy has two kinds: about the client and about what it does.
type terms struct {
	principals  []*rbacv3.Principal
	permissions []*rbacv3.Permission
}

// scope is what is known when a rule is evaluated, each more than the one before.
type scope int

const (
	connections scope = iota // of connections that are not HTTP
	requests                 // of requests, but for what only Envoy knows of them
	everything               // tokens, templates of paths and metadata of other filters, too
	// nowhere is what Envoy may not be told: it would end, or reject the listener and so keep the policies of before.
	// Validation refuses such values. They are here again because a control plane must not end its proxies if validation
	// misses one: a rule that allows is left out, and another one takes more.
	nowhere
)

// knows reports whether an attribute that needs a scope is known.
func (t *translation) knows(needs scope) bool {
	if needs > t.known {
		t.unusable = t.unusable || t.strict
		return false
	}
	return true
}

// client adds that an attribute of the client has one of the values, and none of the others.
func (t *translation) client(to *terms, values, not []string, needs scope, match func(value string) []*rbacv3.Principal) {
	if len(values)+len(not) == 0 || !t.knows(needs) {
		return
	}
	alternatives := func(values []string) (out []*rbacv3.Principal) {
		for _, value := range values {
			out = append(out, match(value)...)
		}
		return out
	}
	if len(values) > 0 {
		to.principals = append(to.principals, onePrincipal(alternatives(values)))
	}
	if len(not) > 0 {
		to.principals = append(to.principals, &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: onePrincipal(alternatives(not))}})
	}
}

// act adds that an attribute of what the client does has one of the values, and none of the others.
func (t *translation) act(to *terms, values, not []string, needs scope, match func(value string) *rbacv3.Permission) {
	if len(values)+len(not) == 0 || !t.knows(needs) {
		return
	}
	alternatives := func(values []string) (out []*rbacv3.Permission) {
		for _, value := range values {
			out = append(out, match(value))
		}
		return out
	}
	if len(values) > 0 {
		to.permissions = append(to.permissions, onePermission(alternatives(values)))
	}
	if len(not) > 0 {
		to.permissions = append(to.permissions, &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: onePermission(alternatives(not))}})
	}
}

// patternScope returns what values need of which Envoy gets regular expressions.
func patternScope(values, not []string) scope {
	tooLong := func(value string) bool { return len(value) > config.MaxPattern }
	if slices.ContainsFunc(values, tooLong) || slices.ContainsFunc(not, tooLong) {
		return nowhere
	}
	return connections
}

// pathScope returns what paths need.
func pathScope(paths []string) scope {
	needs := requests
	for _, path := range paths {
		switch {
		case !config.IsPathTemplate(path):
		case config.PathTemplateProblem(path) != "":
			return nowhere
		default:
			needs = everything
		}
	}
	return needs
}

// headerScope returns what a header needs.
func headerScope(name string) scope {
	switch {
	case !config.IsHeaderForEnvoy(name):
		return nowhere
	case reserved(name):
		return everything
	}
	return requests
}

// source adds from whom a request must be.
func (t *translation) source(to *terms, s *security.Source) {
	t.client(to, s.GetPrincipals(), s.GetNotPrincipals(), patternScope(s.GetPrincipals(), s.GetNotPrincipals()), t.principal)
	t.client(to, s.GetRequestPrincipals(), s.GetNotRequestPrincipals(), everything, requestPrincipal)
	t.client(to, s.GetServiceAccounts(), s.GetNotServiceAccounts(), connections, t.serviceAccount)
	t.client(to, s.GetTrustDomains(), s.GetNotTrustDomains(), patternScope(s.GetTrustDomains(), s.GetNotTrustDomains()), t.trustDomain)
	t.client(to, s.GetNamespaces(), s.GetNotNamespaces(), patternScope(s.GetNamespaces(), s.GetNotNamespaces()), namespace)
	t.client(to, s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks(), connections, remoteIP)
	t.client(to, s.GetIpBlocks(), s.GetNotIpBlocks(), connections, sourceIP)
}

// operation adds what a request must do.
func (t *translation) operation(to *terms, o *security.Operation) {
	t.act(to, o.GetHosts(), o.GetNotHosts(), requests, host)
	t.act(to, o.GetMethods(), o.GetNotMethods(), requests, method)
	t.act(to, o.GetPaths(), o.GetNotPaths(), pathScope(slices.Concat(o.GetPaths(), o.GetNotPaths())), path)
	t.act(to, o.GetPorts(), o.GetNotPorts(), connections, port)
}

// condition adds a condition.
func (t *translation) condition(who, what *terms, c *security.Condition) {
	values, not := c.GetValues(), c.GetNotValues()
	bracket := strings.IndexByte(c.GetKey()+"[", '[')
	switch key := c.GetKey(); key[:bracket] {
	case config.AttributeSourceIP:
		t.client(who, values, not, connections, sourceIP)
	case config.AttributeRemoteIP:
		t.client(who, values, not, connections, remoteIP)
	case config.AttributeNamespace:
		t.client(who, values, not, patternScope(values, not), namespace)
	case config.AttributeServiceAccount:
		t.client(who, values, not, connections, t.serviceAccount)
	case config.AttributeTrustDomain:
		t.client(who, values, not, patternScope(values, not), t.trustDomain)
	case config.AttributePrincipal:
		t.client(who, values, not, patternScope(values, not), t.principal)
	case config.AttributeAuthPrincipal:
		t.client(who, values, not, everything, requestPrincipal)
	case config.AttributeAudiences:
		t.client(who, values, not, everything, claim([]string{"aud"}))
	case config.AttributePresenter:
		t.client(who, values, not, everything, claim([]string{"azp"}))
	case config.AttributeClaims:
		t.client(who, values, not, everything, claim(config.ClaimPath(key[bracket:])))
	case config.AttributeHeader:
		name := strings.TrimSuffix(strings.TrimPrefix(key[bracket:], "["), "]")
		t.client(who, values, not, headerScope(name), func(value string) []*rbacv3.Principal {
			return []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Header{Header: headerMatch(name, value, false)}}}
		})
	case config.AttributeDestinationIP:
		t.act(what, values, not, connections, destinationIP)
	case config.AttributePort:
		t.act(what, values, not, connections, port)
	case config.AttributeSNI:
		t.act(what, values, not, t.envoyScope(), serverName)
	default: // validation leaves metadata only
		filter := strings.TrimPrefix(key[:bracket], "experimental.")
		name := strings.TrimSuffix(strings.TrimPrefix(key[bracket:], "["), "]")
		t.act(what, values, not, t.envoyScope(), func(value string) *rbacv3.Permission { return metadata(filter, name, value) })
	}
}

// envoyScope returns what metadata of other filters and the name that a client asked for in TLS need: Envoy knows them of
// connections, too, and gRPC of nothing.
func (t *translation) envoyScope() scope {
	if t.known == requests {
		return everything
	}
	return connections
}

// reserved reports whether gRPC does not let rules be about a header (gRFC A41), or does not show it to them: TE.
func reserved(header string) bool {
	header = strings.ToLower(header)
	return strings.HasPrefix(header, "grpc-") || header == ":scheme" || header == "te"
}

// authenticated returns that the certificate of the client has a name.
func authenticated(m *matcherv3.StringMatcher) []*rbacv3.Principal {
	return []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: m}}}}
}

const spiffeScheme = "spiffe://"

// principal matches DOMAIN/ns/NAMESPACE/sa/ACCOUNT, which may begin or end with a wildcard.
func (t *translation) principal(value string) (out []*rbacv3.Principal) {
	for _, p := range t.Principals(value) {
		out = append(out, authenticated(textAfter(spiffeScheme, p))...)
	}
	return out
}

// namespace matches the namespace of the client, with wildcards anywhere.
func namespace(value string) []*rbacv3.Principal {
	var parts []string
	for part := range strings.SplitSeq(value, "*") {
		parts = append(parts, regexp.QuoteMeta(part))
	}
	return authenticated(expression(spiffeScheme + "[^/]+/ns/" + strings.Join(parts, "[^/]*") + "/.*"))
}

// serviceAccount matches ACCOUNT of the policy's namespace, or NAMESPACE/ACCOUNT, in any trust domain.
func (t *translation) serviceAccount(value string) []*rbacv3.Principal {
	namespace, account, ok := strings.Cut(value, "/")
	if !ok {
		namespace, account = t.namespace, value
	}
	return authenticated(expression(spiffeScheme + "[^/]+/ns/" + regexp.QuoteMeta(namespace) + "/sa/" + regexp.QuoteMeta(account)))
}

// trustDomain matches the trust domain of the client. That of the mesh stands for its aliases, too, and they for it.
func (t *translation) trustDomain(value string) (out []*rbacv3.Principal) {
	switch domains := []string{value}; {
	case value == "*":
		return authenticated(prefix(spiffeScheme))
	case !strings.Contains(value, "*"):
		if slices.Contains(t.TrustDomains, value) {
			domains = t.TrustDomains
		}
		for _, domain := range domains {
			out = append(out, authenticated(prefix(spiffeScheme+domain+"/"))...)
		}
		return out
	}
	before, after, _ := strings.Cut(value, "*")
	return authenticated(expression(spiffeScheme + regexp.QuoteMeta(before) + "[^/]*" + regexp.QuoteMeta(after) + "/.*"))
}

// sourceIP matches the address from which the connection comes, remoteIP that of the client as proxies in between say.
func sourceIP(value string) []*rbacv3.Principal {
	return []*rbacv3.Principal{{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: cidr(value)}}}
}

func remoteIP(value string) []*rbacv3.Principal {
	return []*rbacv3.Principal{{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: cidr(value)}}}
}

func destinationIP(value string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: cidr(value)}}
}

// cidr returns an address or a prefix, which validation has checked.
func cidr(value string) *corev3.CidrRange {
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		address, _ := netip.ParseAddr(value)
		prefix = netip.PrefixFrom(address, address.BitLen())
	}
	return &corev3.CidrRange{AddressPrefix: prefix.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(max(prefix.Bits(), 0)))}
}

func port(value string) *rbacv3.Permission {
	n, _ := strconv.ParseUint(value, 10, 16)
	return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(n)}}
}

func serverName(value string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: text(value)}}
}

func host(value string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: headerMatch(":authority", value, true)}}
}

func method(value string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: headerMatch(":method", value, false)}}
}

// path matches a path without its query, or a template of one.
func path(value string) *rbacv3.Permission {
	if config.IsPathTemplate(value) {
		template := config.EnvoyPathTemplate(value)
		return &rbacv3.Permission{Rule: &rbacv3.Permission_UriTemplate{UriTemplate: &corev3.TypedExtensionConfig{
			Name: "uri-template", TypedConfig: packed(&templatev3.UriTemplateMatchConfig{PathTemplate: template}),
		}}}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: text(value)}}}}
}

// metadata matches dynamic metadata of Envoy: a text, or with [TEXT] a list that has it.
func metadata(filter, name, value string) *rbacv3.Permission {
	m := &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: text(value)}}
	if inner, ok := strings.CutPrefix(value, "["); ok && strings.HasSuffix(inner, "]") {
		m = listOf(&matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: text(strings.TrimSuffix(inner, "]"))}})
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_SourcedMetadata{
		SourcedMetadata: &rbacv3.SourcedMetadata{MetadataMatcher: metadataMatch(filter, []string{name}, m)},
	}}
}
