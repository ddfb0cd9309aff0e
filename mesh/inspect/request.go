package inspect

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/holdfast-xds/holdfast/internal/routing"
)

// requestTo returns the request as the filters and the routes of an HTTP connection manager see it. answer is what the
// manager answers itself; "" if it does not.
func (x *explainer) requestTo(m *managerv3.HttpConnectionManager, tls bool) (r routing.Request, answer string) {
	r = x.request(tls)
	r.Path, answer = pathOf(m, r.Path)
	return r, answer
}

// request returns the request as the router sees it. A client leaves the port out if it is that of the scheme; a header
// Host says what it sends instead.
func (x *explainer) request(tls bool) routing.Request {
	r := routing.Request{Scheme: "http", Method: x.Method, Host: x.Host, Path: x.Path}
	port := uint32(80)
	if tls {
		r.Scheme, port = "https", 443
	}
	if x.Port != port {
		r.Host = net.JoinHostPort(x.Host, strconv.FormatUint(uint64(x.Port), 10))
	}
	for _, name := range slices.Sorted(maps.Keys(x.Headers)) {
		if strings.EqualFold(name, "host") {
			r.Host = x.Headers[name]
			continue
		}
		r.Headers = append(r.Headers, routing.Header{Name: name, Value: x.Headers[name]})
	}
	return r
}
