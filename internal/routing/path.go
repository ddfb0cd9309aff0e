package routing

import (
	"fmt"
	"regexp"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	templatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
)

// matchesPath compares the path. It returns the condition under which it matches, or why it does not.
func (r *request) matchesPath(m *routev3.RouteMatch) (condition, reason string) {
	sensitive := m.GetCaseSensitive() == nil || m.GetCaseSensitive().GetValue()
	if _, connect := m.GetPathSpecifier().(*routev3.RouteMatch_ConnectMatcher_); connect != (r.method == "CONNECT") {
		if connect {
			return "", "it takes CONNECT requests only"
		}
		return "", "it takes no CONNECT requests"
	}
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		if !fold(sensitive, strings.HasPrefix, r.path, p.Prefix) {
			return "", fmt.Sprintf("the path %q does not begin with %q", r.path, p.Prefix)
		}
	case *routev3.RouteMatch_Path:
		if !fold(sensitive, equal, r.path, p.Path) {
			return "", fmt.Sprintf("the path %q is not %q", r.path, p.Path)
		}
	case *routev3.RouteMatch_PathSeparatedPrefix:
		n := len(p.PathSeparatedPrefix)
		if !fold(sensitive, strings.HasPrefix, r.path, p.PathSeparatedPrefix) || len(r.path) > n && r.path[n] != '/' {
			return "", fmt.Sprintf("the path %q is not %q, nor is it below that", r.path, p.PathSeparatedPrefix)
		}
	case *routev3.RouteMatch_SafeRegex:
		if !matchesWhole(p.SafeRegex.GetRegex(), r.path) {
			return "", fmt.Sprintf("the path %q does not match the regular expression %q", r.path, p.SafeRegex.GetRegex())
		}
	case *routev3.RouteMatch_PathMatchPolicy:
		template := &templatev3.UriTemplateMatchConfig{}
		if p.PathMatchPolicy.GetTypedConfig().UnmarshalTo(template) != nil {
			return "the extension " + p.PathMatchPolicy.GetName() + " takes the path", ""
		}
		if !matchesWhole(templateExpression(template.GetPathTemplate()), r.bare) {
			return "", fmt.Sprintf("the path %q does not match the template %q", r.bare, template.GetPathTemplate())
		}
	}
	return "", ""
}

// The characters of a segment of a path that a URI template takes: those of RFC 3986.
const segmentCharacters = `a-zA-Z0-9\-._~%!$&'()*+,;=:@`

// templateExpression returns the regular expression of a URI template: "*" and a variable are a segment, "**" is any
// number of segments, and a variable may have a template of its own ("{name=a/*}").
func templateExpression(template string) string {
	var out strings.Builder
	for template != "" {
		switch {
		case strings.HasPrefix(template, "**"):
			out.WriteString("[" + segmentCharacters + "/]*")
			template = template[2:]
		case template[0] == '*':
			out.WriteString("[" + segmentCharacters + "]+")
			template = template[1:]
		case template[0] == '{':
			variable, rest, _ := strings.Cut(template[1:], "}")
			_, inner, hasInner := strings.Cut(variable, "=")
			if !hasInner {
				inner = "*"
			}
			out.WriteString(templateExpression(inner))
			template = rest
		default:
			out.WriteString(regexp.QuoteMeta(template[:1]))
			template = template[1:]
		}
	}
	return out.String()
}
