package main

import (
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/controlplane"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/sds/keystore"
	"github.com/holdfast-xds/holdfast/upstream"
)

// warnExposed warns at the start of everything that other users or machines can read or reach,
// and names the flags that cause it.
func warnExposed(log *slog.Logger, cfg agent.Config) {
	var open []string // upstreams without TLS on a network
	for _, addr := range cfg.Upstreams {
		if cfg.Upstream.Plaintext && !onThisMachine(addr) {
			open = append(open, addr)
		}
	}
	if len(open) > 0 {
		log.Warn("plaintext connection to the control plane: its messages can be read and changed on the network. Leave out --upstream-plaintext, unless the network is private", "upstreams", strings.Join(open, ", "))
		if credentials := credentialsOf(cfg.Upstream); len(credentials) > 0 {
			log.Warn("credentials are sent in plaintext: leave out --upstream-plaintext, unless the network is private",
				"credentials", strings.Join(credentials, ", "), "upstreams", strings.Join(open, ", "))
		}
	}
	warnAddress(log, "--admin", cfg.Admin.Addr, exposedAdmin)
	warnAddress(log, "--rest", cfg.REST, "everybody who can reach this address can read the configuration: use an address of loopback, or the socket")
	warnReadable(log, "--upstream-key", cfg.Upstream.Key)
	warnReadable(log, "--upstream-token-file", cfg.Upstream.TokenFile)
	if dir := cfg.Certificates.IdentityDir; dir != "" {
		stored, _ := filepath.Glob(filepath.Join(dir, "*", keystore.KeyFile)) // the pattern is well formed
		below, _ := filepath.Glob(filepath.Join(dir, keystore.Sub, "*", keystore.KeyFile))
		for _, key := range append(stored, below...) {
			warnReadable(log, "--identity-dir", key)
		}
	}
	for _, source := range cfg.Certificates.Sources {
		warnReadable(log, "--istio-key", source.Istio.Key)
		warnReadable(log, "--istio-token-file", source.Istio.TokenFile)
		if dir, ok := strings.CutPrefix(source.CA, "dir:"); ok {
			for _, key := range []string{"ca-key.pem", "tls.key"} { // as in package sds/local
				warnReadable(log, "--ca", filepath.Join(dir, key))
			}
		}
	}
}

const exposedAdmin = "everybody who can reach this address can read the status and all resources (dump): use unix:PATH, or an address of loopback"

// credentialsOf returns the flags by which the agent authenticates to a control plane.
func credentialsOf(cfg upstream.Config) []string {
	var found []string
	if cfg.TokenFile != "" {
		found = append(found, "--upstream-token-file")
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Headers)) {
		if redact.IsCredential(name, cfg.Headers[name]) {
			found = append(found, "--upstream-header "+name)
		}
	}
	return found
}

// warnExposedControlPlane is warnExposed for the built-in control plane.
func warnExposedControlPlane(log *slog.Logger, cfg controlplane.Config) {
	if cfg.TLSCert == "" {
		warnAddress(log, "--listen", cfg.Listen, "everybody who can reach this address can read the resources: give --tls-cert and --tls-key, and --tls-client-ca to authenticate clients")
	}
	warnAddress(log, "--admin", cfg.Admin, exposedAdmin)
	warnReadable(log, "--tls-key", cfg.TLSKey)
}

// warnAddress warns of an address that other machines can reach.
func warnAddress(log *slog.Logger, flag, addr, why string) {
	if addr != "" && !onThisMachine(addr) {
		log.Warn(why, "flag", flag, "addr", addr)
	}
}

// warnReadable warns of a file with a key or a token, "" for none, that all users can read.
func warnReadable(log *slog.Logger, flag, file string) {
	if file != "" && userfile.OthersMayRead(file) {
		log.Warn("every user of this machine can read a key or token: chmod o-r it", "flag", flag, "file", file)
	}
}

// onThisMachine reports whether an address leads to this machine only: a Unix socket, files, or a
// loopback address.
func onThisMachine(addr string) bool {
	if strings.HasPrefix(addr, "unix:") || strings.HasPrefix(addr, "file:") {
		return true
	}
	for _, scheme := range []string{"http://", "https://", "dns:"} {
		if rest, ok := strings.CutPrefix(addr, scheme); ok {
			rest = strings.TrimLeft(rest, "/")
			addr, _, _ = strings.Cut(rest, "/")
		}
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return ip.IsLoopback()
	}
	return strings.EqualFold(host, "localhost")
}
