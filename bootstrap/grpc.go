package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
)

// ServerListenerTemplate is the name under which a proxyless gRPC server asks for
// its listener, with %s for the address that it listens on: the name that Istio
// and the others use.
const ServerListenerTemplate = "grpc/server?xds.resource.listening_address=%s"

// GRPC returns the bootstrap of proxyless gRPC clients and servers, which find it
// through GRPC_XDS_BOOTSTRAP (gRFC A27, A36): the agent's socket as their only
// xDS server, in JSON, the same bytes for the same Config. Of it only Node and
// Socket are used: gRPC speaks SotW, and has no admin address.
func GRPC(cfg Config) ([]byte, error) {
	socket := cfg.XDS.withDefaults().Socket
	if err := checkSocketPath(socket); err != nil {
		return nil, fmt.Errorf("bootstrap: xDS %w", err)
	}
	node, err := cfg.Node.Proto()
	if err != nil {
		return nil, err
	}
	// protojson varies its white space; encoding/json makes it the same again.
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(node)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	var asMap map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&asMap); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	out, err := json.MarshalIndent(map[string]any{
		"xds_servers": []any{map[string]any{
			"server_uri": "unix://" + socket,
			// The file system protects the socket.
			"channel_creds":   []any{map[string]any{"type": "insecure"}},
			"server_features": []string{"xds_v3"},
		}},
		"node":                                   asMap,
		"server_listener_resource_name_template": ServerListenerTemplate,
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(out, '\n'), nil
}
