package bootstrap

import (
	"cmp"
	"encoding/json"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
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

// Standalone returns a bootstrap of an Envoy without an agent, which says nothing of where its clusters and listeners are.
// admin is as in Config, and DefaultAdmin if it is empty; layers are the runtime layers that it gets from RTDS through ADS.
func Standalone(node *corev3.Node, admin string, layers []string) (*bootstrapv3.Bootstrap, error) {
	runtime := &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{newStaticLayer(staticLayer, withDefaults(nil))}}
	for _, name := range layers {
		layer := newRTDSLayer(name, XDS{Transport: ADS}.source())
		if name == staticLayer || name == adminLayer { // Envoy would not have a name twice
			layer.Name = "rtds " + name
		}
		runtime.Layers = append(runtime.Layers, layer)
	}
	runtime.Layers = append(runtime.Layers, newAdminLayer())
	b := &bootstrapv3.Bootstrap{Node: node, LayeredRuntime: runtime}
	err := SetAdmin(b, cmp.Or(admin, DefaultAdmin))
	if err == nil {
		err = checkFields(b)
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return b, nil
}

// SetAdmin sets the address of Envoy's admin interface, as in Config.
func SetAdmin(b *bootstrapv3.Bootstrap, admin string) error { return addAdmin(b, Config{Admin: admin}) }

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
