package service

import (
	"slices"
	"strings"
)

// Protocol is the protocol of a port.
type Protocol uint8

const (
	// Unsupported: none is named. The proxy detects whether a connection is HTTP, and treats it as
	// TCP otherwise.
	Unsupported Protocol = iota
	TCP
	UDP
	HTTP
	HTTP2
	GRPC
	GRPCWeb
	HTTPS
	TLS
	Mongo
	Redis
	MySQL
)

var protocolNames = [...]string{"Unsupported", "TCP", "UDP", "HTTP", "HTTP2", "GRPC", "GRPC-Web", "HTTPS", "TLS", "Mongo", "Redis", "MySQL"}

// String returns the name as documents have it.
func (p Protocol) String() string { return protocolNames[p] }

// ParseProtocol reads the protocol field of a ServiceEntry, a Gateway or a Sidecar, in any case.
// What it does not know is Unsupported.
func ParseProtocol(name string) Protocol {
	for p, known := range protocolNames {
		if strings.EqualFold(name, known) {
			return Protocol(p)
		}
	}
	if strings.EqualFold(name, "http_proxy") {
		return HTTP
	}
	return Unsupported
}

// appProtocols are the values of appProtocol that are no names of protocols (Kubernetes KEP-3726).
var appProtocols = map[string]Protocol{
	"kubernetes.io/h2c": HTTP2,
	"kubernetes.io/ws":  HTTP,
	"kubernetes.io/wss": HTTPS,
}

// serverFirst are the ports of protocols in which the server speaks first (SMTP, DNS, MySQL, MongoDB):
// to wait for the client's first bytes would break them.
var serverFirst = []uint32{25, 53, 3306, 27017}

// ProtocolOf returns the protocol of a port of a Kubernetes Service, by Pilot's rules: UDP by its
// transport; or else that which appProtocol or, if there is none, the name of the port begins with,
// up to the first "-"; or else TCP for the ports of protocols in which the server speaks first, and
// Unsupported for the others.
func ProtocolOf(port uint32, transport, name, appProtocol string) Protocol {
	if transport == "UDP" {
		return UDP
	}
	if appProtocol != "" {
		if p, ok := appProtocols[appProtocol]; ok {
			return p
		}
		name = appProtocol
	}
	if len(name) >= len("grpc-web") && strings.EqualFold(name[:len("grpc-web")], "grpc-web") {
		return GRPCWeb
	}
	prefix, _, _ := strings.Cut(name, "-")
	p := ParseProtocol(prefix)
	if p == Unsupported && slices.Contains(serverFirst, port) {
		return TCP
	}
	return p
}

// IsHTTP reports whether requests of the protocol have routes.
func (p Protocol) IsHTTP() bool { return p == HTTP || p == HTTP2 || p == GRPC || p == GRPCWeb }

// IsHTTP2 reports whether the protocol is HTTP/2 in plaintext.
func (p Protocol) IsHTTP2() bool { return p == HTTP2 || p == GRPC || p == GRPCWeb }

// IsTLS reports whether a connection begins with TLS that the proxy does not end.
func (p Protocol) IsTLS() bool { return p == HTTPS || p == TLS }

// IsTCP reports whether connections of the protocol are forwarded as they are.
func (p Protocol) IsTCP() bool {
	return p == TCP || p.IsTLS() || p == Mongo || p == Redis || p == MySQL
}
