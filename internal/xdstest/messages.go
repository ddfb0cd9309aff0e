package xdstest

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// bodyType is an unknown type, for resources whose content does not matter.
const bodyType = "type.googleapis.com/acme.T"

// Body builds the n-th resource of an unknown type. Its value has size bytes, at least 10: n in 8
// digits as its name, and invalid wire form.
func Body(n, size int) *anypb.Any {
	name := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprintf("%08d", n))
	return &anypb.Any{TypeUrl: bodyType, Value: append(name, strings.Repeat("x", size-len(name))...)}
}

// SotWResponse builds a response with n resources from Body.
func SotWResponse(n, size int) *discoveryv3.DiscoveryResponse {
	m := &discoveryv3.DiscoveryResponse{
		VersionInfo: "v1", TypeUrl: bodyType, Nonce: "n", ControlPlane: &corev3.ControlPlane{Identifier: "cp"},
	}
	for i := range n {
		m.Resources = append(m.Resources, Body(i, size))
	}
	return m
}

// DeltaResponse builds a response that removes a resource and has n resources from Body, with aliases,
// a TTL, cache control and metadata.
func DeltaResponse(n, size int) *discoveryv3.DeltaDiscoveryResponse {
	m := &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: "v1", TypeUrl: bodyType, Nonce: "n", RemovedResources: []string{"gone"},
	}
	for i := range n {
		m.Resources = append(m.Resources, &discoveryv3.Resource{
			Name: fmt.Sprintf("%08d", i), Version: "v", Resource: Body(i, size), Aliases: []string{"a", "b"}, Ttl: durationpb.New(1),
			CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true},
			Metadata:     &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"f": {}}},
		})
	}
	return m
}
