package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// readFile decodes the document in the file at path, JSON or YAML by its extension. Errors contain what and the path.
func readFile[T any](what, path string, decode func(*yamlproto.Node) (T, error)) (decoded T, err error) {
	data, err := userfile.Read(path)
	if err != nil {
		return decoded, fmt.Errorf("bootstrap: %s: %w", what, err)
	}
	format, err := FormatOf(path)
	if err != nil {
		return decoded, err
	}
	document, err := parseDocument(data, format)
	if err == nil {
		decoded, err = decode(document)
	}
	if err != nil {
		return decoded, fmt.Errorf("bootstrap: %s %s: %w", what, path, err)
	}
	return decoded, nil
}

// parseDocument parses exactly one document.
func parseDocument(data []byte, f Format) (*yamlproto.Node, error) {
	format := yamlproto.EnvoyJSON
	if f == YAML {
		format = yamlproto.EnvoyYAML
	}
	documents, err := yamlproto.Read(data, format)
	switch {
	case err != nil:
		return nil, err
	case len(documents) == 0:
		return nil, errors.New("is empty")
	case len(documents) > 1:
		return nil, fmt.Errorf("line %d: a second document: put it into a file of its own", documents[1].Line)
	}
	return documents[0], nil
}

// decodeBootstrap decodes a bootstrap, or a part of one.
func decodeBootstrap(document *yamlproto.Node) (*bootstrapv3.Bootstrap, error) {
	if !document.IsMapping() {
		return nil, errors.New("is not a mapping of bootstrap fields (for a JSON patch, the file name must end in .patch.yaml or .patch.json)")
	}
	b := &bootstrapv3.Bootstrap{}
	if err := document.Unmarshal(b); err != nil {
		if at := (*yamlproto.Error)(nil); errors.As(err, &at) && at.UnknownType != "" {
			at.Err = fmt.Errorf("%w, so its content cannot be decoded: only the types of Envoy's API without contrib are known", at.Err)
		}
		return nil, err
	}
	return b, nil
}

// Read returns the Envoy bootstrap at path, JSON or YAML by its extension. A type that this build does not know (of contrib, or
// of a vendor) is an error. Errors name the file, with what it is ("template"), the line and the field.
func Read(what, path string) (*bootstrapv3.Bootstrap, error) {
	return readFile(what, path, decodeBootstrap)
}

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
