// Package routing says which route of a route configuration takes a request, by the rules of Envoy's router.
//
// It promises the answer of Envoy 1.40 for what a route configuration and a request say. What depends on more
// is named in the result and not decided: the connection (TLS), the metadata and the state that filters set,
// trees of matchers, and extensions other than URI templates. A runtime fraction has its default value.
//
// All functions are pure and may be called concurrently.
package routing

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// Request is a request as Envoy's router sees it.
type Request struct {
	Scheme string // "http" if empty
	Method string // "GET" if empty
	Host   string // the value of the Host header or :authority, with a port if it has one
	Path   string // with the query; "/" if empty
	// Headers are the other headers. Names are compared without case; values of the same name are in order.
	Headers []Header
}

// Header is a header of a request.
type Header struct{ Name, Value string }

// Result is what happens to a request.
type Result struct {
	// VirtualHost is nil if none has the host: the answer is 404. Domain is the one of its domains by which it
	// was chosen.
	VirtualHost *routev3.VirtualHost
	Domain      string
	// RedirectsToTLS is set if the virtual host answers with a redirect to https before it looks at its routes.
	RedirectsToTLS bool
	// Undecided says why the routes cannot be told; "" if they can.
	Undecided string
	// Candidates are the routes that may take the request, in order. Their shares add up to at most 1; the rest
	// is answered with 404.
	Candidates []Candidate
	// Passed are the routes before the last candidate, or all, that do not take the request.
	Passed []Passed
}

// Candidate is a route that takes a share of the requests like this one.
type Candidate struct {
	Index int // in the virtual host, from 0
	Route *routev3.Route
	// Share is more than 0 and at most 1: less than 1 if a runtime fraction of this route or of one before it takes
	// some of the requests.
	Share float64
	// If has conditions that a request does not tell, in words: the route takes the request if they hold, and a
	// candidate after it does if not.
	If []string
}

// Passed is a route that does not take a request.
type Passed struct {
	Index  int
	Route  *routev3.Route
	Reason string
}

// Find returns what Envoy does with a request to a route configuration.
func Find(config *routev3.RouteConfiguration, request Request) Result {
	r := newRequest(request, config.GetIgnorePathParametersInPathMatching())
	vh, domain := virtualHost(config, r)
	result := Result{VirtualHost: vh, Domain: domain}
	switch {
	case vh == nil:
		return result
	case vh.GetRequireTls() != routev3.VirtualHost_NONE && r.scheme != "https":
		result.RedirectsToTLS = true
		return result
	case vh.GetMatcher() != nil:
		result.Undecided = "the virtual host chooses by a tree of matchers"
		return result
	}
	rest := newShares(vh.GetRoutes())
	for i, route := range vh.GetRoutes() {
		if rest.left == 0 {
			break
		}
		conditions, reason := r.matches(route.GetMatch())
		share := 0.0
		if reason == "" {
			if share = rest.take(route.GetMatch().GetRuntimeFraction(), len(conditions) == 0); share == 0 {
				reason = "its runtime fraction takes none of the requests, or only those that routes before it take"
			}
		}
		if reason != "" {
			result.Passed = append(result.Passed, Passed{i, route, reason})
			continue
		}
		result.Candidates = append(result.Candidates, Candidate{i, route, share, conditions})
	}
	return result
}

// virtualHost returns the virtual host of a host and its domain: the one with exactly this domain, or else with
// the longest suffix, or else with the longest prefix, or else "*". A wildcard stands for one character or more.
func virtualHost(config *routev3.RouteConfiguration, r *request) (found *routev3.VirtualHost, domain string) {
	if hosts := config.GetVirtualHosts(); len(hosts) == 1 && slices.Equal(hosts[0].GetDomains(), []string{"*"}) {
		return hosts[0], "*" // whatever the request says
	}
	host := r.host
	if name := config.GetVhostHeader(); name != "" {
		values := r.headers[strings.ToLower(name)]
		if len(values) == 0 {
			return nil, ""
		}
		host = values[0]
	}
	if config.GetIgnorePortInHostMatching() {
		host = WithoutPort(host)
	}
	const exact, suffix, prefix, any = 4, 3, 2, 1
	host = strings.ToLower(host)
	bestKind, bestLength := 0, 0
	for _, vh := range config.GetVirtualHosts() {
		for _, d := range vh.GetDomains() {
			kind, lower := 0, strings.ToLower(d)
			switch {
			case d == "*":
				kind = any
			case strings.HasPrefix(d, "*"):
				if len(d) <= len(host) && strings.HasSuffix(host, lower[1:]) {
					kind = suffix
				}
			case strings.HasSuffix(d, "*"):
				if len(d) <= len(host) && strings.HasPrefix(host, lower[:len(d)-1]) {
					kind = prefix
				}
			case lower == host:
				kind = exact
			}
			if kind > 0 && cmp.Or(cmp.Compare(kind, bestKind), cmp.Compare(len(d), bestLength)) > 0 {
				found, domain, bestKind, bestLength = vh, d, kind, len(d)
			}
		}
	}
	return found, domain
}

