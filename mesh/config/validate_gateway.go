package config

import (
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// validateGateway checks a Gateway.
func validateGateway(k *checker, spec *networking.Gateway) {
	root := &path{name: "spec"}
	if !isDNSLabel(k.config.Name) {
		k.errorf((&path{name: "metadata"}).field("name"), "the name of a Gateway must not have dots")
	}
	if len(spec.Servers) == 0 {
		k.errorf(root.field("servers"), "must have at least one server")
	}
	names := make(map[string]int)
	for i, server := range spec.Servers {
		at := root.field("servers").at(i)
		k.server(at, server)
		if name := server.GetPort().GetName(); name != "" {
			if before, twice := names[name]; twice {
				k.errorf(at.fields("port.name"), "%q is the name of the port of servers[%d] too", name, before)
			} else {
				names[name] = i
			}
		}
	}
}

// server checks a server of a Gateway.
func (k *checker) server(at *path, server *networking.Server) {
	if len(server.GetHosts()) == 0 {
		k.errorf(at.field("hosts"), "must have at least one host")
	}
	for i, host := range server.GetHosts() {
		k.gatewayHost(at.field("hosts").at(i), host)
	}
	k.serverPort(at, server.GetPort(), server.GetBind())
	k.serverTLS(at.field("tls"), server.GetTls())
	if server.GetPort() == nil || protocolOf(server.Port.Protocol) == protocolUnknown {
		return
	}
	protocol, tls := protocolOf(server.Port.Protocol), server.Tls
	switch {
	case protocol == protocolTLS && tls == nil:
		k.errorf(at.field("tls"), "is needed by the protocol %s", server.Port.Protocol)
	case tls == nil || protocol == protocolTLS:
	case protocol != protocolHTTP:
		k.errorf(at.field("tls"), "the protocol %s has no TLS: write HTTPS or TLS", server.Port.Protocol)
	case tls.Mode != networking.ServerTLSSettings_PASSTHROUGH && tls.Mode != networking.ServerTLSSettings_AUTO_PASSTHROUGH ||
		tls.ServerCertificate != "" || tls.PrivateKey != "" || tls.CaCertificates != "":
		k.errorf(at.field("tls"), "the protocol %s has no TLS: only httpsRedirect can be set", server.Port.Protocol)
	}
	if protocol != protocolHTTP && tls.GetHttpsRedirect() {
		k.warnf(NoEffect, at.fields("tls.httpsRedirect"), "has an effect for HTTP only")
	}
}

// The classes of protocols that documents distinguish.
type protocolClass uint8

const (
	protocolUnknown protocolClass = iota
	protocolTCP
	protocolHTTP
	protocolTLS
	protocolUDP
)

// protocolOf returns the class of a protocol, in any case.
func protocolOf(name string) protocolClass {
	switch strings.ToLower(name) {
	case "tcp", "mongo", "redis", "mysql":
		return protocolTCP
	case "http", "http_proxy", "http2", "grpc", "grpc-web":
		return protocolHTTP
	case "https", "tls":
		return protocolTLS
	case "udp":
		return protocolUDP
	default:
		return protocolUnknown
	}
}

const protocols = "HTTP, HTTPS, HTTP2, GRPC, GRPC-Web, TLS, TCP, MONGO, REDIS, MYSQL"

// protocol checks the name of a protocol. "" lets the proxy detect it.
func (k *checker) protocol(at *path, name string) {
	if name != "" && protocolOf(name) == protocolUnknown {
		k.errorf(at, "%q is no protocol: write one of %s", name, protocols)
	}
	if strings.EqualFold(name, "UDP") {
		k.warnf(ProtocolNotProxied, at, "UDP is not proxied")
	}
}

// serverPort checks the port of a server.
func (k *checker) serverPort(at *path, port *networking.Port, bind string) {
	if port == nil {
		k.errorf(at.field("port"), "it is missing")
		return
	}
	socket, unix := strings.CutPrefix(bind, unixPrefix)
	switch {
	case unix:
		k.report(at.field("bind"), bind, unixProblem(socket))
		if port.Number != 0 {
			k.errorf(at.fields("port.number"), "must be 0 for a Unix socket")
		}
	default:
		k.port(at.fields("port.number"), int64(port.Number))
		if bind != "" {
			k.report(at.field("bind"), bind, bindProblem(bind))
		}
	}
	if protocolOf(port.Protocol) == protocolUnknown {
		k.errorf(at.fields("port.protocol"), "%q is no protocol: write one of %s", port.Protocol, protocols)
	}
	if port.Name == "" {
		k.errorf(at.fields("port.name"), "it is missing")
	}
	//lint:ignore SA1019 the deprecated field is rejected
	if port.TargetPort != 0 {
		k.errorf(at.fields("port.targetPort"), "has no effect in a Gateway")
	}
}

// gatewayHost checks a host of a server: "host" or "namespace/host".
func (k *checker) gatewayHost(at *path, text string) {
	namespace, host, found := strings.Cut(text, "/")
	if !found {
		host = namespace
	} else if namespace != "*" && namespace != "." && !isDNSLabel(namespace) {
		k.errorf(at, `%q is no namespace, "." or "*"`, namespace)
	}
	switch {
	case host == "*" || isIP(host) && strings.Contains(host, "."): // Istio takes no IPv6 addresses
	case partialWildcardProblem(host) != "":
		k.report(at, host, partialWildcardProblem(host))
	case wildcardHostProblem(host) != "":
		k.report(at, host, wildcardHostProblem(host))
	case !strings.Contains(host, "."):
		k.errorf(at, "%q is a short name: write the full name of the host", host)
	}
}

// serverTLS checks how a server ends TLS; nil is none.
func (k *checker) serverTLS(at *path, tls *networking.ServerTLSSettings) {
	if tls == nil {
		return
	}
	if tls.MaxProtocolVersion != 0 && tls.MinProtocolVersion > tls.MaxProtocolVersion {
		k.errorf(at.field("minProtocolVersion"), "must not be above maxProtocolVersion")
	}
	k.tlsLists(at, tls)
	sources := certificateSources(tls)
	switch tls.Mode {
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		if len(sources) > 0 || tls.ServerCertificate != "" || tls.PrivateKey != "" || tls.CaCertificates != "" {
			k.errorf(at, "the mode ISTIO_MUTUAL uses the certificates of the mesh: remove the others")
		}
		return
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		if len(sources) > 0 || tls.ServerCertificate != "" || tls.PrivateKey != "" || tls.CaCertificates != "" || tls.CaCrl != "" {
			k.warnf(NoEffect, at, "the mode %s uses no certificates: those that are given have no effect", tls.Mode)
		}
	}
	if len(sources) > 1 {
		k.errorf(at.field(sources[1]), "there must be one source of certificates, and there are %s", strings.Join(sources, " and "))
	}
	switch {
	case tls.CaCrl == "":
	case tls.CredentialName != "" || len(tls.CredentialNames) > 0:
		k.warnf(NoEffect, at.field("caCrl"), "has no effect with a credentialName: the CRL is in the credential")
	case tls.Mode == networking.ServerTLSSettings_SIMPLE:
		k.errorf(at.field("caCrl"), "cannot be combined with the mode SIMPLE, in which clients have no certificates")
	}
	k.serverCertificates(at, tls)
}

// certificateSources returns the fields that name the server's certificates.
func certificateSources(tls *networking.ServerTLSSettings) []string {
	var sources []string
	for _, source := range []struct {
		field string
		set   bool
	}{
		{"serverCertificate", tls.ServerCertificate != "" && tls.PrivateKey != ""},
		{"credentialName", tls.CredentialName != ""},
		{"credentialNames", len(tls.CredentialNames) > 0},
		{"tlsCertificates", len(tls.TlsCertificates) > 0},
	} {
		if source.set {
			sources = append(sources, source.field)
		}
	}
	return sources
}

// serverCertificates checks that a server that ends TLS has the certificates of its mode.
func (k *checker) serverCertificates(at *path, tls *networking.ServerTLSSettings) {
	mutual := tls.Mode == networking.ServerTLSSettings_MUTUAL || tls.Mode == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	if !mutual && tls.Mode != networking.ServerTLSSettings_SIMPLE || tls.CredentialName != "" || len(tls.CredentialNames) > 0 {
		return
	}
	if mutual && tls.CaCertificates == "" {
		k.errorf(at.field("caCertificates"), "is needed by the mode %s, or else a credentialName", tls.Mode)
	}
	if len(tls.TlsCertificates) > 2 {
		k.warnf(OnlyFirstUsed, at.field("tlsCertificates"), "proxies use up to 2 certificates")
	}
	for i, certificate := range tls.TlsCertificates {
		if certificate.GetServerCertificate() == "" || certificate.GetPrivateKey() == "" {
			k.errorf(at.field("tlsCertificates").at(i), "must have a serverCertificate and a privateKey")
		}
	}
	if len(tls.TlsCertificates) == 0 {
		if tls.ServerCertificate == "" {
			k.errorf(at.field("serverCertificate"), "is needed by the mode %s, or else a credentialName", tls.Mode)
		}
		if tls.PrivateKey == "" {
			k.errorf(at.field("privateKey"), "is needed by the mode %s, or else a credentialName", tls.Mode)
		}
	}
}

// tlsLists checks that the lists of a server's TLS settings have no empty and no equal elements.
func (k *checker) tlsLists(at *path, tls *networking.ServerTLSSettings) {
	for _, list := range []struct {
		field string
		of    []string
	}{
		{"cipherSuites", tls.CipherSuites}, {"credentialNames", tls.CredentialNames}, {"subjectAltNames", tls.SubjectAltNames},
		{"verifyCertificateSpki", tls.VerifyCertificateSpki}, {"verifyCertificateHash", tls.VerifyCertificateHash},
	} {
		seen := make(map[string]bool)
		for i, element := range list.of {
			switch at := at.field(list.field).at(i); {
			case element == "":
				k.errorf(at, "must not be empty")
			case seen[element]:
				k.warnf(Repeated, at, "%q is there twice", element)
			}
			seen[element] = true
		}
	}
	for i, pin := range tls.VerifyCertificateSpki {
		if sum, err := base64.StdEncoding.DecodeString(pin); pin != "" && (err != nil || len(sum) != sha256.Size) {
			k.errorf(at.field("verifyCertificateSpki").at(i), "%q is no SHA-256 sum in base64 (44 characters): openssl x509 -in CERT -noout -pubkey | openssl pkey -pubin -outform DER | openssl dgst -sha256 -binary | openssl enc -base64", pin)
		}
	}
	for i, pin := range tls.VerifyCertificateHash {
		if pin != "" && !certificateHash.MatchString(pin) {
			k.errorf(at.field("verifyCertificateHash").at(i), "%q is no SHA-256 sum in hexadecimal digits (64, or 32 pairs with colons between them): openssl x509 -in CERT -noout -fingerprint -sha256", pin)
		}
	}
}

var certificateHash = regexp.MustCompile(`^(?:[0-9a-fA-F]{64}|[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){31})$`)
