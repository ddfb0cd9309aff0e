package push

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

//lint:file-ignore SA1019 documents still have the older field

// DefaultMesh returns Istio's default mesh configuration, as far as it is read.
func DefaultMesh() *meshv1alpha1.MeshConfig {
	return &meshv1alpha1.MeshConfig{
		RootNamespace:             "istio-system",
		TrustDomain:               "cluster.local",
		ConnectTimeout:            durationpb.New(10 * time.Second),
		DnsRefreshRate:            durationpb.New(time.Minute),
		ProtocolDetectionTimeout:  durationpb.New(0),
		ProxyListenPort:           15001,
		ProxyInboundListenPort:    15006,
		IngressClass:              "istio",
		IngressControllerMode:     meshv1alpha1.MeshConfig_STRICT,
		EnableAutoMtls:            wrapperspb.Bool(true),
		VerifyCertificateAtClient: wrapperspb.Bool(true),
		AccessLogEncoding:         meshv1alpha1.MeshConfig_TEXT,
		OutboundTrafficPolicy:     &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		InboundTrafficPolicy:      &meshv1alpha1.MeshConfig_InboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_InboundTrafficPolicy_PASSTHROUGH},
		PathNormalization:         &meshv1alpha1.MeshConfig_ProxyPathNormalization{},
		DefaultConfig:             &meshv1alpha1.ProxyConfig{},
		LocalityLbSetting:         &networking.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)},
	}
}

// mergeMesh sets in mesh each field that own sets. Messages and lists replace those of the defaults.
func mergeMesh(mesh, own *meshv1alpha1.MeshConfig) {
	to := mesh.ProtoReflect()
	proto.CloneOf(own).ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		to.Set(field, value)
		return true
	})
}
