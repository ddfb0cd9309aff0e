// Package proxy is who asks: the identity and the properties of a proxy, as its xDS Node says them,
// and the classes of proxies that get the same configuration.
//
// It promises that a Proxy does not change, and that two proxies of one class agree in every
// property that was read to make the configuration of the class (mesh.md M5). It does not check
// that a proxy is who it says it is. A Proxy may be read by several goroutines at once; a View
// belongs to one.
package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Type is the type of a proxy.
type Type string

const (
	// Sidecar is a proxy beside a workload.
	Sidecar Type = "sidecar"
	// Router is a gateway for the Gateways that select its labels.
	Router Type = "router"
	// Ingress is a gateway for Kubernetes Ingresses.
	Ingress Type = "ingress"
)

// Capture is how a sidecar gets its connections.
type Capture string

const (
	// Redirect: iptables sends the connections of the workload to the two virtual listeners.
	Redirect Capture = "REDIRECT"
	// TProxy is like Redirect, with the client's address kept.
	TProxy Capture = "TPROXY"
	// None: the workload connects to the listeners itself.
	None Capture = "NONE"
)

// The metadata of a Node that is read; the names are Istio's.
const (
	metaType           = "TYPE"
	metaNamespace      = "NAMESPACE"
	metaLabels         = "LABELS"
	metaIPs            = "INSTANCE_IPS"
	metaCapture        = "INTERCEPTION_MODE"
	metaServiceAccount = "SERVICE_ACCOUNT"
	metaCluster        = "CLUSTER_ID"
	metaNetwork        = "NETWORK"
	metaDNSDomain      = "DNS_DOMAIN"
	metaHTTPProxyPort  = "HTTP_PROXY_PORT"
	metaIstioVersion   = "ISTIO_VERSION"
	metaUnprivileged   = "UNPRIVILEGED_POD"
	metaVirtualHosts   = "VHDS"
	metaDNSCapture     = "DNS_CAPTURE"
	metaNodeName       = "NODE_NAME"
	metaGenerator      = "GENERATOR"
	metaNetworkView    = "REQUESTED_NETWORK_VIEW"
	metaMeshID         = "MESH_ID"
	metaProxyConfig    = "PROXY_CONFIG"
	metaWorkloadName   = "WORKLOAD_NAME"
	metaAutoRegister   = "AUTO_REGISTER_GROUP"
	metaStatusPort     = "ENVOY_STATUS_PORT"
	metaStatsPort      = "ENVOY_PROMETHEUS_PORT"
)

// DefaultNamespace is the namespace of a node that names none.
const DefaultNamespace = "default"

// Proxy is a proxy that asks for configuration.
type Proxy struct {
	// Node is the id of its Node; Name is the part of it that names the workload.
	Node, Name     string
	Type           Type
	Namespace      string
	IPs            []netip.Addr // never empty
	DNSDomain      string       // "default.svc.cluster.local"
	Labels         map[string]string
	ServiceAccount string
	Capture        Capture
	Cluster        string
	Network        string
	// NetworkView are the networks whose endpoints it wants, as a list with commas; "" for all. Endpoints
	// without a network are always among them.
	NetworkView string
	Locality    *corev3.Locality
	// HTTPProxyPort is the port of the HTTP proxy that applications may use; 0 for the mesh's.
	HTTPProxyPort uint32
	// StatusPort and StatsPort are those of listeners for readiness and metrics that the bootstrap has; 0 for none.
	StatusPort, StatsPort uint32
	// PilotAgent says that Istio's agent made the bootstrap: secrets come from its cluster sds-grpc,
	// and not over the stream of everything else.
	PilotAgent bool
	// Authenticated says that Namespace and ServiceAccount are those of the proxy's certificate or token. TrustDomain is
	// that of its identity then, and "" otherwise.
	Authenticated bool
	TrustDomain   string
	// Targets are the ports of services that the workload serves, in the order of TargetPort. The
	// Node does not say them.
	Targets []Target
	// VirtualHosts says that the proxy gets the virtual hosts of its routes one by one (VHDS).
	VirtualHosts bool
	// Unprivileged says that the proxy cannot listen on ports below 1024.
	Unprivileged bool
	// DNSCapture says that a DNS proxy beside it gives the workload the automatic addresses of services.
	DNSCapture bool
	// NodeName is the Kubernetes node on which it runs; "" for none.
	NodeName string
	// Proxyless says that it is a program with gRPC, which does itself what a sidecar would.
	Proxyless bool
	// Version is the version of Istio's proxy; "" for none.
	Version string
	// Metadata are the texts in the metadata of its Node, at most maxText bytes long.
	Metadata map[string]string
	// AutoRegisterGroup is the WorkloadGroup of which the workload is a member while the proxy is connected; "" for none.
	AutoRegisterGroup string
	// HasReadinessProbe says that its ProxyConfig has a readinessProbe: its agent reports the health of the workload.
	HasReadinessProbe bool
	// GivenLabels are the labels that the Node has, without those that say where it is.
	GivenLabels map[string]string
	// Observed is what access logs and traces say of the proxy.
	Observed
	// Own is the part of its ProxyConfig that generation reads, which takes the place of the mesh's; nil for none.
	Own *OwnConfig
}

