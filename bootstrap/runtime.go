package bootstrap

import (
	"fmt"
	"slices"
	"unicode/utf8"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Names of runtime layers that are not from RTDS.
const (
	staticLayer = "static"
	adminLayer  = "admin"
)

func addRuntime(b *bootstrapv3.Bootstrap, cfg Config) error {
	r := cfg.Runtime
	if len(r.Values) == 0 && len(r.RTDS) == 0 {
		return nil
	}
	runtime := &bootstrapv3.LayeredRuntime{}
	if len(r.Values) > 0 {
		if err := checkValue("", r.Values); err != nil {
			return fmt.Errorf("--runtime: %w", err)
		}
		values, err := structpb.NewStruct(r.Values)
		if err != nil {
			return fmt.Errorf("--runtime: %w", err)
		}
		runtime.Layers = append(runtime.Layers, newStaticLayer(staticLayer, values))
	}
	names := []string{staticLayer, adminLayer}
	for _, name := range r.RTDS {
		switch {
		case name == "" || !utf8.ValidString(name):
			return fmt.Errorf("--rtds-layer %q is empty or not valid UTF-8", name)
		case slices.Contains(names, name):
			return fmt.Errorf("--rtds-layer %q: a layer of this name exists already", name)
		}
		names = append(names, name)
		source, err := cfg.XDS.source()
		if err != nil {
			return err
		}
		runtime.Layers = append(runtime.Layers, &bootstrapv3.RuntimeLayer{
			Name: name,
			LayerSpecifier: &bootstrapv3.RuntimeLayer_RtdsLayer_{
				RtdsLayer: &bootstrapv3.RuntimeLayer_RtdsLayer{Name: name, RtdsConfig: source},
			},
		})
	}
	runtime.Layers = append(runtime.Layers, newAdminLayer())
	b.LayeredRuntime = runtime
	return nil
}

func newStaticLayer(name string, values *structpb.Struct) *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{Name: name, LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: values}}
}

// newAdminLayer returns the layer that POST /runtime_modify writes to.
func newAdminLayer() *bootstrapv3.RuntimeLayer {
	return &bootstrapv3.RuntimeLayer{Name: adminLayer, LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}}}
}
