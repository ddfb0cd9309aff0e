package istio

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	meshv1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/agent/probe"
)

// proxyConfigVar is the variable, and the metadata of a Node, that has Istio's ProxyConfig.
const proxyConfigVar = "PROXY_CONFIG"

// WorkloadProbe returns the probe of a workload that registers with a WorkloadGroup: the readinessProbe of the ProxyConfig in
// the metadata of a Node or, if that has none, in the environment; nil for none. As with pilot-agent it is sent to the first
// address of the workload, unless it has a host.
func WorkloadProbe(node *corev3.Node, getenv func(string) string) (*probe.Config, error) {
	config := &meshv1.ProxyConfig{}
	text, err := []byte(nil), error(nil)
	metadata := node.GetMetadata().GetFields()
	if written := metadata[proxyConfigVar]; written != nil {
		text, err = protojson.Marshal(written)
	} else {
		text, err = yaml.YAMLToJSON([]byte(cmp.Or(getenv(proxyConfigVar), "{}")))
	}
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, config)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: want Istio's ProxyConfig: %w", proxyConfigVar, err)
	}
	if config.GetReadinessProbe() == nil {
		return nil, nil
	}
	host, from := probeDestination(metadata["INSTANCE_IPS"].GetStringValue(), getenv)
	cfg, err := probe.FromIstio(config.GetReadinessProbe(), host, from)
	if err != nil {
		return nil, fmt.Errorf("%s: readinessProbe: %w", proxyConfigVar, err)
	}
	return &cfg, nil
}

// probeDestination returns where probes of the workload are sent that have no host, and from which address, so that Envoy does
// not get them: the first of the addresses of a Node, which may be "".
func probeDestination(addresses string, getenv func(string) string) (host string, from netip.Addr) {
	first, _, _ := strings.Cut(addresses, ",")
	addr, err := netip.ParseAddr(cmp.Or(strings.TrimSpace(first), getenv(addressVar)))
	if legacy, _ := strconv.ParseBool(getenv(legacyVar)); legacy || err != nil {
		return "localhost", netip.Addr{}
	}
	addr = addr.Unmap()
	if !addr.IsLoopback() && !hasAddress(addr) {
		return addr.String(), netip.Addr{} // an address that others map to this host
	}
	from = inboundIPv4
	if addr.Is6() {
		if from = inboundIPv6; !hasAddress(from) { // Istio's rules add it
			from = netip.Addr{}
		}
	}
	return addr.String(), from
}

// hasAddress reports whether an interface of this host has an address.
func hasAddress(addr netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, ok := a.(*net.IPNet)
		return ok && prefix.IP.Equal(addr.AsSlice())
	})
}