// WithoutPort returns a host without its port, if it has one. An IPv6 address is in brackets.
func WithoutPort(host string) string {
	if at := strings.LastIndexByte(host, ':'); at > strings.LastIndexByte(host, ']') {
		return host[:at]
	}
	return host
}

// request is a request in the form in which it is compared.
type request struct {
	scheme, method, host string
	full                 string // the path with its query
	bare                 string // without it
	path                 string // without parameters, too, if they are ignored
	query                string
	headers              map[string][]string // by the name in lower case
}

// pathParameters are the parameters of the segments of a path.
var pathParameters = regexp.MustCompile(";[^/]*")

func newRequest(in Request, ignoreParameters bool) *request {
	r := &request{
		scheme: cmp.Or(in.Scheme, "http"), method: cmp.Or(in.Method, "GET"), host: in.Host, full: cmp.Or(in.Path, "/"),
		headers: make(map[string][]string),
	}
	r.bare = r.full
	if at := strings.IndexAny(r.bare, "?#"); at >= 0 {
		r.bare = r.bare[:at]
	}
	r.path = r.bare
	_, r.query, _ = strings.Cut(r.full, "?")
	if ignoreParameters {
		r.path = pathParameters.ReplaceAllString(r.path, "")
	}
	for _, h := range in.Headers {
		name := strings.ToLower(h.Name)
		if values := r.headers[name]; joined[name] && values != nil {
			if values[0] != "" && h.Value != "" {
				values[0] += ","
			}
			values[0] += h.Value
			continue
		}
		r.headers[name] = append(r.headers[name], h.Value)
	}
	for name, value := range map[string]string{
		":scheme": r.scheme, "x-forwarded-proto": r.scheme, ":method": r.method, ":authority": r.host, "host": r.host, ":path": r.full,
	} {
		r.headers[name] = []string{value}
	}
	if r.method == "CONNECT" { // it has no path
		r.query = ""
		delete(r.headers, ":path")
	}
	return r
}

// matches says under which conditions a route takes the requests like this one, or why it does not. The runtime
// fraction is left out.
func (r *request) matches(m *routev3.RouteMatch) (conditions []string, reason string) {
	condition, reason := r.matchesPath(m)
	if condition != "" {
		conditions = append(conditions, condition)
	}
	if reason != "" {
		return nil, reason
	}
	if m.GetGrpc() != nil {
		if reason := r.isGRPC(); reason != "" {
			return nil, reason
		}
	}
	for _, h := range m.GetHeaders() {
		if reason := r.matchesHeader(h); reason != "" {
			return nil, reason
		}
	}
	for _, q := range m.GetQueryParameters() {
		if reason := r.matchesQuery(q); reason != "" {
			return nil, reason
		}
	}
	for _, c := range m.GetCookies() {
		if reason := r.matchesCookie(c); reason != "" {
			return nil, reason
		}
	}
	condition, reason = r.matchesTLS(m.GetTlsContext())
	if condition != "" {
		conditions = append(conditions, condition)
	}
	for _, d := range m.GetDynamicMetadata() {
		conditions = append(conditions, "the dynamic metadata of "+d.GetFilter()+" matches")
	}
	for _, f := range m.GetFilterState() {
		conditions = append(conditions, "the filter state "+f.GetKey()+" matches")
	}
	return conditions, reason
}

// isGRPC returns why a request is not one of gRPC, by its content type.
func (r *request) isGRPC() (reason string) {
	value := strings.Join(r.headers["content-type"], ",")
	rest, ok := strings.CutPrefix(value, "application/grpc")
	if ok && (rest == "" || rest[0] == '+') && r.method != "CONNECT" {
		return ""
	}
	return "it is not a gRPC request (the content type is not application/grpc, or the method is CONNECT)"
}

// matchesTLS compares what a request tells of its connection: without TLS there is no certificate.
func (r *request) matchesTLS(m *routev3.RouteMatch_TlsContextMatchOptions) (condition, reason string) {
	for _, c := range []struct {
		is   string
		want interface{ GetValue() bool }
		set  bool
	}{
		{"has presented a certificate", m.GetPresented(), m.GetPresented() != nil},
		{"has a certificate that was verified", m.GetValidated(), m.GetValidated() != nil},
	} {
		switch {
		case !c.set:
		case r.scheme == "https":
			condition = fmt.Sprintf("it is %v that the client %s", c.want.GetValue(), c.is)
		case c.want.GetValue():
			return "", "without TLS no client " + c.is
		}
	}
	return condition, ""
}
