package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The paths of Endpoints are those of Istio, so that existing probes and scrape configurations work.
const (
	ReadyPath = "/healthz/ready"
	StatsPath = "/stats/prometheus"
)

// endpoint is a listener that exposes one path of the admin interface.
type endpoint struct {
	name, flag, address string
	path, adminPath     string
	timeout             time.Duration
}

func addEndpoints(b *bootstrapv3.Bootstrap, cfg Config) error {
	if !slices.Contains([]Family{V4, V6, Dual}, cfg.Family) {
		return fmt.Errorf("address family %q is none of %s, %s and %s", cfg.Family, V4, V6, Dual)
	}
	for _, e := range []endpoint{
		{ReadyListener, "--ready-listen", cfg.Endpoints.Ready, ReadyPath, "/ready", 5 * time.Second},
		{StatsListener, "--stats-listen", cfg.Endpoints.Stats, StatsPath, "/stats/prometheus", 30 * time.Second}, // 100,000 stats take seconds
	} {
		if e.address == "" {
			continue
		}
		listener, err := e.listener(cfg.Family)
		if err != nil {
			return err
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, listener)
	}
	if len(b.StaticResources.Listeners) == 0 {
		return nil
	}
	admin := proto.CloneOf(b.GetAdmin().GetAddress())
	if admin.GetPipe() != nil {
		admin.GetPipe().Mode = 0 // only the listening side sets the mode
	} else if admin.GetSocketAddress().GetPortValue() == 0 {
		return errors.New("--ready-listen and --stats-listen need a fixed address of Envoy's admin interface: set a port other than 0, or a Unix socket")
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, staticCluster(AdminClusterName, admin))
	return nil
}

func (e endpoint) listener(family Family) (*listenerv3.Listener, error) {
	addresses, err := e.addresses(family)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", e.flag, e.address, err)
	}
	manager, err := e.manager()
	if err != nil {
		return nil, err
	}
	l := &listenerv3.Listener{
		Name:    e.name,
		Address: addresses[0],
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
		}}}},
		// An overloaded Envoy that rejected its probe would be restarted, or its load be moved to the others.
		IgnoreGlobalConnLimit: true,
		BypassOverloadManager: true,
	}
	for _, more := range addresses[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: more})
	}
	return l, nil
}

// addresses returns the addresses that the listener binds to: one or, for every interface of both families, two.
func (e endpoint) addresses(family Family) ([]*corev3.Address, error) {
	host, portText, err := net.SplitHostPort(e.address)
	if err != nil {
		return nil, errors.New("want host:port or :port")
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("port %q is not a number from 1 to 65535", portText)
	}
	if host == "" {
		wildcards := map[Family][]netip.Addr{
			V4: {netip.IPv4Unspecified()}, V6: {netip.IPv6Unspecified()}, Dual: {netip.IPv4Unspecified(), netip.IPv6Unspecified()},
		}
		var addresses []*corev3.Address
		for _, ip := range wildcards[family] {
			addresses = append(addresses, socketAddress(ip, uint32(port)))
		}
		return addresses, nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() != "" {
		return nil, fmt.Errorf("host %q is not an IP address", host)
	}
	ip = ip.Unmap()
	if !family.Has(ip) {
		return nil, fmt.Errorf("host %q is not an address of the family %s", host, family)
	}
	return []*corev3.Address{socketAddress(ip, uint32(port))}, nil
}

// Has reports whether an address belongs to the family.
func (f Family) Has(ip netip.Addr) bool {
	return f == Dual || (f == V6) == ip.Unmap().Is6()
}

func (e endpoint) manager() (*anypb.Any, error) {
	router, err := pack(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	route := &routev3.Route{
		Match: &routev3.RouteMatch{
			PathSpecifier: &routev3.RouteMatch_Path{Path: e.path},
			Headers: []*routev3.HeaderMatcher{{
				Name: ":method",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
					MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "GET|HEAD"}},
				}},
			}},
		},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: AdminClusterName},
			PrefixRewrite:    e.adminPath,
			Timeout:          durationpb.New(e.timeout),
		}},
	}
	return pack(&hcmv3.HttpConnectionManager{
		StatPrefix: e.name,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name:         e.name,
			VirtualHosts: []*routev3.VirtualHost{{Name: e.name, Domains: []string{"*"}, Routes: []*routev3.Route{route}}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router},
		}},
		// Idle connections are closed.
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(2 * time.Minute)},
		RequestHeadersTimeout:     durationpb.New(10 * time.Second),
	})
}

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
