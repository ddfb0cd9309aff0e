package session

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// FromSotW reads a SotW request. The Node is not part of it: it belongs to the
// stream.
func FromSotW(req *discoveryv3.DiscoveryRequest) *Request {
	return &Request{
		Type:    req.GetTypeUrl(),
		Nonce:   req.GetResponseNonce(),
		NACK:    req.GetErrorDetail() != nil,
		Error:   req.GetErrorDetail().GetMessage(),
		Version: req.GetVersionInfo(),
		Names:   xds.CanonicalNames(req.GetResourceNames()),
	}
}

// FromDelta reads a Delta request.
func FromDelta(req *discoveryv3.DeltaDiscoveryRequest) *Request {
	return &Request{
		Type:        req.GetTypeUrl(),
		Nonce:       req.GetResponseNonce(),
		NACK:        req.GetErrorDetail() != nil,
		Error:       req.GetErrorDetail().GetMessage(),
		Subscribe:   xds.CanonicalNames(req.GetResourceNamesSubscribe()),
		Unsubscribe: xds.CanonicalNames(req.GetResourceNamesUnsubscribe()),
		Initial:     req.GetInitialResourceVersions(),
	}
}

// SotW writes the response in SotW form. The bodies are shared, not copied, and
// no TTL is passed on: its expiry crashes Envoy 1.40 (protocol.md V4, 6.4).
func (r *Response) SotW(from *corev3.ControlPlane) (*discoveryv3.DiscoveryResponse, error) {
	out := &discoveryv3.DiscoveryResponse{
		VersionInfo:  r.Version,
		TypeUrl:      r.Type,
		Nonce:        r.Nonce,
		ControlPlane: from,
		Resources:    make([]*anypb.Any, 0, len(r.Resources)),
	}
	for _, res := range r.Resources {
		body, err := res.Any()
		if err != nil {
			return nil, err
		}
		out.Resources = append(out.Resources, body)
	}
	return out, nil
}

// Delta writes the response in Delta form. The bodies are shared, not copied.
func (r *Response) Delta(from *corev3.ControlPlane) *discoveryv3.DeltaDiscoveryResponse {
	out := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: r.Version,
		TypeUrl:           r.Type,
		Nonce:             r.Nonce,
		ControlPlane:      from,
		RemovedResources:  r.Removed,
		Resources:         make([]*discoveryv3.Resource, 0, len(r.Resources)),
	}
	for _, res := range r.Resources {
		out.Resources = append(out.Resources, res.Wrapper(r.remaining(res)))
	}
	for _, res := range r.Heartbeats {
		out.Resources = append(out.Resources, &discoveryv3.Resource{
			Name: res.Name, Version: res.Version, Ttl: durationpb.New(r.remaining(res)),
		})
	}
	return out
}

// remaining returns how long a resource lives from the moment that the response
// was made; 0 to say nothing of it.
func (r *Response) remaining(res *xds.Resource) time.Duration {
	if r.At.IsZero() || res.Deadline().IsZero() {
		return 0
	}
	return max(res.Deadline().Sub(r.At), time.Millisecond)
}
