package generate

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/holdfast-xds/holdfast/mesh/generate/authz"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// guard decides who may send requests and open connections to a proxy. A nil guard lets everybody.
type guard struct {
	http []*managerv3.HttpFilter
	tcp  []*listenerv3.Filter
}

// guardOf returns the guard of a proxy: what its RequestAuthentications and AuthorizationPolicies say. Providers are
// asked first, then tokens are checked, and then policies are evaluated, as in Istio.
func (g *Generator) guardOf(v *proxy.View) *guard {
	b := &authz.Builder{
		Policies: g.snap.AuthorizationPolicies(v), Principals: g.snap.Principals, TrustDomains: g.snap.TrustDomains(),
		Provider: func(name string) *authz.Provider { return g.provider(v, name) }, Pack: pack,
	}
	out := &guard{tcp: b.TCP()}
	before, after := b.HTTP()
	out.http = before
	if tokens := g.tokenFilter(v); tokens != nil {
		out.http = append(out.http, httpFilter(authz.TokenFilter, tokens))
	}
	out.http = append(out.http, after...)
	return out
}

// beforeHTTP returns the filters that come before all others of an HTTP connection.
func (d *guard) beforeHTTP() []*managerv3.HttpFilter {
	if d == nil {
		return nil
	}
	return slices.Clone(d.http)
}

// beforeTCP returns filters of a connection that is not HTTP, with those that come before them.
func (d *guard) beforeTCP(filters ...*listenerv3.Filter) []*listenerv3.Filter {
	if d == nil {
		return filters
	}
	return slices.Concat(d.tcp, filters)
}

// provider returns the provider of a name; nil if there is none that decides about requests, or if its service is not
// known, or if the proxy means another one by its host.
func (g *Generator) provider(v *proxy.View, name string) *authz.Provider {
	for _, p := range g.snap.Mesh.GetExtensionProviders() {
		if p.GetName() != name {
			continue
		}
		out := &authz.Provider{HTTP: p.GetEnvoyExtAuthzHttp(), GRPC: p.GetEnvoyExtAuthzGrpc()}
		if out.HTTP == nil && out.GRPC == nil {
			return nil
		}
		text := cmp.Or(out.HTTP.GetService(), out.GRPC.GetService())
		svc := g.snap.Referred(text)
		if svc == nil || v.Type() == proxy.Sidecar && !g.snap.Scope(v).MeansReferred(text) {
			return nil
		}
		out.Host, out.Cluster = string(svc.Hostname), ClusterName(cmp.Or(out.HTTP.GetPort(), out.GRPC.GetPort()), "", svc.Hostname)
		return out
	}
	return nil
}

// guardServices returns the services that the guard of a gateway asks.
func (g *Generator) guardServices(v *proxy.View) (out []*service.Service) {
	for _, p := range g.snap.AuthorizationPolicies(v) {
		if found := g.provider(v, p.Policy.GetProvider().GetName()); found != nil {
			out = append(out, g.snap.Referred(cmp.Or(found.HTTP.GetService(), found.GRPC.GetService())))
		}
	}
	for _, rule := range g.snap.TokenRules(v) {
		if svc, _ := g.keyService(rule); svc != nil {
			out = append(out, svc)
		}
	}
	return out
}

// Times of Istio's for the keys of issuers.
const (
	keyTimeout  = 5 * time.Second
	keysFreshOf = 5 * time.Minute
)

// tokenFilter returns the filter that checks tokens; nil if the proxy has no rules. A request without a token passes, one
// with a token that no rule accepts does not.
func (g *Generator) tokenFilter(v *proxy.View) *jwtv3.JwtAuthentication {
	rules := g.snap.TokenRules(v)
	if len(rules) == 0 {
		return nil
	}
	providers := make(map[string]*jwtv3.JwtProvider)
	var each, any []*jwtv3.JwtRequirement
	for i, rule := range rules {
		name := "origins-" + strconv.Itoa(i)
		providers[name] = g.tokenProvider(v, rule)
		named := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}}
		missing := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
		each = append(each, oneRequirement(named, missing))
		any = append(any, named)
	}
	required := each[0]
	if len(each) > 1 {
		// A token of one issuer is invalid for the others if they look for it at the same place.
		required = oneRequirement(append(any, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAll{
			RequiresAll: &jwtv3.JwtRequirementAndList{Requirements: each},
		}})...)
	}
	return &jwtv3.JwtAuthentication{
		Providers: providers, BypassCorsPreflight: true,
		Rules: []*jwtv3.RequirementRule{{Match: routeMatch(nil, false), RequirementType: &jwtv3.RequirementRule_Requires{Requires: required}}},
	}
}

func oneRequirement(of ...*jwtv3.JwtRequirement) *jwtv3.JwtRequirement {
	return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: of}}}
}

// tokenProvider returns how the tokens of an issuer are found and checked.
func (g *Generator) tokenProvider(v *proxy.View, rule push.TokenRule) *jwtv3.JwtProvider {
	out := &jwtv3.JwtProvider{
		Issuer: rule.GetIssuer(), Audiences: rule.GetAudiences(), Forward: rule.GetForwardOriginalToken(),
		ForwardPayloadHeader: rule.GetOutputPayloadToHeader(), PayloadInMetadata: authz.TokenPayload,
		FromParams: rule.GetFromParams(), FromCookies: rule.GetFromCookies(),
		// Routes of a gateway may depend on claims.
		ClearRouteCache: v.Type() != proxy.Sidecar,
	}
	spaced := append([]string{"permission", "scope"}, rule.GetSpaceDelimitedClaims()...)
	slices.Sort(spaced)
	out.NormalizePayloadInMetadata = &jwtv3.JwtProvider_NormalizePayload{SpaceDelimitedClaims: slices.Compact(spaced)}
	for _, header := range rule.GetFromHeaders() {
		out.FromHeaders = append(out.FromHeaders, &jwtv3.JwtHeader{Name: header.GetName(), ValuePrefix: header.GetPrefix()})
	}
	for _, claim := range rule.GetOutputClaimToHeaders() {
		out.ClaimToHeaders = append(out.ClaimToHeaders, &jwtv3.JwtClaimToHeader{HeaderName: claim.GetHeader(), ClaimName: claim.GetClaim()})
	}
	if svc, port := g.keyService(rule); svc != nil {
		timeout := rule.GetTimeout()
		if timeout == nil {
			timeout = durationpb.New(keyTimeout)
		}
		out.JwksSourceSpecifier = &jwtv3.JwtProvider_RemoteJwks{RemoteJwks: &jwtv3.RemoteJwks{
			HttpUri: &corev3.HttpUri{
				Uri: rule.GetJwksUri(), Timeout: timeout,
				HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: ClusterName(port, "", svc.Hostname)},
			},
			CacheDuration: durationpb.New(keysFreshOf),
		}}
		return out
	}
	out.JwksSourceSpecifier = &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
		Specifier: &corev3.DataSource_InlineString{InlineString: cmp.Or(rule.Keys, nobodysKey())},
	}}
	return out
}

// keyService returns the service of the mesh from which proxies get the keys of an issuer themselves, and its port; nil
// if they get them from this control plane.
func (g *Generator) keyService(rule push.TokenRule) (*service.Service, uint32) {
	if !rule.ByProxy || rule.GetJwksUri() == "" {
		return nil, 0
	}
	u, err := url.Parse(rule.GetJwksUri())
	if err != nil {
		return nil, 0
	}
	port := uint32(80)
	if u.Scheme == "https" {
		port = 443
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		port = uint32(n)
	}
	return g.snap.Referred(strings.ToLower(u.Hostname())), port
}