// FromNode reads a Node: one of Istio, whose id is TYPE~IP~NAME.NAMESPACE~DNSDOMAIN, or a plain one,
// whose id is any name. Of a plain node metadata says what it is; the addresses are INSTANCE_IPS, or
// 127.0.0.1, and the capture mode is None unless INTERCEPTION_MODE is set. The error says which part
// of the Node is wrong.
func FromNode(node *corev3.Node) (*Proxy, error) {
	meta := node.GetMetadata()
	if err := checkTexts(node); err != nil {
		return nil, err
	}
	p := &Proxy{
		Node: node.GetId(), Name: node.GetId(), Type: Sidecar, Capture: None,
		Namespace:      DefaultNamespace,
		Labels:         labels(meta.GetFields()[metaLabels].GetStructValue()),
		ServiceAccount: text(meta, metaServiceAccount),
		Cluster:        text(meta, metaCluster),
		Network:        text(meta, metaNetwork),
		NetworkView:    text(meta, metaNetworkView),
		PilotAgent:     text(meta, metaIstioVersion) != "",
		Unprivileged:   truth(meta, metaUnprivileged),
		VirtualHosts:   truth(meta, metaVirtualHosts) && isSince(node, 37), // older ones do not have them over ADS
		DNSCapture:     truth(meta, metaDNSCapture),
		NodeName:       text(meta, metaNodeName),
		Proxyless:      text(meta, metaGenerator) == "grpc",
		Version:        text(meta, metaIstioVersion),
		Metadata:       texts(meta),

		AutoRegisterGroup: text(meta, metaAutoRegister),
		HasReadinessProbe: meta.GetFields()[metaProxyConfig].GetStructValue().GetFields()["readinessProbe"].GetStructValue() != nil,
		GivenLabels:       labels(meta.GetFields()[metaLabels].GetStructValue()),
	}
	var err error
	if p.Own, err = ownConfig(meta.GetFields()[metaProxyConfig]); err != nil {
		return nil, fmt.Errorf("node %q: %s: %w", p.Node, metaProxyConfig, err)
	}
	p.locate(node.GetLocality())
	addresses := text(meta, metaIPs)
	if parts := strings.Split(node.GetId(), "~"); len(parts) == 4 {
		p.Type, p.Name, p.DNSDomain, p.Capture = Type(parts[0]), parts[2], parts[3], Redirect
		if addresses == "" {
			addresses = parts[1]
		}
		if name, namespace, ok := strings.Cut(parts[2], "."); ok {
			p.Name, p.Namespace = name, namespace
		}
	}
	if err := p.override(meta); err != nil {
		return nil, err
	}
	for address := range strings.SplitSeq(addresses, ",") {
		if address = strings.TrimSpace(address); address == "" {
			continue
		}
		ip, err := netip.ParseAddr(address)
		if err != nil {
			return nil, fmt.Errorf("node %q: %q in %s or in the id is no IP address", p.Node, address, metaIPs)
		}
		p.IPs = append(p.IPs, ip.Unmap())
	}
	if len(p.IPs) == 0 {
		p.IPs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	if p.DNSDomain == "" {
		p.DNSDomain = p.Namespace + ".svc.cluster.local"
	}
	p.Observed = observed(node, p)
	return p, nil
}

// override applies the metadata that takes precedence over the id.
func (p *Proxy) override(meta *structpb.Struct) error {
	if s := text(meta, metaType); s != "" {
		p.Type = Type(s)
	}
	if s := text(meta, metaNamespace); s != "" {
		p.Namespace = s
	}
	if s := text(meta, metaCapture); s != "" {
		p.Capture = Capture(s)
	}
	if s := text(meta, metaDNSDomain); s != "" {
		p.DNSDomain = s
	}
	for key, port := range map[string]*uint32{metaHTTPProxyPort: &p.HTTPProxyPort, metaStatusPort: &p.StatusPort, metaStatsPort: &p.StatsPort} {
		if s := text(meta, key); s != "" {
			number, err := strconv.ParseUint(s, 10, 16)
			if err != nil {
				return fmt.Errorf("node %q: %s %q is no port", p.Node, key, s)
			}
			*port = uint32(number)
		}
	}
	if p.Type != Sidecar && p.Type != Router && p.Type != Ingress {
		return fmt.Errorf("node %q: the type %q is not sidecar, router or ingress", p.Node, p.Type)
	}
	if p.Type != Sidecar {
		p.Capture, p.Proxyless = None, false
	}
	if p.Capture != Redirect && p.Capture != TProxy && p.Capture != None {
		return fmt.Errorf("node %q: %s %q is not REDIRECT, TPROXY or NONE", p.Node, metaCapture, p.Capture)
	}
	return nil
}

// Labels that say where a proxy runs.
const (
	labelRegion   = "topology.kubernetes.io/region"
	labelZone     = "topology.kubernetes.io/zone"
	labelSubzone  = "topology.istio.io/subzone"
	labelCluster  = "topology.istio.io/cluster"
	labelNetwork  = "topology.istio.io/network"
	labelHostname = "kubernetes.io/hostname"
)

// locate sets where the proxy runs: as its labels say or, if they do not, as its Node says. As in
// Istio, the labels then say it too, so that rules may select by it.
func (p *Proxy) locate(locality *corev3.Locality) {
	p.Locality = locality
	if p.Labels[labelRegion]+p.Labels[labelZone]+p.Labels[labelSubzone] != "" {
		p.Locality = &corev3.Locality{Region: p.Labels[labelRegion], Zone: p.Labels[labelZone], SubZone: p.Labels[labelSubzone]}
	} else if name := service.LabelledLocality(p.Labels); name != "" {
		region, rest, _ := strings.Cut(name, "/")
		zone, subzone, _ := strings.Cut(rest, "/")
		p.Locality = &corev3.Locality{Region: region, Zone: zone, SubZone: subzone}
	}
	for label, value := range map[string]string{
		labelRegion: p.Locality.GetRegion(), labelZone: p.Locality.GetZone(), labelSubzone: p.Locality.GetSubZone(),
		labelCluster: p.Cluster, labelHostname: p.NodeName,
	} {
		if value != "" {
			p.Labels[label] = value
		}
	}
	if p.Network != "" && p.Labels[labelNetwork] == "" {
		p.Labels[labelNetwork] = p.Network
	}
}

// truth reports whether a metadata value is true, as a boolean or as text.
func truth(meta *structpb.Struct, key string) bool {
	return text(meta, key) == "true" || meta.GetFields()[key].GetBoolValue()
}

// text returns a metadata value that is a string or a number; "" for none.
func text(meta *structpb.Struct, key string) string {
	switch v := meta.GetFields()[key].GetKind().(type) {
	case *structpb.Value_StringValue:
		return v.StringValue
	case *structpb.Value_NumberValue:
		return strconv.FormatFloat(v.NumberValue, 'f', -1, 64)
	}
	return ""
}

// texts returns the metadata values that are strings and not too long.
func texts(meta *structpb.Struct) map[string]string {
	out := make(map[string]string)
	for key, value := range meta.GetFields() {
		if s, ok := value.GetKind().(*structpb.Value_StringValue); ok && len(key) <= maxText && len(s.StringValue) <= maxText {
			out[key] = s.StringValue
		}
	}
	return out
}

// maxText is the length of the longest id and value of metadata that is accepted, in bytes.
const maxText = 1024

// checkTexts checks that the texts of a Node, which are logged and shown, are short and printable.
func checkTexts(node *corev3.Node) error {
	check := func(what, value string) error {
		if len(value) > maxText || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return fmt.Errorf("%s is not at most %d bytes of printable characters", what, maxText)
		}
		return nil
	}
	if err := check("the id of the node", node.GetId()); err != nil {
		return err
	}
	if err := check(fmt.Sprintf("node %q: its cluster", node.GetId()), node.GetCluster()); err != nil {
		return err
	}
	for _, key := range []string{metaType, metaNamespace, metaIPs, metaCapture, metaServiceAccount, metaCluster, metaNetwork, metaDNSDomain, metaNodeName, metaNetworkView, metaMeshID, metaWorkloadName, metaAutoRegister} {
		if err := check(fmt.Sprintf("node %q: %s", node.GetId(), key), text(node.GetMetadata(), key)); err != nil {
			return err
		}
	}
	return nil
}

