package inspect

import (
	"maps"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	templatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/mesh/generate/authz"
)

// facts are what Envoy's RBAC filters know of a request or a connection.
type facts struct {
	request routing.Matcher
	http    bool // it is a request, and not a connection
	// principal is the SPIFFE ID of the client; "" for none.
	principal string
	// source is the address of the client, remote that of the first client; the zero Addr if they are not known.
	source, remote, destination netip.Addr
	port                        uint32
	serverName                  string
	// claims are those of a valid token; nil for none.
	claims map[string]any
}

// matching returns the names of the rules that take a request, in order.
func (f *facts) matching(rbac *rbacv3.RBAC) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(rbac.GetPolicies())) {
		p := rbac.GetPolicies()[name]
		if slices.ContainsFunc(p.GetPermissions(), f.permission) && slices.ContainsFunc(p.GetPrincipals(), f.is) {
			names = append(names, name)
		}
	}
	return names
}

// permission reports whether what the client does is what a permission says.
func (f *facts) permission(p *rbacv3.Permission) bool {
	switch rule := p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return rule.Any
	case *rbacv3.Permission_AndRules:
		return !slices.ContainsFunc(rule.AndRules.GetRules(), func(p *rbacv3.Permission) bool { return !f.permission(p) })
	case *rbacv3.Permission_OrRules:
		return slices.ContainsFunc(rule.OrRules.GetRules(), f.permission)
	case *rbacv3.Permission_NotRule:
		return !f.permission(rule.NotRule)
	case *rbacv3.Permission_Header:
		return f.http && f.request.Header(rule.Header)
	case *rbacv3.Permission_UrlPath:
		return f.http && f.request.Path(rule.UrlPath)
	case *rbacv3.Permission_UriTemplate:
		template := &templatev3.UriTemplateMatchConfig{}
		return f.http && rule.UriTemplate.GetTypedConfig().UnmarshalTo(template) == nil && f.request.Template(template.GetPathTemplate())
	case *rbacv3.Permission_DestinationPort:
		return f.port == rule.DestinationPort
	case *rbacv3.Permission_DestinationIp:
		return within(rule.DestinationIp, f.destination)
	case *rbacv3.Permission_RequestedServerName:
		return routing.Text(rule.RequestedServerName, f.serverName)
	}
	return false // metadata of filters that are not known here
}

// is reports whether the client is who a principal says.
func (f *facts) is(p *rbacv3.Principal) bool {
	switch id := p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return id.Any
	case *rbacv3.Principal_AndIds:
		return !slices.ContainsFunc(id.AndIds.GetIds(), func(p *rbacv3.Principal) bool { return !f.is(p) })
	case *rbacv3.Principal_OrIds:
		return slices.ContainsFunc(id.OrIds.GetIds(), f.is)
	case *rbacv3.Principal_NotId:
		return !f.is(id.NotId)
	case *rbacv3.Principal_Authenticated_:
		return f.principal != "" && (id.Authenticated.GetPrincipalName() == nil || routing.Text(id.Authenticated.GetPrincipalName(), f.principal))
	case *rbacv3.Principal_DirectRemoteIp:
		return within(id.DirectRemoteIp, f.source)
	case *rbacv3.Principal_RemoteIp:
		return within(id.RemoteIp, f.remote)
	case *rbacv3.Principal_Header:
		return f.http && f.request.Header(id.Header)
	case *rbacv3.Principal_SourcedMetadata:
		return f.claim(id.SourcedMetadata.GetMetadataMatcher())
	}
	return false
}

// claim reports whether a claim of the token is as a matcher wants it.
func (f *facts) claim(m *matcherv3.MetadataMatcher) bool {
	if m.GetFilter() != authz.TokenFilter || f.claims == nil || len(m.GetPath()) < 2 {
		return false
	}
	var value any = f.claims
	for _, segment := range m.GetPath()[1:] { // after the name of the payload
		object, _ := value.(map[string]any)
		value = object[segment.GetKey()]
	}
	return matchesValue(m.GetValue(), value)
}

func matchesValue(m *matcherv3.ValueMatcher, value any) bool {
	switch pattern := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_StringMatch:
		text, ok := value.(string)
		return ok && routing.Text(pattern.StringMatch, text)
	case *matcherv3.ValueMatcher_ListMatch:
		list, _ := value.([]any)
		return slices.ContainsFunc(list, func(one any) bool { return matchesValue(pattern.ListMatch.GetOneOf(), one) })
	case *matcherv3.ValueMatcher_OrMatch:
		return slices.ContainsFunc(pattern.OrMatch.GetValueMatchers(), func(m *matcherv3.ValueMatcher) bool { return matchesValue(m, value) })
	}
	return false
}

// within reports whether an address is in a range; one that is not known is in none.
func within(r *corev3.CidrRange, address netip.Addr) bool {
	of, err := netip.ParseAddr(r.GetAddressPrefix())
	return err == nil && address.IsValid() && netip.PrefixFrom(of, int(r.GetPrefixLen().GetValue())).Contains(address.Unmap())
}
