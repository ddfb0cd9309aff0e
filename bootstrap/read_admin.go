package bootstrap

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// ReadAdmin returns the address of the admin interface in the Envoy bootstrap at path, JSON or YAML by its extension: host:port
// or unix:PATH, "" for none. Nothing else is looked at.
func ReadAdmin(path string) (string, error) {
	data, err := userfile.Read(path)
	if err != nil {
		return "", fmt.Errorf("bootstrap: read admin: %w", err)
	}
	format, err := FormatOf(path)
	if err != nil {
		return "", err
	}
	if data, err = toJSON(data, format); err != nil {
		return "", fmt.Errorf("bootstrap: %s: %w", path, err)
	}
	var file struct {
		Admin struct {
			Address json.RawMessage `json:"address"`
		} `json:"admin"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return "", fmt.Errorf("bootstrap: %s: %w", path, err)
	}
	if file.Admin.Address == nil {
		return "", nil
	}
	var addr corev3.Address
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(file.Admin.Address, &addr); err != nil {
		return "", fmt.Errorf("bootstrap: %s: admin.address: %w", path, err)
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