// isSince reports whether a proxy is Envoy 1.MINOR or newer; one that does not say what it is counts as new.
func isSince(node *corev3.Node, minor uint32) bool {
	v := node.GetUserAgentBuildVersion().GetVersion()
	return v == nil || v.GetMajorNumber() > 1 || v.GetMinorNumber() >= minor
}

func labels(s *structpb.Struct) map[string]string {
	out := make(map[string]string, len(s.GetFields()))
	for key, value := range s.GetFields() {
		out[key] = value.GetStringValue()
	}
	return out
}

// Target is a port of a service, and the port on which the workload serves it.
type Target struct {
	Service *service.Service
	service.Port
	TargetPort uint32
}

// WithTargets returns a copy of the proxy with other targets.
func (p *Proxy) WithTargets(targets []Target) *Proxy {
	q := *p
	q.Targets = slices.SortedFunc(slices.Values(targets), func(a, b Target) int {
		return cmp.Or(cmp.Compare(a.TargetPort, b.TargetPort), a.Service.Age.Compare(b.Service.Age),
			cmp.Compare(a.Service.Hostname, b.Service.Hostname), cmp.Compare(a.Number, b.Number))
	})
	return &q
}

// tlsModeLabel marks the workloads that have a certificate of the mesh, as in Istio.
const tlsModeLabel = "security.istio.io/tlsMode"

// meshTLS reports whether the proxy has a certificate of the mesh.
func (p *Proxy) meshTLS() bool { return p.PilotAgent || p.Labels[tlsModeLabel] == "istio" }

// Families says which address families a proxy has.
type Families uint8

const (
	IPv4 Families = 1 << iota
	IPv6
	DualStack = IPv4 | IPv6
)

// families returns the address families of the proxy.
func (p *Proxy) families() (f Families) {
	for _, ip := range p.IPs {
		if ip.Is4() {
			f |= IPv4
		} else {
			f |= IPv6
		}
	}
	return f
}

// Selects reports whether a selector selects labels: all of its pairs are there. An empty selector
// selects everything.
func Selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// canonical returns a selector as a string, the same for the same pairs.
func canonical(selector map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		fmt.Fprintf(&b, "%q=%q,", key, selector[key])
	}
	return b.String()
}
