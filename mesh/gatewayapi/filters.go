package gatewayapi

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// The defaults that the schema of the Gateway API has for fields that are not set.
const (
	defaultRedirect = 302
	defaultMaxAge   = 5
)

func wrapBool(b bool) *wrapperspb.BoolValue { return wrapperspb.Bool(b) }

// headersOf returns changes of headers, and makes them if there are none yet.
func headersOf(h **networking.Headers) *networking.Headers {
	if *h == nil {
		*h = &networking.Headers{}
	}
	return *h
}

// headerOperations returns changes of headers. Of two with the same name the first counts, and one that is removed twice is removed once.
func headerOperations(f *gatewayv1.HTTPHeaderFilter) *networking.Headers_HeaderOperations {
	byName := func(list []gatewayv1.HTTPHeader) map[string]string {
		if len(list) == 0 {
			return nil
		}
		out := make(map[string]string, len(list))
		for _, h := range list {
			if name := strings.ToLower(string(h.Name)); out[name] == "" {
				out[name] = headerValue(h.Value)
			}
		}
		return out
	}
	var remove []string
	for _, name := range f.Remove {
		if !slices.ContainsFunc(remove, func(other string) bool { return strings.EqualFold(name, other) }) {
			remove = append(remove, name)
		}
	}
	return &networking.Headers_HeaderOperations{Set: byName(f.Set), Add: byName(f.Add), Remove: remove}
}

// headerValue returns a value as Envoy's formats have it. Those are no part of the Gateway API, but known from Istio: a text that is none is
// taken as it is.
func headerValue(text string) string {
	if config.IsFormat(text) {
		return text
	}
	return strings.ReplaceAll(text, "%", "%%")
}

// redirect returns a redirect. Without a port it is that of the scheme, if there is one, or else that of the listener.
func redirect(f *gatewayv1.HTTPRequestRedirectFilter) *networking.HTTPRedirect {
	out := &networking.HTTPRedirect{
		RedirectCode: uint32(or(f.StatusCode, defaultRedirect)), //nolint:gosec // it is validated
		Authority:    string(or(f.Hostname, "")), Scheme: or(f.Scheme, ""),
	}
	switch {
	case f.Port != nil:
		out.RedirectPort = &networking.HTTPRedirect_Port{Port: uint32(*f.Port)} //nolint:gosec // ports are validated
	case f.Scheme != nil:
		out.RedirectPort = &networking.HTTPRedirect_DerivePort{DerivePort: networking.HTTPRedirect_FROM_PROTOCOL_DEFAULT}
	default:
		out.RedirectPort = &networking.HTTPRedirect_DerivePort{DerivePort: networking.HTTPRedirect_FROM_REQUEST_PORT}
	}
	if f.Path != nil {
		out.Uri = or(f.Path.ReplaceFullPath, "")
		if f.Path.ReplacePrefixMatch != nil {
			out.PrefixRewrite = cmp.Or(strings.TrimSuffix(*f.Path.ReplacePrefixMatch, "/"), "/")
		}
	}
	return out
}

// rewrite returns a rewrite; nil if it changes nothing. To replace a prefix by "/" means to remove it.
func rewrite(f *gatewayv1.HTTPURLRewriteFilter) *networking.HTTPRewrite {
	out := &networking.HTTPRewrite{Authority: string(or(f.Hostname, ""))}
	if f.Path != nil {
		switch {
		case f.Path.ReplacePrefixMatch != nil:
			if out.Uri = strings.TrimSuffix(*f.Path.ReplacePrefixMatch, "/"); out.Uri == "" {
				out.Uri = "/"
			}
		case f.Path.ReplaceFullPath != nil:
			out.UriRegexRewrite = &networking.RegexRewrite{Match: "/.*", Rewrite: strings.ReplaceAll(*f.Path.ReplaceFullPath, `\`, `\\`)}
		}
	}
	if out.Uri == "" && out.UriRegexRewrite == nil && out.Authority == "" {
		return nil
	}
	return out
}

// mirrorShare returns the share of requests that is mirrored; nil for all.
func mirrorShare(f *gatewayv1.HTTPRequestMirrorFilter) *networking.Percent {
	switch {
	case f.Fraction != nil:
		return &networking.Percent{Value: 100 * float64(f.Fraction.Numerator) / float64(or(f.Fraction.Denominator, 100))}
	case f.Percent != nil:
		return &networking.Percent{Value: float64(*f.Percent)}
	}
	return nil
}

// anyOrigin matches every origin that is one.
const anyOrigin = `^[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s?#]+$`

// cors returns a policy of CORS. In an origin "*" stands for any text.
func cors(f *gatewayv1.HTTPCORSFilter) *networking.CorsPolicy {
	out := &networking.CorsPolicy{UnmatchedPreflights: networking.CorsPolicy_IGNORE, MaxAge: durationpb.New(defaultMaxAge * time.Second)}
	for _, origin := range f.AllowOrigins {
		text := string(origin)
		switch before, _ := strings.CutSuffix(text, "*"); {
		case text == "*":
			out.AllowOrigins = append(out.AllowOrigins, regex(anyOrigin))
		case !strings.Contains(text, "*"):
			out.AllowOrigins = append(out.AllowOrigins, exact(text))
		case !strings.Contains(before, "*"):
			out.AllowOrigins = append(out.AllowOrigins, prefix(before))
		default:
			out.AllowOrigins = append(out.AllowOrigins, regex("^"+strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, ".*")+"$"))
		}
	}
	if or(f.AllowCredentials, false) {
		out.AllowCredentials = wrapBool(true)
	}
	for _, method := range f.AllowMethods {
		out.AllowMethods = append(out.AllowMethods, string(method))
	}
	for _, name := range f.AllowHeaders {
		out.AllowHeaders = append(out.AllowHeaders, string(name))
	}
	for _, name := range f.ExposeHeaders {
		out.ExposeHeaders = append(out.ExposeHeaders, string(name))
	}
	if f.MaxAge > 0 {
		out.MaxAge = durationpb.New(time.Duration(f.MaxAge) * time.Second)
	}
	return out
}
