package generate

import (
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/gatewayapi"
)

//lint:file-ignore SA1019 the older match of names matches all types of names

// asGatewayAPI gives a route that forwards requests what routes of the Gateway API have of their own: a request whose
// destination does not exist gets 500, and a prefix that is replaced by "/" leaves no empty segment.
func asGatewayAPI(out *routev3.Route, in *networking.HTTPRoute) {
	action := out.GetRoute()
	action.ClusterNotFoundResponseCode = routev3.RouteAction_INTERNAL_SERVER_ERROR
	if in.GetRewrite().GetUri() == "/" {
		action.PrefixRewrite = ""
		action.RegexRewrite = withoutPrefix(out.GetMatch().GetPathSeparatedPrefix())
	}
}

// withoutPrefix takes a prefix of whole segments from a path.
func withoutPrefix(prefix string) *matcherv3.RegexMatchAndSubstitute {
	return &matcherv3.RegexMatchAndSubstitute{Pattern: regex("^" + regexp.QuoteMeta(prefix) + "(/?)(.*)"), Substitution: `/\2`}
}

// isPolicyRoots reports whether a credential is one of a BackendTLSPolicy.
func isPolicyRoots(name string) bool {
	return strings.HasPrefix(name, gatewayapi.ConfigMapPrefix) || name == gatewayapi.NoRoots
}

// noCertificate is the hash of no certificate.
const noCertificate = "0000000000000000000000000000000000000000000000000000000000000000"

// policyRoots returns how a server is verified by the certificates that a BackendTLSPolicy names. They are part of the
// cluster: they are public, and not every proxy gets Secrets. If there are none, no server is accepted. It returns nil for
// other credentials.
func (g *Generator) policyRoots(name string, names []string) *tlsv3.CommonTlsContext_ValidationContext {
	context := &tlsv3.CertificateValidationContext{}
	for _, n := range names {
		context.MatchSubjectAltNames = append(context.MatchSubjectAltNames, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: n},
		})
	}
	switch roots := g.snap.Roots(name); {
	case roots != "":
		context.TrustedCa = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(roots)}}
	case name == gatewayapi.NoRoots:
		context.VerifyCertificateHash = []string{noCertificate}
		context.MatchSubjectAltNames = nil
	default:
		return nil
	}
	return &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: context}
}
