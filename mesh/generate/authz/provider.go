package authz

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	tcpauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

//lint:file-ignore SA1019 documents still have the older field

// The providers that decide about requests, as the mesh configuration has them.
type (
	HTTPProvider = meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider
	GRPCProvider = meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider
	requestBody  = meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
)

// Provider is a provider that decides about requests: one of HTTP and GRPC is set.
type Provider struct {
	HTTP *HTTPProvider
	GRPC *GRPCProvider
	// Cluster is where it is reached, Host its name.
	Cluster, Host string
}

// defaultTimeout bounds how long a provider is waited for if it does not say that, as in Istio.
const defaultTimeout = 10 * time.Minute

// http returns the filter that asks the provider about a request for which the filter before has found a rule, whose
// name is in metadata.
func (p *Provider) http(filter, prefix string) *httpauthzv3.ExtAuthz {
	out := &httpauthzv3.ExtAuthz{TransportApiVersion: corev3.ApiVersion_V3, FilterEnabledMetadata: found(filter, prefix)}
	if p.GRPC != nil {
		out.Services = &httpauthzv3.ExtAuthz_GrpcService{GrpcService: p.grpcService()}
		out.FailureModeAllow, out.StatusOnError = p.GRPC.GetFailOpen(), statusOf(p.GRPC.GetStatusOnError())
		out.WithRequestBody, out.ClearRouteCache = bodyOf(p.GRPC.GetIncludeRequestBodyInCheck()), p.GRPC.GetClearRouteCache()
		return out
	}
	h := p.HTTP
	service := &httpauthzv3.HttpService{
		PathPrefix: h.GetPathPrefix(),
		ServerUri: &corev3.HttpUri{
			Uri: "http://" + p.Host, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: p.Cluster}, Timeout: timeoutOf(h.GetTimeout()),
		},
	}
	for _, name := range slices.Sorted(maps.Keys(h.GetIncludeAdditionalHeadersInCheck())) {
		if service.AuthorizationRequest == nil {
			service.AuthorizationRequest = &httpauthzv3.AuthorizationRequest{}
		}
		service.AuthorizationRequest.HeadersToAdd = append(service.AuthorizationRequest.HeadersToAdd,
			&corev3.HeaderValue{Key: name, Value: h.GetIncludeAdditionalHeadersInCheck()[name]})
	}
	if len(h.GetHeadersToUpstreamOnAllow())+len(h.GetHeadersToDownstreamOnDeny())+len(h.GetHeadersToDownstreamOnAllow()) > 0 {
		service.AuthorizationResponse = &httpauthzv3.AuthorizationResponse{
			AllowedUpstreamHeaders:        headers(h.GetHeadersToUpstreamOnAllow()),
			AllowedClientHeaders:          headers(h.GetHeadersToDownstreamOnDeny()),
			AllowedClientHeadersOnSuccess: headers(h.GetHeadersToDownstreamOnAllow()),
		}
	}
	out.Services = &httpauthzv3.ExtAuthz_HttpService{HttpService: service}
	out.FailureModeAllow, out.StatusOnError = h.GetFailOpen(), statusOf(h.GetStatusOnError())
	out.WithRequestBody, out.ClearRouteCache = bodyOf(h.GetIncludeRequestBodyInCheck()), h.GetClearRouteCache()
	out.AllowedHeaders = headers(h.GetIncludeRequestHeadersInCheck())
	if out.AllowedHeaders == nil {
		out.AllowedHeaders = headers(h.GetIncludeHeadersInCheck())
	}
	return out
}

// tcp is http for connections that are not HTTP.
func (p *Provider) tcp(filter, prefix string) *tcpauthzv3.ExtAuthz {
	return &tcpauthzv3.ExtAuthz{
		StatPrefix: tcpStats, GrpcService: p.grpcService(), FailureModeAllow: p.GRPC.GetFailOpen(),
		TransportApiVersion: corev3.ApiVersion_V3, FilterEnabledMetadata: found(filter, prefix),
	}
}

func (p *Provider) grpcService() *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: p.Cluster, Authority: p.Host}},
		Timeout:         timeoutOf(p.GRPC.GetTimeout()),
	}
}

// found matches the metadata of a filter that has found a rule.
func found(filter, prefix string) *matcherv3.MetadataMatcher {
	return metadataMatch(filter, []string{prefix + "shadow_effective_policy_id"}, &matcherv3.ValueMatcher{
		MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true},
	})
}

func timeoutOf(d *durationpb.Duration) *durationpb.Duration {
	if d == nil {
		return durationpb.New(defaultTimeout)
	}
	return d
}

// statusOf returns the status of requests about which the provider could not be asked; nil for 403.
func statusOf(text string) *typev3.HttpStatus {
	code, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return nil
	}
	return &typev3.HttpStatus{Code: typev3.StatusCode(code)}
}

func bodyOf(b *requestBody) *httpauthzv3.BufferSettings {
	if b == nil {
		return nil
	}
	return &httpauthzv3.BufferSettings{
		MaxRequestBytes: b.GetMaxRequestBytes(), AllowPartialMessage: b.GetAllowPartialMessage(), PackAsBytes: b.GetPackAsBytes(),
	}
}

// headers matches headers by their names, which may begin or end with a wildcard; nil for none.
func headers(names []string) *matcherv3.ListStringMatcher {
	if len(names) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, name := range names {
		m := text(name)
		if !strings.Contains(name, "*") {
			m = exact(name)
		}
		m.IgnoreCase = true
		out.Patterns = append(out.Patterns, m)
	}
	return out
}
