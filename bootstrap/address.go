package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// maxSocketPath is the size of sun_path in sockaddr_un on Linux, without the terminating zero.
const maxSocketPath = 107

// adminSocketMode permits access for the group: probes and the shells of operators seldom run as Envoy's user, and Envoy's
// default depends on the umask.
const adminSocketMode = 0o660

// checkSocketPath returns an error for an invalid path of a socket.
func checkSocketPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("socket path %q is not absolute", path)
	case strings.HasSuffix(path, "/"):
		return fmt.Errorf("socket path %q names a directory", path)
	case !utf8.ValidString(path) || strings.ContainsRune(path, 0):
		return fmt.Errorf("socket path %q is not valid UTF-8 without zero bytes", path)
	case len(path) > maxSocketPath:
		return fmt.Errorf("socket path %q has %d bytes; the system allows %d", path, len(path), maxSocketPath)
	}
	return nil
}

func pipeAddress(path string, mode uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path, Mode: mode}}}
}

// adminAddress parses "unix:PATH" or "host:port". It accepts only a Unix socket and loopback, because the admin interface
// can stop Envoy and shows its configuration.
func adminAddress(s string) (*corev3.Address, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if err := checkSocketPath(path); err != nil {
			return nil, err
		}
		return pipeAddress(path, adminSocketMode), nil
	}
	host, portText, err := net.SplitHostPort(s)
	if err != nil {
		return nil, fmt.Errorf("%q is neither unix:PATH nor host:port", s)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%q: port %q is not a number from 0 to 65535", s, portText)
	}
	ip, err := loopback(host)
	if err != nil {
		return nil, fmt.Errorf("%q: %w: the admin interface can stop Envoy and shows its configuration; use 127.0.0.1, [::1] or unix:PATH", s, err)
	}
	return socketAddress(ip, uint32(port)), nil
}

func socketAddress(ip netip.Addr, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       ip.String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// loopback returns the loopback address of host. Envoy does not resolve names for its admin interface, so the only name
// accepted is localhost.
func loopback(host string) (netip.Addr, error) {
	if host == "" {
		return netip.Addr{}, errors.New("no host means every interface")
	}
	if strings.EqualFold(host, "localhost") {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("host %q is not an IP address", host)
	}
	ip = ip.Unmap()
	if !ip.IsLoopback() || ip.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("host %q is not loopback", host)
	}
	return ip, nil
}

// OpenAdmin returns the address of the admin interface in a bootstrap if other machines can reach it, which only a template
// or an overlay can cause; "" otherwise.
func OpenAdmin(b *bootstrapv3.Bootstrap) string {
	socket := b.GetAdmin().GetAddress().GetSocketAddress()
	if socket == nil {
		return ""
	}
	if _, err := loopback(socket.GetAddress()); err == nil {
		return ""
	}
	return net.JoinHostPort(socket.GetAddress(), strconv.Itoa(int(socket.GetPortValue())))
}
