package inspect

import (
	"net/http"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// missing is the fault of a cluster that the proxy does not have.
const missing = "does not exist"

// statusOf returns the status of a request whose cluster has a fault. A route says what it is for one that is missing.
func statusOf(a *routev3.RouteAction, fault string) int {
	if fault != missing {
		return http.StatusServiceUnavailable
	}
	switch a.GetClusterNotFoundResponseCode() {
	case routev3.RouteAction_INTERNAL_SERVER_ERROR:
		return http.StatusInternalServerError
	case routev3.RouteAction_NOT_FOUND:
		return http.StatusNotFound
	}
	return http.StatusServiceUnavailable
}
