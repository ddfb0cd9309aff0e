package jwks

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
)

// metadata are the addresses at which clouds give credentials to whoever asks from within, beside link-local ones.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("100.100.100.200/32"),     // Alibaba
	netip.MustParsePrefix("192.0.0.192/32"),         // Oracle
	netip.MustParsePrefix("168.63.129.16/32"),       // Azure
	netip.MustParsePrefix("fd00:ec2::/32"),          // EC2 (::254) and EKS (::23)
	netip.MustParsePrefix("fd20:ce::254/128"),       // Google
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle
	netip.MustParsePrefix("fd00:42::42/128"),        // Scaleway
	netip.MustParsePrefix("fd00:a9fe:a9fe::/48"),    // Akamai
}

// metadataNames are the names by which clouds call them. A proxy may know a name that is not known here.
var metadataNames = []string{"metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal", "metadata.tencentyun.com", "metadata.platformequinix.com"}

// Ranges of IPv6 within which there are addresses of IPv4.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
	compatible = netip.MustParsePrefix("::/96")          // RFC 4291
	translated = netip.MustParsePrefix("::ffff:0:0:0/96")
)

// embedded returns the addresses of IPv4 that a router, or the machine itself, may take an address of IPv6 for.
func embedded(a netip.Addr) (found []netip.Addr) {
	if a.Is4() {
		return nil
	}
	b := a.As16()
	at := func(i ...int) {
		found = append(found, netip.AddrFrom4([4]byte{b[i[0]], b[i[1]], b[i[2]], b[i[3]]}))
	}
	switch {
	case nat64.Contains(a), compatible.Contains(a), translated.Contains(a):
		at(12, 13, 14, 15)
	case localNAT64.Contains(a):
		// Its operator may have chosen any length of the prefix. Byte 8 is not used (RFC 6052, section 2.2).
		at(6, 7, 9, 10)
		at(7, 9, 10, 11)
		at(9, 10, 11, 12)
		at(12, 13, 14, 15)
	case sixToFour.Contains(a):
		at(2, 3, 4, 5)
	case teredo.Contains(a):
		at(4, 5, 6, 7)
		found = append(found, netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	}
	if id := binary.BigEndian.Uint32(b[8:12]); id&^0x02000000 == 0x5efe { // ISATAP, RFC 5214
		at(12, 13, 14, 15)
	}
	return found
}

// refused returns why keys are not asked for at an address, "" if they may be.
func (g *guard) refused(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	for _, of := range append(embedded(a), a) {
		switch {
		case of.IsLinkLocalUnicast() || slices.ContainsFunc(metadata, func(p netip.Prefix) bool { return p.Contains(of) }):
			return "link-local addresses and those of cloud metadata"
		case g.loopback && of == a:
		case of.IsLoopback() || of == netip.IPv4Unspecified() || a.IsUnspecified():
			return "loopback addresses, unless --jwks-allow-loopback says so"
		}
	}
	return ""
}

// guard asks for what documents name, and what answers lead to, but never at addresses where clouds give credentials to
// whoever asks, nor at loopback addresses, where the control plane and what is beside it may have listeners that trust it.
type guard struct {
	loopback bool
	direct   *http.Transport
	proxied  *http.Transport
	// proxy and lookup are http.ProxyFromEnvironment and those of net.DefaultResolver, but in tests.
	proxy  func(*http.Request) (*url.URL, error)
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Transport returns how keys are asked for whose place documents or issuers name: of no address that refused has, also
// after a redirect. conf is for https; nil for the CAs of the system. loopback allows loopback addresses.
//
// A proxy of the environment is itself at any address. It resolves names by itself: what is resolved here is refused, and
// names that are known to the proxy alone are not, but for those of cloud metadata.
func Transport(conf *tls.Config, loopback bool) http.RoundTripper { return newGuard(conf, loopback) }

func newGuard(conf *tls.Config, loopback bool) *guard {
	g := &guard{loopback: loopback, proxy: http.ProxyFromEnvironment, lookup: net.DefaultResolver.LookupNetIP}
	transport := func(control func(network, address string, _ syscall.RawConn) error) *http.Transport {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.TLSClientConfig = conf.Clone() // which the transport changes
		t.DialContext = (&net.Dialer{Timeout: DefaultTimeout, Control: control}).DialContext
		return t
	}
	g.direct = transport(func(_, address string, _ syscall.RawConn) error {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if why := g.refused(a.Addr()); why != "" {
			return &net.AddrError{Err: "keys are not asked for at " + why, Addr: address}
		}
		return nil
	})
	g.direct.Proxy = nil
	g.proxied = transport(nil)
	g.proxied.Proxy = func(r *http.Request) (*url.URL, error) { return g.proxy(r) }
	return g
}

// RoundTrip makes one request; a client calls it again for each redirect.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	through, err := g.proxy(r)
	if err != nil {
		return nil, err
	}
	if through == nil {
		return g.direct.RoundTrip(r)
	}
	if err := g.proxyMay(r.Context(), r.URL.Hostname()); err != nil {
		return nil, err
	}
	return g.proxied.RoundTrip(r)
}

// proxyMay returns an error if a proxy must not be asked for a host.
func (g *guard) proxyMay(ctx context.Context, host string) error {
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if slices.Contains(metadataNames, name) {
		return fmt.Errorf("%.200s: keys are not asked for at names of cloud metadata", host)
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		// The proxy's own, wherever that is.
		if g.loopback {
			return nil
		}
		return fmt.Errorf("%.200s: keys are not asked for at %s", host, g.refused(netip.IPv6Loopback()))
	}
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(name); err == nil {
		addrs = []netip.Addr{a}
	} else if addrs, err = g.lookup(ctx, "ip", name); err != nil {
		if _, of := errors.AsType[*net.DNSError](err); !of || ctx.Err() != nil {
			return err
		}
	}
	for _, a := range addrs {
		if why := g.refused(a); why != "" {
			return fmt.Errorf("%.200s is %s: keys are not asked for at %s", host, a, why)
		}
	}
	return nil
}
