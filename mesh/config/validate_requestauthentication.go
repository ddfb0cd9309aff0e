package config

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/mesh/jwks"
)

// validateRequestAuthentication checks a RequestAuthentication.
func validateRequestAuthentication(k *checker, spec *security.RequestAuthentication) {
	k.policyTarget(spec.GetSelector(), spec.GetTargetRef(), spec.GetTargetRefs())
	for i, rule := range spec.GetJwtRules() {
		k.jwtRule((&path{name: "spec"}).field("jwtRules").at(i), rule)
	}
}

// jwtRule checks which tokens are accepted, and where they are.
func (k *checker) jwtRule(at *path, rule *security.JWTRule) {
	if rule.GetIssuer() == "" && rule.GetJwksUri() == "" {
		k.errorf(at.field("issuer"), "an issuer or a jwksUri must be set")
	}
	for _, list := range []struct {
		field  string
		values []string
	}{{"audiences", rule.GetAudiences()}, {"fromParams", rule.GetFromParams()}, {"fromCookies", rule.GetFromCookies()}} {
		k.noneEmpty(at.field(list.field), list.values)
	}
	k.keySource(at, rule)
	froms := at.field("fromHeaders")
	for i, header := range rule.GetFromHeaders() {
		at := froms.at(i).field("name")
		if header.GetName() == "" {
			k.errorf(at, "it is missing")
		} else {
			k.report(at, header.GetName(), headerNameProblem(header.GetName()))
		}
		if strings.ContainsAny(header.GetPrefix(), "\x00\r\n") {
			k.errorf(froms.at(i).field("prefix"), "%.100q has a character that no header has: Envoy rejects the listener", header.GetPrefix())
		}
	}
	for i, claim := range rule.GetOutputClaimToHeaders() {
		at := at.field("outputClaimToHeaders").at(i)
		if claim.GetClaim() == "" {
			k.errorf(at.field("claim"), "it is missing")
		}
		if claim.GetHeader() == "" {
			k.errorf(at.field("header"), "it is missing")
		} else {
			k.report(at.field("header"), claim.GetHeader(), claimHeaderProblem(claim.GetHeader()))
		}
	}
	if name := rule.GetOutputPayloadToHeader(); name != "" {
		k.report(at.field("outputPayloadToHeader"), name, headerNameProblem(name))
	}
	k.duration(at.field("timeout"), rule.GetTimeout())
}

// claimHeader is the name of a header of claims, which Istio has stricter than others.
var claimHeader = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

func claimHeaderProblem(name string) string {
	if !claimHeader.MatchString(name) {
		return "is no name of a header of claims: use letters, digits, '-' and '_'"
	}
	return ""
}

// keySource checks where the keys of the issuer are.
func (k *checker) keySource(at *path, rule *security.JWTRule) {
	if uri := rule.GetJwksUri(); uri != "" {
		u, err := url.Parse(uri)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			k.errorf(at.field("jwksUri"), "%.200q: want a URL, http://HOST… or https://HOST…", uri)
		} else if n, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || n == 0) {
			k.errorf(at.field("jwksUri"), "%.200q: the port must be from 1 to 65535", uri)
		}
	}
	if rule.GetJwks() == "" {
		return
	}
	if rule.GetJwksUri() != "" {
		k.warnf(NoEffect, at.field("jwksUri"), "has no effect beside jwks")
	}
	keys := at.field("jwks")
	var set jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(rule.GetJwks()), &set); err != nil {
		k.errorf(keys, "is no set of keys (JWKS): %v", err)
		return
	}
	if why := keyNamesProblem(rule.GetJwks()); why != "" {
		k.errorf(keys, "is no set of keys (JWKS): %s", why)
		return
	}
	if !jwks.IsUsable([]byte(rule.GetJwks())) {
		k.warnf(NoUsableKey, keys, "has no key with which tokens can be verified: no token is accepted")
	}
	for i, key := range set.Keys {
		if !key.IsPublic() {
			k.warnf(PrivateKey, keys, "key %d is private, and is sent to proxies: whoever reads the document can make tokens; write the public key", i)
		}
	}
}

// keyNamesProblem returns why Envoy does not find the keys in a JSON object; "" if it does. Unlike Go it compares names
// with their case, and rejects an object that has a name twice.
func keyNamesProblem(text string) string {
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return err.Error()
	}
	if name := nameTwice(json.NewDecoder(strings.NewReader(text))); name != "" {
		return fmt.Sprintf("the name %.100q is there twice", name)
	}
	if object["keys"] != nil {
		return ""
	}
	for name := range object {
		if strings.EqualFold(name, "keys") {
			return fmt.Sprintf("%q must be written keys", name)
		}
	}
	return "it has no keys"
}

// nameTwice reads a valid value, and returns a name that an object in it has twice; "" for none.
func nameTwice(decoder *json.Decoder) string {
	token, err := decoder.Token()
	if err != nil || token != json.Delim('{') && token != json.Delim('[') {
		return ""
	}
	seen := make(map[string]bool)
	for decoder.More() {
		if token == json.Delim('{') {
			text, _ := decoder.Token()
			name, _ := text.(string)
			if seen[name] {
				return name
			}
			seen[name] = true
		}
		if name := nameTwice(decoder); name != "" {
			return name
		}
	}
	_, _ = decoder.Token() // the end of the object or the array
	return ""
}
