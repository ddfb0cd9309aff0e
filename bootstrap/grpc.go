package bootstrap

import (
	"encoding/json"
	"fmt"
)

// ServerListenerTemplate is the name of the listener that a proxyless gRPC server requests, with %s for its address. Istio
// and other control planes use the same name.
const ServerListenerTemplate = "grpc/server?xds.resource.listening_address=%s"

// GRPC returns the bootstrap of proxyless gRPC clients and servers, which read it through GRPC_XDS_BOOTSTRAP (gRFC A27,
// A36): JSON with the agent's socket as the only xDS server. Equal configurations give equal bytes. It uses only Node and
// Socket of the Config, because gRPC speaks SotW and has no admin interface.
func GRPC(cfg Config) ([]byte, error) {
	socket := cfg.XDS.withDefaults().Socket
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
