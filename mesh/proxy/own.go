package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// OwnConfig is the part of a proxy's own ProxyConfig that generation reads: topology, headers, tracing, and settings of
// connections. Everything else concerns its process.
type OwnConfig struct {
	*meshv1alpha1.ProxyConfig
	// key is the same for equal content.
	key string
}

// maxOwnConfig bounds the size of a ProxyConfig in the metadata of a Node, in bytes.
const maxOwnConfig = 64 << 10

// ownConfig reads the ProxyConfig in the metadata of a Node. As with istiod it takes the place of the mesh's: agents send
// one that they have merged with that.
func ownConfig(value *structpb.Value) (*OwnConfig, error) {
	if value == nil {
		return nil, nil
	}
	if value.GetStructValue() == nil {
		return nil, errors.New("is no mapping")
	}
	text, err := protojson.Marshal(value)
	if err != nil {
		return nil, err
	}
	if len(text) > maxOwnConfig {
		return nil, fmt.Errorf("has more than %d bytes", maxOwnConfig)
	}
	var all meshv1alpha1.ProxyConfig
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("is no ProxyConfig: %w", err)
	}
	if sampling := all.GetTracing().GetSampling(); !(sampling >= 0 && sampling <= 100) {
		return nil, fmt.Errorf("tracing.sampling is no percentage: %v", sampling)
	}
	own := &meshv1alpha1.ProxyConfig{
		GatewayTopology: all.GetGatewayTopology(), ProxyHeaders: all.GetProxyHeaders(), ConnectionSettings: all.GetConnectionSettings(), Tracing: all.GetTracing(),
	}
	key, err := proto.MarshalOptions{Deterministic: true}.Marshal(own)
	return &OwnConfig{own, string(key)}, err
}

// Config returns the ProxyConfig of the proxy; nil if it has none of its own.
func (v *View) Config() *meshv1alpha1.ProxyConfig {
	v.note(property{what: readOwnConfig}, func(p *Proxy) string {
		if p.Own == nil {
			return "-"
		}
		return "+" + p.Own.key
	})
	if v.proxy.Own == nil {
		return nil
	}
	return v.proxy.Own.ProxyConfig
}

// Observed is what access logs and traces say of a proxy.
type Observed struct {
	// ServiceCluster is the cluster of the xDS Node: the name of the service in traces. OTelService is that by the
	// semantic conventions of OpenTelemetry.
	ServiceCluster, OTelService string
	// MeshID is the id of the mesh; "" for none.
	MeshID string
	// TagFormats says that the tags of spans may be formats: Envoy from 1.37, as with istiod. An older one rejects them.
	TagFormats bool
}

// observed returns what a Node says of a proxy that was read from it.
func observed(node *corev3.Node, p *Proxy) Observed {
	meta := node.GetMetadata()
	pod, _, isPod := strings.Cut(p.Name, ".")
	if !isPod {
		pod = p.Name
	}
	containers := text(meta, "APP_CONTAINERS")
	if strings.Contains(containers, ",") {
		containers = ""
	}
	annotations := meta.GetFields()["ANNOTATIONS"].GetStructValue().GetFields()
	return Observed{
		ServiceCluster: node.GetCluster(), MeshID: text(meta, metaMeshID), TagFormats: isSince(node, 37),
		OTelService: cmp.Or(annotations["resource.opentelemetry.io/service.name"].GetStringValue(), p.Labels["app.kubernetes.io/instance"],
			p.Labels["app.kubernetes.io/name"], text(meta, metaWorkloadName), pod, containers, "unknown_service"),
	}
}

// ServiceCluster returns the cluster of the xDS Node: the name of the service in traces.
func (v *View) ServiceCluster() string {
	v.note(property{what: readService}, func(p *Proxy) string { return p.ServiceCluster })
	return v.proxy.ServiceCluster
}

// OTelService returns the name of the service by the semantic conventions of OpenTelemetry.
func (v *View) OTelService() string {
	v.note(property{what: readOTel}, func(p *Proxy) string { return p.OTelService })
	return v.proxy.OTelService
}

// MeshID returns the id of the mesh that the Node says; "" for none.
func (v *View) MeshID() string {
	v.note(property{what: readMeshID}, func(p *Proxy) string { return p.MeshID })
	return v.proxy.MeshID
}

// TagFormats reports whether the tags of spans may be formats.
func (v *View) TagFormats() bool {
	v.note(property{what: readTagFormats}, func(p *Proxy) string { return strconv.FormatBool(p.TagFormats) })
	return v.proxy.TagFormats
}
