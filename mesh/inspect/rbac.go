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
	// principal is the SPIFFE ID of the client; "" for none. hidden says that it has a certificate that is not known.
	principal string
	hidden    bool
	// source is the address of the client, remote that of the first client; the zero Addr if they are not known.
	source, remote, destination netip.Addr
	port                        uint32
	serverName                  string
	// claims are those of a valid token; nil for none.
	claims map[string]any

	// lacks says what would have to be known to decide the rules about which undecided was asked last.
	lacks []string
}

// truth is whether something holds, as far as that is known.
type truth int

const (
	no truth = iota
	maybe
	yes
)

func known(is bool) truth {
	if is {
		return yes
	}
	return no
}

// every and some are "and" and "or".
func every[T any](of []T, holds func(T) truth) truth {
	out := yes
	for _, one := range of {
		out = min(out, holds(one))
	}
	return out
}

func some[T any](of []T, holds func(T) truth) truth {
	out := no
	for _, one := range of {
		out = max(out, holds(one))
	}
	return out
}

// undecided returns the names of the rules of which it is not known whether they take the request, in order.
func (f *facts) undecided(rbac *rbacv3.RBAC) []string {
	f.lacks = nil
	return f.those(rbac, maybe)
}

// matching returns the names of the rules that take a request, in order.
func (f *facts) matching(rbac *rbacv3.RBAC) []string { return f.those(rbac, yes) }

func (f *facts) those(rbac *rbacv3.RBAC, are truth) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(rbac.GetPolicies())) {
		p := rbac.GetPolicies()[name]
		if min(some(p.GetPermissions(), f.permission), some(p.GetPrincipals(), f.is)) == are {
			names = append(names, name)
		}
	}
	return names
}

// permission reports whether what the client does is what a permission says.
func (f *facts) permission(p *rbacv3.Permission) truth {
	switch rule := p.GetRule().(type) {
	case *rbacv3.Permission_Any:
		return known(rule.Any)
	case *rbacv3.Permission_AndRules:
		return every(rule.AndRules.GetRules(), f.permission)
	case *rbacv3.Permission_OrRules:
		return some(rule.OrRules.GetRules(), f.permission)
	case *rbacv3.Permission_NotRule:
		return yes - f.permission(rule.NotRule)
	case *rbacv3.Permission_Header:
		return known(f.http && f.request.Header(rule.Header))
	case *rbacv3.Permission_UrlPath:
		return known(f.http && f.request.Path(rule.UrlPath))
	case *rbacv3.Permission_UriTemplate:
		template := &templatev3.UriTemplateMatchConfig{}
		return known(f.http && rule.UriTemplate.GetTypedConfig().UnmarshalTo(template) == nil && f.request.Template(template.GetPathTemplate()))
	case *rbacv3.Permission_DestinationPort:
		return known(f.port == rule.DestinationPort)
	case *rbacv3.Permission_DestinationIp:
		return f.within(rule.DestinationIp, f.destination, "the address of the server")
	case *rbacv3.Permission_RequestedServerName:
		return known(routing.Text(rule.RequestedServerName, f.serverName))
	}
	return no // metadata of filters that are not known here
}

// is reports whether the client is who a principal says.
func (f *facts) is(p *rbacv3.Principal) truth {
	switch id := p.GetIdentifier().(type) {
	case *rbacv3.Principal_Any:
		return known(id.Any)
	case *rbacv3.Principal_AndIds:
		return every(id.AndIds.GetIds(), f.is)
	case *rbacv3.Principal_OrIds:
		return some(id.OrIds.GetIds(), f.is)
	case *rbacv3.Principal_NotId:
		return yes - f.is(id.NotId)
	case *rbacv3.Principal_Authenticated_:
		if f.hidden {
			return f.lack("who the client is: give --as")
		}
		return known(f.principal != "" && (id.Authenticated.GetPrincipalName() == nil || routing.Text(id.Authenticated.GetPrincipalName(), f.principal)))
	case *rbacv3.Principal_DirectRemoteIp:
		return f.within(id.DirectRemoteIp, f.source, lacksAddress)
	case *rbacv3.Principal_RemoteIp:
		return f.within(id.RemoteIp, f.remote, lacksAddress)
	case *rbacv3.Principal_Header:
		return known(f.http && f.request.Header(id.Header))
	case *rbacv3.Principal_SourcedMetadata:
		return known(f.claim(id.SourcedMetadata.GetMetadataMatcher()))
	}
	return no
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

const lacksAddress = "the address of the client: give --from"

// lack notes what is not known.
func (f *facts) lack(what string) truth {
	if !slices.Contains(f.lacks, what) {
		f.lacks = append(f.lacks, what)
	}
	return maybe
}

// within reports whether an address is in a range; what says whose it is, if it is not known.
func (f *facts) within(r *corev3.CidrRange, address netip.Addr, what string) truth {
	of, err := netip.ParseAddr(r.GetAddressPrefix())
	switch {
	case err != nil:
		return no
	case !address.IsValid():
		return f.lack(what)
	}
	return known(netip.PrefixFrom(of, int(r.GetPrefixLen().GetValue())).Contains(address.Unmap()))
}
