package bootstrap

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Build returns the bootstrap for cfg: the node, a static cluster for the agent's socket, LDS and CDS from there, the admin
// address, and the optional parts. Envoy waits for LDS and CDS without a timeout, because the agent does not answer what it
// does not know yet, and an Envoy that stopped waiting would become ready without configuration (protocol.md V7). The
// result is new for each call.
func Build(cfg Config) (*bootstrapv3.Bootstrap, error) {
	cfg = cfg.withDefaults()
	node, err := cfg.Node.Proto()
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{Node: node}
	for _, part := range []func(*bootstrapv3.Bootstrap, Config) error{
		addXDS, addAdmin, addEndpoints, addStats, addRuntime, addOverload, addLog,
	} {
		if err := part(b, cfg); err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
	}
	if err := checkFields(b); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return b, nil
}

func addAdmin(b *bootstrapv3.Bootstrap, cfg Config) error {
	admin, err := adminAddress(cfg.Admin)
	if err != nil {
		return fmt.Errorf("admin address %w", err)
	}
	if path := admin.GetPipe().GetPath(); path != "" && path == cfg.XDS.Socket {
		return fmt.Errorf("admin address and xDS socket are both %q", cfg.XDS.Socket)
	}
	b.Admin = &bootstrapv3.Admin{Address: admin}
	return nil
}

// pack packs m into an Any with deterministic bytes. It validates m, because validation does not look into an Any.
func pack(m proto.Message) (*anypb.Any, error) {
	if err := checkFields(m); err != nil {
		return nil, err
	}
	packed := &anypb.Any{}
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, fmt.Errorf("%s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return packed, nil
}

// FromFiles builds the bootstrap of an Envoy that takes its clusters and listeners from files, without an agent. The files
// must exist before Envoy starts (protocol.md 10.2). admin is as in Config; layers are static runtime layers, added to the
// default one.
func FromFiles(node *corev3.Node, admin, clusters, listeners string, layers map[string]*structpb.Struct) (*bootstrapv3.Bootstrap, error) {
	b := &bootstrapv3.Bootstrap{
		Node:             node,
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{CdsConfig: FileSource(clusters), LdsConfig: FileSource(listeners)},
	}
	err := addAdmin(b, Config{Admin: cmp.Or(admin, DefaultAdmin)})
	runtime := &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{newStaticLayer(staticLayer, withDefaults(layers[staticLayer]))}}
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		if name != staticLayer {
			runtime.Layers = append(runtime.Layers, newStaticLayer(name, layers[name]))
		}
	}
	runtime.Layers = append(runtime.Layers, newAdminLayer())
	b.LayeredRuntime = runtime
	if err == nil {
		err = checkFields(b)
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return b, nil
}

// FileSource returns the source of resources in a file.
func FileSource(path string) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: path}},
	}
}

// ServerListenerTemplate is the name of the listener that a proxyless gRPC server requests, with %s for its address. Istio
// and other control planes use the same name.
const ServerListenerTemplate = "grpc/server?xds.resource.listening_address=%s"

// GRPC returns the bootstrap of proxyless gRPC clients and servers, which read it through GRPC_XDS_BOOTSTRAP (gRFC A27,
// A36): JSON with the agent's socket as the only xDS server. Equal configurations give equal bytes. It uses only Node and
// Socket of the Config, because gRPC speaks SotW and has no admin interface.
func GRPC(cfg Config) ([]byte, error) {
	socket := cfg.withDefaults().XDS.Socket
	if err := checkSocketPath(socket); err != nil {
		return nil, fmt.Errorf("bootstrap: xDS %w", err)
	}
	node, err := cfg.Node.Proto()
	if err != nil {
		return nil, err
	}
	tree, err := jsonTree(node)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	out, err := json.MarshalIndent(map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri": "unix://" + socket,
			// The permissions of the socket's file protect the connection.
			"channel_creds":   []any{map[string]any{"type": "insecure"}},
			"server_features": []string{"xds_v3"},
		}},
		"node":                                   tree,
		"server_listener_resource_name_template": ServerListenerTemplate,
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(out, '\n'), nil
}
