package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
)

// tokens explains the filter of tokens. It returns the claims as policies see them, and why the request is denied; ""
// if it is not.
func (x *explainer) tokens(c *jwtv3.JwtAuthentication) (claims map[string]any, denied string) {
	var issuers, audiences []string
	var of *jwtv3.JwtProvider // the first that accepts the token
	isOf := false             // there is a rule of its issuer
	issuer, _ := x.Client.Claims["iss"].(string)
	for _, p := range providersOf(c) {
		issuers = append(issuers, p.GetIssuer())
		if p.GetIssuer() != issuer && p.GetIssuer() != "" { // "" stands for any
			continue
		}
		isOf = true
		audiences = append(audiences, p.GetAudiences()...)
		if of == nil && hasAudience(p.GetAudiences(), x.Client.Claims["aud"]) {
			of = p
		}
	}
	slices.Sort(issuers)
	known := strings.Join(slices.Compact(issuers), ", ")
	switch {
	case x.Client.Claims == nil:
		x.add("tokens", "RequestAuthentication", "", "tokens of %s are accepted; the request has none", known)
		return nil, ""
	case !isOf:
		x.add("tokens", "RequestAuthentication", "", "tokens of %s are accepted", known)
		return nil, fmt.Sprintf("401: the token's issuer %q is none of those that are accepted (%s)", issuer, known)
	case of == nil:
		x.add("tokens", "RequestAuthentication", "", "tokens of %s are accepted for %s", issuer, strings.Join(audiences, ", "))
		return nil, fmt.Sprintf("403: denied because the token is for %v, and not for %s", x.Client.Claims["aud"], strings.Join(audiences, ", "))
	}
	x.add("tokens", "RequestAuthentication", "", "the token of %s is accepted, if it is valid", issuer)
	claims = maps.Clone(x.Client.Claims)
	for _, name := range of.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims() {
		if text, ok := claims[name].(string); ok {
			var list []any
			for word := range strings.FieldsSeq(text) {
				list = append(list, word)
			}
			claims[name] = list
		}
	}
	return claims, ""
}

// providersOf returns the providers of which any may accept a token, in the order in which they are asked.
func providersOf(c *jwtv3.JwtAuthentication) (out []*jwtv3.JwtProvider) {
	var add func(*jwtv3.JwtRequirement)
	add = func(r *jwtv3.JwtRequirement) {
		if p := c.GetProviders()[r.GetProviderName()]; p != nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
		for _, one := range slices.Concat(r.GetRequiresAny().GetRequirements(), r.GetRequiresAll().GetRequirements()) {
			add(one)
		}
	}
	for _, rule := range c.GetRules() {
		add(rule.GetRequires())
		add(c.GetRequirementMap()[rule.GetRequirementName()])
	}
	return out
}

// hasAudience reports whether a token is for one of the audiences; for any if there are none.
func hasAudience(audiences []string, claim any) bool {
	if len(audiences) == 0 {
		return true
	}
	list, ok := claim.([]any)
	if !ok {
		list = []any{claim}
	}
	return slices.ContainsFunc(list, func(one any) bool {
		text, ok := one.(string)
		return ok && slices.ContainsFunc(audiences, func(a string) bool { return audienceName(a) == audienceName(text) })
	})
}

// audienceName returns an audience as Envoy compares it: without a scheme, and without a slash at the end.
func audienceName(text string) string {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "https://"), "http://")
	return strings.TrimSuffix(text, "/")
}
