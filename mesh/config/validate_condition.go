package config

import (
	"strings"

	security "istio.io/api/security/v1beta1"
)

// Attributes of requests and connections, by which conditions of an AuthorizationPolicy are named.
const (
	AttributeHeader         = "request.headers" // request.headers[NAME]
	AttributeSourceIP       = "source.ip"
	AttributeRemoteIP       = "remote.ip"
	AttributeNamespace      = "source.namespace"
	AttributeServiceAccount = "source.serviceAccount"
	AttributePrincipal      = "source.principal"
	AttributeTrustDomain    = "source.trustDomain"
	AttributeAuthPrincipal  = "request.auth.principal"
	AttributeAudiences      = "request.auth.audiences"
	AttributePresenter      = "request.auth.presenter"
	AttributeClaims         = claimsAttribute // request.auth.claims[NAME]…
	AttributeDestinationIP  = "destination.ip"
	AttributePort           = "destination.port"
	AttributeSNI            = "connection.sni"
	// AttributeMetadata begins the name of dynamic metadata of Envoy: experimental.envoy.filters.FILTER[KEY].
	AttributeMetadata = "experimental.envoy.filters."
)

// attributes are those with a fixed name: how their values are checked, and whether they say who the client is.
var attributes = map[string]struct {
	check    func(*checker, *path, []string)
	identity bool
}{
	AttributeSourceIP: {(*checker).ipBlocks, false}, AttributeRemoteIP: {(*checker).ipBlocks, false},
	AttributeDestinationIP: {(*checker).ipBlocks, false}, AttributePort: {(*checker).portTexts, false}, AttributeSNI: {(*checker).literalStars, false},
	AttributeNamespace: {(*checker).patternLengths, true}, AttributePrincipal: {(*checker).principals, true},
	AttributeServiceAccount: {(*checker).serviceAccounts, true}, AttributeTrustDomain: {(*checker).trustDomains, true},
	AttributeAuthPrincipal: {(*checker).literalStars, true}, AttributeAudiences: {(*checker).literalStars, true}, AttributePresenter: {(*checker).literalStars, true},
}

// formerAttributes are no more, for the reasons given.
var formerAttributes = map[string]string{
	"destination.namespace": "use metadata.namespace",
	"destination.name":      "use the selector",
	"destination.user":      "use the selector",
}

// condition checks a condition.
func (k *checker) condition(at *path, c *security.Condition, custom bool) {
	key := c.GetKey()
	attribute, fixed := attributes[key]
	prefix := ""
	for _, p := range []string{AttributeHeader, AttributeClaims, AttributeMetadata} {
		if strings.HasPrefix(key, p) {
			prefix = p
		}
	}
	values := func(check func(*checker, *path, []string)) {
		check(k, at.field("values"), c.GetValues())
		check(k, at.field("notValues"), c.GetNotValues())
	}
	values((*checker).noneEmpty)
	switch {
	case key == "":
		k.errorf(at.field("key"), "it is missing")
	case len(c.GetValues())+len(c.GetNotValues()) == 0:
		k.errorf(at.field("values"), "one of values and notValues must be set")
	case fixed:
		values(attribute.check)
	case prefix != "":
		if name := key[strings.IndexByte(key+"[", '['):]; len(name) < 3 || !strings.HasSuffix(name, "]") {
			k.errorf(at.field("key"), "%.100q: want a name in brackets, as in %s[NAME]", key, prefix)
		} else {
			k.attributeName(at.field("key"), key, prefix, name)
			values((*checker).literalStars)
		}
	case formerAttributes[key] != "":
		k.errorf(at.field("key"), "%q is no attribute any more: %s", key, formerAttributes[key])
	case strings.HasPrefix(key, "destination.labels"):
		k.errorf(at.field("key"), "%.100q is no attribute any more: use the selector", key)
	default:
		k.errorf(at.field("key"), "%.100q is no attribute of a request or a connection", key)
	}
	if custom && (attribute.identity || prefix == AttributeClaims) {
		k.errorf(at.field("key"), "%.100q is not supported with the action CUSTOM: who the client is, is not known when the provider is asked", key)
	}
}

// principals checks values of which Envoy gets regular expressions, and in which a "*" at an end is a wildcard.
func (k *checker) principals(at *path, values []string) {
	k.patternLengths(at, values)
	k.literalStars(at, values)
}

// IsHeaderForEnvoy reports whether Envoy takes a text for the name of a header that it compares.
func IsHeaderForEnvoy(name string) bool { return name != "" && !strings.ContainsAny(name, "\x00\r\n") }

// attributeName checks an attribute with a name in brackets. What Istio takes, and nothing has, gets a warning.
func (k *checker) attributeName(at *path, key, prefix, brackets string) {
	name := brackets[1 : len(brackets)-1]
	const nothing = "%.100q: %s: values match nothing, and notValues everything"
	if prefix != AttributeMetadata && key[len(prefix)] != '[' {
		k.warnf(MatchesNothing, at, nothing, key, "there is no such attribute: write "+prefix+"[NAME]")
		return
	}
	switch prefix {
	case AttributeHeader:
		if !IsHeaderForEnvoy(name) {
			k.errorf(at, "%.100q is no name of a header: Envoy rejects the listener", name)
		} else if headerNameProblem(strings.TrimPrefix(name, ":")) != "" {
			k.warnf(MatchesNothing, at, nothing, key, "no header has such a name")
		}
	case AttributeClaims:
		switch path := ClaimPath(brackets); {
		case path == nil:
			k.warnf(MatchesNothing, at, nothing, key, "a name of a claim is empty")
		case len(path) == 1 && strings.ContainsAny(name, "[]"):
			k.warnf(ComparedAsWritten, at, "%.100q is about the one claim %q: claims in claims are written [NAME][NAME]", key, name)
		}
	case AttributeMetadata:
		if filter, _, _ := strings.Cut(key[len(prefix):], "["); filter == "" || strings.HasSuffix(filter, ".") {
			k.warnf(MatchesNothing, at, nothing, key, "no filter has such a name")
		}
	}
}
