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
	var issuers []string
	var of *jwtv3.JwtProvider
	issuer, _ := x.Client.Claims["iss"].(string)
	for _, name := range slices.Sorted(maps.Keys(c.GetProviders())) {
		p := c.GetProviders()[name]
		issuers = append(issuers, p.GetIssuer())
		if p.GetIssuer() == issuer || p.GetIssuer() == "" { // "" stands for any
			of = p
		}
	}
	known := strings.Join(slices.Compact(issuers), ", ")
	switch {
	case x.Client.Claims == nil:
		x.add("tokens", "RequestAuthentication", "", "tokens of %s are accepted; the request has none", known)
		return nil, ""
	case of == nil:
		x.add("tokens", "RequestAuthentication", "", "tokens of %s are accepted", known)
		return nil, fmt.Sprintf("401: the token's issuer %q is none of those that are accepted (%s)", issuer, known)
	case !hasAudience(of.GetAudiences(), x.Client.Claims["aud"]):
		x.add("tokens", "RequestAuthentication", "", "tokens of %s are accepted for %s", issuer, strings.Join(of.GetAudiences(), ", "))
		return nil, fmt.Sprintf("403: denied because the token is for %v, and not for %s", x.Client.Claims["aud"], strings.Join(of.GetAudiences(), ", "))
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
