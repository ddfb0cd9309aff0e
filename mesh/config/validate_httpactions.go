package config

import (
	"net/http"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// status checks a status of HTTP responses.
func (k *checker) status(at *path, status int64) {
	if status < 200 || status > 599 {
		k.errorf(at, "must be an HTTP status from 200 to 599, and is %d", status)
	}
}

// The sizes in bytes of a direct response above which there is an error, and a warning.
const (
	maxBody   = 1 << 20
	largeBody = 100 << 10
)

// directResponse checks the response that proxies give themselves.
func (k *checker) directResponse(at *path, response *networking.HTTPDirectResponse) {
	if response == nil {
		return
	}
	k.status(at.field("status"), int64(response.Status))
	size := max(len(response.Body.GetString_()), len(response.Body.GetBytes()))
	switch {
	case size > maxBody:
		k.errorf(at.field("body"), "must be at most 1 MiB, and has %d bytes", size)
	case size > largeBody:
		k.warnf(LargeBody, at.field("body"), "is sent to every proxy, and has %d bytes", size)
	}
}

// rewrite checks how a route changes requests, of which only one way may set the authority.
func (k *checker) rewrite(at *path, route *networking.HTTPRoute) {
	authorities := 0
	for _, values := range []map[string]string{route.Headers.GetRequest().GetSet(), route.Headers.GetRequest().GetAdd()} {
		for name := range values {
			if isAuthority(name) {
				authorities++
			}
		}
	}
	rewrite := route.Rewrite
	if rewrite.GetAuthority() != "" {
		authorities++
	}
	if authorities > 1 {
		k.errorf(at.field("headers"), "the authority is set more than once, by rewrite and headers")
	}
	at = at.field("rewrite")
	if rewrite == nil {
		return
	}
	regex := rewrite.UriRegexRewrite
	switch {
	case rewrite.Uri != "" && regex != nil:
		k.errorf(at.field("uriRegexRewrite"), "a rewrite can have only one of uri and uriRegexRewrite")
	case rewrite.Uri == "" && regex == nil && rewrite.Authority == "":
		k.errorf(at, "must have a uri, a uriRegexRewrite or an authority")
	}
	if regex != nil {
		k.regex(at.fields("uriRegexRewrite.match"), regex.Match)
		if regex.Rewrite == "" {
			k.errorf(at.fields("uriRegexRewrite.rewrite"), "must not be empty")
		}
		if strings.ContainsAny(regex.Rewrite, "\x00\r\n") {
			k.errorf(at.fields("uriRegexRewrite.rewrite"), "must not have line breaks and zeros")
		}
	}
}

// corsMethods are the methods that a CORS policy can allow.
var corsMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodConnect, http.MethodOptions, http.MethodTrace, "*"}

// corsPolicy checks a CORS policy.
func (k *checker) corsPolicy(at *path, policy *networking.CorsPolicy) {
	if policy == nil {
		return
	}
	for i, origin := range policy.AllowOrigins {
		at := at.field("allowOrigins").at(i)
		if origin.GetMatchType() == nil || origin.GetExact() == "" && origin.GetPrefix() == "" && origin.GetRegex() == "" {
			k.errorf(at, "must have an exact, prefix or regex that is not empty")
			continue
		}
		k.stringMatch(at, origin)
	}
	for i, method := range policy.AllowMethods {
		if !slices.Contains(corsMethods, method) {
			k.errorf(at.field("allowMethods").at(i), "%q is no HTTP method", method)
		}
	}
	for _, names := range []struct {
		field string
		of    []string
	}{{"allowHeaders", policy.AllowHeaders}, {"exposeHeaders", policy.ExposeHeaders}} {
		for i, name := range names.of {
			if name != "*" {
				k.report(at.field(names.field).at(i), name, headerNameProblem(name))
			}
		}
	}
	k.duration(at.field("maxAge"), policy.MaxAge)
	if policy.MaxAge.GetNanos() != 0 {
		k.errorf(at.field("maxAge"), "must be in whole seconds")
	}
}

// grpcStatus has the names of the statuses of gRPC.
var grpcStatus = []string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL",
	"UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

// fault checks the faults that are injected into requests.
func (k *checker) fault(at *path, fault *networking.HTTPFaultInjection) {
	if fault == nil {
		return
	}
	if fault.Abort == nil && fault.Delay == nil {
		k.errorf(at, "must have an abort or a delay")
	}
	k.abort(at.field("abort"), fault.Abort)
	delay, at := fault.Delay, at.field("delay")
	if delay == nil {
		return
	}
	if delay.Percentage != nil {
		k.finePercent(at.fields("percentage.value"), delay.Percentage.Value)
	}
	switch d := delay.HttpDelayType.(type) {
	case *networking.HTTPFaultInjection_Delay_FixedDelay:
		k.duration(at.field("fixedDelay"), d.FixedDelay)
	case *networking.HTTPFaultInjection_Delay_ExponentialDelay:
		k.errorf(at.field("exponentialDelay"), "is not supported by Envoy: write fixedDelay")
	default:
		k.warnf(NoEffect, at, "has no effect without a fixedDelay")
	}
}

// abort checks the abort of requests.
func (k *checker) abort(at *path, abort *networking.HTTPFaultInjection_Abort) {
	if abort == nil {
		return
	}
	if abort.Percentage != nil {
		k.finePercent(at.fields("percentage.value"), abort.Percentage.Value)
	}
	switch e := abort.ErrorType.(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		k.status(at.field("httpStatus"), int64(e.HttpStatus))
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		if !slices.Contains(grpcStatus, e.GrpcStatus) {
			k.errorf(at.field("grpcStatus"), "%q is no status of gRPC, such as NOT_FOUND", e.GrpcStatus)
		}
	case *networking.HTTPFaultInjection_Abort_Http2Error:
		k.errorf(at.field("http2Error"), "is not supported by Envoy: write httpStatus or grpcStatus")
	default:
		k.warnf(NoEffect, at, "has no effect without an httpStatus or a grpcStatus")
	}
}
