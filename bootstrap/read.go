package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// ReadNode returns the node of the Envoy bootstrap at path, JSON or YAML by its extension. It decodes only the node, so
// unknown fields and extensions elsewhere in the file are no problem. A node without id or cluster is an error: Envoy
// rejects it as well, unless its command line names them. Errors name the file, the line and the field.
func ReadNode(path string) (*corev3.Node, error) { return readFile("read node", path, decodeNode) }

func decodeNode(document *yamlproto.Node) (*corev3.Node, error) {
	if !document.IsMapping() {
		return nil, errors.New("is not a mapping of bootstrap fields")
	}
	written := document.Get("node")
	if written == nil {
		return nil, errors.New("node is missing")
	}
	node := &corev3.Node{}
	if err := written.UnmarshalKnown(node); err != nil {
		return nil, err
	}
	for _, field := range []struct{ name, value string }{{"id", node.GetId()}, {"cluster", node.GetCluster()}} {
		if field.value == "" {
			return nil, fmt.Errorf("node.%s is missing or empty", field.name)
		}
	}
	return node, nil
}

// ReadAdmin returns the admin address of the Envoy bootstrap at path, JSON or YAML by its extension: host:port or
// unix:PATH, "" for none. It decodes nothing else.
func ReadAdmin(path string) (string, error) { return readFile("read admin", path, decodeAdmin) }

func decodeAdmin(document *yamlproto.Node) (string, error) {
	written := document.Get("admin").Get("address")
	if written == nil {
		return "", nil
	}
	var addr corev3.Address
	if err := written.UnmarshalKnown(&addr); err != nil {
		return "", err
	}
	if pipe := addr.GetPipe().GetPath(); pipe != "" {
		return "unix:" + pipe, nil
	}
	socket := addr.GetSocketAddress()
	if socket.GetPortValue() == 0 {
		return "", nil // the system chooses the port
	}
	return net.JoinHostPort(socket.GetAddress(), strconv.Itoa(int(socket.GetPortValue()))), nil
}
