package bootstrap

import (
	"fmt"
	"maps"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// FromFiles builds the bootstrap of an Envoy that takes its clusters and listeners from files, without an agent. The files
// must exist before Envoy starts (protocol.md 10.2). admin is as in Config; layers are the static runtime layers, if any.
func FromFiles(node *corev3.Node, admin, clusters, listeners string, layers map[string]*structpb.Struct) (*bootstrapv3.Bootstrap, error) {
	if admin == "" {
		admin = DefaultAdmin
	}
	addr, err := adminAddress(admin)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: admin address %w", err)
	}
	file := func(path string) *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ResourceApiVersion:    corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: path}},
		}
	}
	b := &bootstrapv3.Bootstrap{
		Node:  node,
		Admin: &bootstrapv3.Admin{Address: addr},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			CdsConfig: file(clusters),
			LdsConfig: file(listeners),
		},
	}
	if len(layers) > 0 {
		b.LayeredRuntime = &bootstrapv3.LayeredRuntime{}
		for _, name := range slices.Sorted(maps.Keys(layers)) {
			b.LayeredRuntime.Layers = append(b.LayeredRuntime.Layers, newStaticLayer(name, layers[name]))
		}
		b.LayeredRuntime.Layers = append(b.LayeredRuntime.Layers, newAdminLayer())
	}
	if err := Validate(b); err != nil {
		return nil, err
	}
	return b, nil
}
