package gatewayapi

import (
	"cmp"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

func exact(text string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: text}}
}

func prefix(text string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: text}}
}

func regex(text string) *networking.StringMatch {
	return &networking.StringMatch{MatchType: &networking.StringMatch_Regex{Regex: text}}
}

// valueMatch returns a match of a header or of a query parameter.
func valueMatch(kind, value string) *networking.StringMatch {
	if kind == string(gatewayv1.HeaderMatchRegularExpression) {
		return regex(value)
	}
	return exact(value)
}

// httpMatch returns a match of an HTTPRoute. The prefix of a path is one of whole segments.
func httpMatch(m *gatewayv1.HTTPRouteMatch) *networking.HTTPMatchRequest {
	out := &networking.HTTPMatchRequest{}
	kind, path := gatewayv1.PathMatchPathPrefix, "/"
	if m.Path != nil {
		kind, path = or(m.Path.Type, kind), or(m.Path.Value, path)
	}
	switch kind {
	case gatewayv1.PathMatchExact:
		out.Uri = exact(path)
	case gatewayv1.PathMatchRegularExpression:
		out.Uri = regex(path)
	default:
		out.Uri = prefix(cmp.Or(strings.TrimSuffix(path, "/"), "/"))
	}
	for _, h := range m.Headers {
		if out.Headers == nil {
			out.Headers = make(map[string]*networking.StringMatch)
		}
		if name := strings.ToLower(string(h.Name)); out.Headers[name] == nil { // of equivalent names the first counts
			out.Headers[name] = valueMatch(string(or(h.Type, "")), h.Value)
		}
	}
	for _, q := range m.QueryParams {
		if out.QueryParams == nil {
			out.QueryParams = make(map[string]*networking.StringMatch)
		}
		out.QueryParams[string(q.Name)] = valueMatch(string(or(q.Type, "")), q.Value)
	}
	if m.Method != nil {
		out.Method = exact(string(*m.Method))
	}
	return out
}

// grpcMatch returns a match of a GRPCRoute: the path of a request of gRPC is /SERVICE/METHOD.
func grpcMatch(m *gatewayv1.GRPCRouteMatch) *networking.HTTPMatchRequest {
	out := &networking.HTTPMatchRequest{}
	for _, h := range m.Headers {
		if out.Headers == nil {
			out.Headers = make(map[string]*networking.StringMatch)
		}
		if name := strings.ToLower(string(h.Name)); out.Headers[name] == nil { // of equivalent names the first counts
			out.Headers[name] = valueMatch(string(or(h.Type, "")), h.Value)
		}
	}
	if m.Method == nil {
		return out
	}
	service, method := or(m.Method.Service, ""), or(m.Method.Method, "")
	expression := or(m.Method.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression
	switch {
	case service == "":
		out.Uri = regex("/[^/]+/" + method)
	case method == "" && expression:
		out.Uri = regex("/" + service + "/.+")
	case method == "":
		out.Uri = prefix("/" + service + "/")
	case expression:
		out.Uri = regex("/" + service + "/" + method)
	default:
		out.Uri = exact("/" + service + "/" + method)
	}
	return out
}

// compareRoutes orders routes as the Gateway API does, the first that matches takes the request: exact paths, then the longest
// prefix, then those that match the method, then by the number of headers and of query parameters, then by age and name.
// Regular expressions come last, as in Istio.
func compareRoutes(a, b *networking.HTTPRoute, of, with config.Key, ages map[config.Key]config.Age) int {
	m, n := matchOf(a), matchOf(b)
	return cmp.Or(
		cmp.Compare(pathRank(n), pathRank(m)), cmp.Compare(pathLength(n), pathLength(m)),
		cmp.Compare(present(n.GetMethod()), present(m.GetMethod())),
		cmp.Compare(len(n.GetHeaders()), len(m.GetHeaders())), cmp.Compare(len(n.GetQueryParams()), len(m.GetQueryParams())),
		ages[of].Compare(ages[with]), cmp.Compare(of.Namespace, with.Namespace), cmp.Compare(of.Name, with.Name),
	)
}

// matchOf returns the only match of a route; nil for none.
func matchOf(r *networking.HTTPRoute) *networking.HTTPMatchRequest {
	if len(r.GetMatch()) == 0 {
		return nil
	}
	return r.GetMatch()[0]
}

func present(m *networking.StringMatch) int {
	if m == nil {
		return 0
	}
	return 1
}

// pathRank orders matches by the type of their path; -1 is for one without a match at all.
func pathRank(m *networking.HTTPMatchRequest) int {
	if m == nil {
		return -1
	}
	switch m.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return 3
	case *networking.StringMatch_Prefix:
		return 2
	case *networking.StringMatch_Regex:
		return 1
	}
	return 0
}

func pathLength(m *networking.HTTPMatchRequest) int {
	u := m.GetUri()
	return len(u.GetExact()) + len(u.GetPrefix()) + len(u.GetRegex())
}
