package main

import (
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/sds/keystore"
)

// warnExposed warns, once at the start, of what others can read or reach, by the flags that
// make it so.
func (f *runFlags) warnExposed(log *slog.Logger) {
	var open []string // upstreams that are spoken to in the clear, over a network
	for _, addr := range f.upstreams {
		if f.security.Plaintext && !onThisMachine(addr) {
			open = append(open, addr)
		}
	}
	if len(open) > 0 {
		log.Warn("everything that the control plane sends can be read and changed on the way: leave out --upstream-plaintext, unless the way is private", "upstreams", strings.Join(open, ", "))
		if credentials := f.credentials(); len(credentials) > 0 {
			log.Warn("credentials are sent in the clear: leave out --upstream-plaintext, unless the way is private",
				"credentials", strings.Join(credentials, ", "), "upstreams", strings.Join(open, ", "))
		}
	}
	warnAddress(log, "--admin", f.admin, "the status and all resources (dump) can be read by whoever reaches this address: use unix:PATH, or an address of loopback")
	warnAddress(log, "--rest", f.rest, "the configuration can be read, in the clear, by whoever reaches this address: use an address of loopback, or the socket")
	warnReadable(log, "--upstream-key", f.security.Key)
	warnReadable(log, "--upstream-token-file", f.security.TokenFile)
	if dir := f.certificates.identityDir; dir != "" {
		kept, _ := filepath.Glob(filepath.Join(dir, "*", keystore.KeyFile)) // the pattern is well formed
		below, _ := filepath.Glob(filepath.Join(dir, keystore.Sub, "*", keystore.KeyFile))
		for _, key := range append(kept, below...) {
			warnReadable(log, "--identity-dir", key)
		}
	}
	for _, source := range append(moreSources{&f.certificates.sourceFlags}, f.certificates.more...) {
		warnReadable(log, "--istio-key", source.security.Key)
		warnReadable(log, "--istio-token-file", source.security.TokenFile)
		if dir, ok := strings.CutPrefix(source.ca, "dir:"); ok {
			for _, key := range []string{"ca-key.pem", "tls.key"} { // as in package sds/local
				warnReadable(log, "--ca", filepath.Join(dir, key))
			}
		}
	}
}

// credentials returns what proves to an upstream who the agent is.
func (f *runFlags) credentials() []string {
	var found []string
	if f.security.TokenFile != "" {
		found = append(found, "--upstream-token-file")
	}
	for _, name := range slices.Sorted(maps.Keys(f.headers)) {
		if isCredential(name) {
			found = append(found, "--upstream-header "+name)
		}
	}
	return found
}

// isCredential reports whether the name of a header says that its value is a secret.
func isCredential(name string) bool {
	name = strings.ToLower(name)
	for _, part := range []string{"auth", "cookie", "token", "secret", "password", "api-key", "apikey", "credential"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// warnExposed warns of what is open to others.
func (f *controlPlaneFlags) warnExposed(log *slog.Logger) {
	if f.tlsCert == "" {
		warnAddress(log, "--listen", f.listen, "the resources can be read, in the clear, by whoever reaches this address: give --tls-cert and --tls-key, and --tls-client-ca to know the clients")
	}
	warnAddress(log, "--admin", f.admin, "the status and all resources (dump) can be read by whoever reaches this address: use unix:PATH, or an address of loopback")
	warnReadable(log, "--tls-key", f.tlsKey)
}

// warnAddress warns of an address that others than this machine's processes reach.
func warnAddress(log *slog.Logger, flag, addr, why string) {
	if addr != "" && !onThisMachine(addr) {
		log.Warn(why, "flag", flag, "addr", addr)
	}
}

// warnReadable warns of a file with a key or a token, "" for none, that every user of the
// machine may read.
func warnReadable(log *slog.Logger, flag, file string) {
	if file != "" && userfile.OthersMayRead(file) {
		log.Warn("every user of this machine may read a key or token: chmod o-r it", "flag", flag, "file", file)
	}
}

// onThisMachine reports whether only processes of this machine are at the other end of an
// address: a Unix socket, files, or one of loopback.
func onThisMachine(addr string) bool {
	for _, scheme := range []string{"unix:", "file:"} {
		if strings.HasPrefix(addr, scheme) {
			return true
		}
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
