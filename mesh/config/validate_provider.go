package config

import (
	"net/url"
	"strconv"
	"strings"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

//lint:file-ignore SA1019 documents still have the older field

// providers checks the extension providers of a mesh configuration.
func (k *checker) providers(at *path, providers []*meshv1alpha1.MeshConfig_ExtensionProvider) {
	names := make(map[string]bool)
	for i, p := range providers {
		at := at.at(i)
		switch name := p.GetName(); {
		case name == "":
			k.errorf(at.field("name"), "it is missing")
		case names[name]:
			k.errorf(at.field("name"), "%q is the name of two providers", name)
		}
		names[p.GetName()] = true
		if p.GetProvider() == nil {
			k.errorf(at, "it does not say what is provided")
		}
		k.telemetryProvider(at, p)
		if a := p.GetEnvoyExtAuthzHttp(); a != nil {
			k.httpAuthorizer(at.field("envoyExtAuthzHttp"), a)
		}
		if a := p.GetEnvoyExtAuthzGrpc(); a != nil {
			at := at.field("envoyExtAuthzGrpc")
			k.providerService(at, a.GetService(), a.GetPort())
			k.duration(at.field("timeout"), a.GetTimeout())
			k.statusOnError(at.field("statusOnError"), a.GetStatusOnError())
			k.requestBody(at.field("includeRequestBodyInCheck"), a.GetIncludeRequestBodyInCheck())
		}
	}
}

// requestBody checks how much of a request's body a provider gets; nil is nothing.
func (k *checker) requestBody(at *path, b *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody) {
	if b != nil && b.GetMaxRequestBytes() == 0 {
		k.errorf(at.field("maxRequestBytes"), "must be at least 1")
	}
}

// providerService checks the service of a provider: HOST or NAMESPACE/HOST.
func (k *checker) providerService(at *path, service string, port uint32) {
	namespace, host, both := strings.Cut(service, "/")
	if !both {
		host = service
	}
	switch {
	case service == "":
		k.errorf(at.field("service"), "it is missing")
	case both && !isDNSLabel(namespace):
		k.errorf(at.field("service"), "%.200q: want HOST or NAMESPACE/HOST", service)
	default:
		k.report(at.field("service"), host, hostProblem(host))
	}
	k.port(at.field("port"), int64(port))
}

func (k *checker) statusOnError(at *path, text string) {
	if text == "" {
		return
	}
	code, err := strconv.ParseInt(text, 10, 32)
	if _, known := typev3.StatusCode_name[int32(code)]; err != nil || !known || code == 0 {
		k.errorf(at, "%.40q is no status of HTTP that Envoy knows", text)
	}
}

// httpAuthorizer checks a provider that decides about requests over HTTP.
func (k *checker) httpAuthorizer(at *path, a *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider) {
	k.providerService(at, a.GetService(), a.GetPort())
	k.duration(at.field("timeout"), a.GetTimeout())
	k.statusOnError(at.field("statusOnError"), a.GetStatusOnError())
	k.requestBody(at.field("includeRequestBodyInCheck"), a.GetIncludeRequestBodyInCheck())
	if prefix := a.GetPathPrefix(); prefix != "" {
		if _, err := url.Parse(prefix); err != nil || prefix[0] != '/' {
			k.errorf(at.field("pathPrefix"), "%.200q is no path: it must begin with a slash", prefix)
		}
	}
	for _, list := range []valueList{
		{field: "includeHeadersInCheck", values: a.GetIncludeHeadersInCheck()},
		{field: "includeRequestHeadersInCheck", values: a.GetIncludeRequestHeadersInCheck()},
		{field: "headersToUpstreamOnAllow", values: a.GetHeadersToUpstreamOnAllow()},
		{field: "headersToDownstreamOnDeny", values: a.GetHeadersToDownstreamOnDeny()},
		{field: "headersToDownstreamOnAllow", values: a.GetHeadersToDownstreamOnAllow()},
	} {
		for i, value := range list.values {
			if value == "" || value == "*" {
				k.errorf(at.field(list.field).at(i), "must be a header, or one with a wildcard at the beginning or at the end, and is %q", value)
			}
		}
		k.wildcards(at.field(list.field), list.values)
	}
	for _, name := range sortedKeys(a.GetIncludeAdditionalHeadersInCheck()) {
		k.report(at.field("includeAdditionalHeadersInCheck").field(name), name, headerNameProblem(name))
	}
}
