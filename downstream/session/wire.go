package session

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// FromSotW converts a SotW request. The Node is left out: it belongs to the stream.
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

// FromDelta converts a Delta request.
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

// SotW returns the response in SotW form. The bodies are shared, not copied, and no TTL is passed
// on, because its expiry crashes Envoy 1.40 (protocol.md V4, 6.4).
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

// DeltaRest returns the response in Delta form, without its resources.
func (r *Response) DeltaRest(from *corev3.ControlPlane) *discoveryv3.DeltaDiscoveryResponse {
	return &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: r.Version,
		TypeUrl:           r.Type,
		Nonce:             r.Nonce,
		ControlPlane:      from,
		RemovedResources:  r.Removed,
	}
}

// Size returns how many resources the response has in Delta form.
func (r *Response) Size() int { return len(r.Resources) + len(r.Heartbeats) }

// DeltaResource writes the i-th resource of the Delta form into w. The body is shared, not copied.
func (r *Response) DeltaResource(i int, w *discoveryv3.Resource) {
	if i < len(r.Resources) {
		res := r.Resources[i]
		res.Wrap(w, r.remaining(res))
		return
	}
	res := r.Heartbeats[i-len(r.Resources)]
	heartbeat := xds.Resource{Name: res.Name, Version: res.Version}
	heartbeat.Wrap(w, r.remaining(res))
}

// remaining returns the TTL of a resource when the response was built; 0 if none is passed on.
func (r *Response) remaining(res *xds.Resource) time.Duration {
	if r.At.IsZero() || res.Deadline().IsZero() {
		return 0
	}
	return max(res.Deadline().Sub(r.At), time.Millisecond)
}
