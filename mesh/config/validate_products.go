package config

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	networkingv1 "k8s.io/api/networking/v1"
)

// The bounds of what one document makes (docs/mesh.md, "How much one document may make"). Lists of a document are multiplied: each host of a
// VirtualService has each of its matches, so that a document of some kilobytes could make gigabytes of configuration, for every
// proxy that sees it. At these bounds the configuration of a class of proxies takes some 100 MB and a second while it is made.
const (
	// MaxRoutes bounds the routes and filter chains of a VirtualService or an Ingress, each for one host and one match.
	MaxRoutes = 50_000
	// MaxClusters bounds the clusters of a ServiceEntry or a DestinationRule, each of one host, port and subset.
	MaxClusters = 20_000
	// MaxParts bounds the small parts of these: endpoints, addresses, destinations, names.
	MaxParts = 500_000
	// MaxBytes bounds what is copied into routes, clusters or listeners, in bytes.
	MaxBytes = 32 << 20
	// MaxJoined bounds the routes and filter chains that a VirtualService makes together with other documents: with delegates, with the services for
	// which it stands, at their ports, and with the servers of a Gateway. What exceeds it is left out.
	MaxJoined = 100_000
	// MaxImported bounds the services, routes and filter chains that the listeners of a Sidecar with ports of their own have together.
	MaxImported = 200_000
	// MaxSelecting bounds the clusters of a ServiceEntry that selects workloads: each of these is an endpoint of each of them, and a change of
	// a workload is one of all.
	MaxSelecting = 1000
	// MaxCompared bounds the pairs of hosts of a Gateway and of a VirtualService that are compared.
	MaxCompared = 4_000_000
	// MaxCopied bounds a document that is copied into each listener of a proxy, in bytes.
	MaxCopied = 1 << 20
	// MaxPatches bounds the patches of an EnvoyFilter, each of which is compared with each resource of a proxy.
	MaxPatches = 500
	// MaxExpression bounds an expression of a Telemetry, which is copied into each filter chain, in bytes.
	MaxExpression = 16 << 10
	// MaxEgress bounds the listeners of a Sidecar in one direction, and MaxHosts the hosts of a Sidecar or a Gateway.
	MaxEgress = 500
	MaxHosts  = 20_000
)

// factor is the length of a list of a document, or what several lists have together.
type factor struct {
	count int
	what  string // "hosts"
}

// product adds an error if the product of some counts is larger than a bound. makes is what there would be, such as "routes". The first product that
// is too large is told alone: the others follow from the same lists.
func (k *checker) product(at *path, limit int, makes string, factors ...factor) {
	if k.failed() {
		return
	}
	total := 1
	var parts []string
	for _, f := range factors {
		total = times(total, max(f.count, 1))
		if f.count > 1 || len(factors) == 1 {
			parts = append(parts, fmt.Sprintf("%d %s", f.count, f.what))
		}
	}
	if total > limit {
		k.errorf(at, "%s make %d %s, and at most %d are allowed: divide the document", strings.Join(parts, " for each of "), total, makes, limit)
	}
}

// times returns a product of two positive numbers, or a number that is above each bound.
func times(a, b int) int {
	const most = math.MaxInt32
	if a > most/b {
		return most
	}
	return a * b
}

// atMostBytes adds an error if something has more bytes than a bound, as product.
func (k *checker) atMostBytes(at *path, limit, size int, what string) {
	if size > limit && !k.failed() {
		k.errorf(at, "%s make more than %d bytes, which are allowed: divide the document", what, limit)
	}
}

// products checks how much a document makes by itself, in a time that grows as the document.
func (k *checker) products() {
	root := &path{name: "spec"}
	switch spec := k.config.Spec.(type) {
	case *networking.VirtualService:
		k.virtualServiceProducts(root, spec)
	case *networking.ServiceEntry:
		k.serviceEntryProducts(root, spec)
	case *networking.DestinationRule:
		k.destinationRuleProducts(root, spec)
	case *networking.Gateway:
		k.product(root.field("servers"), MaxHosts, "hosts of servers", factor{HostsOf(spec), "hosts"})
	case *networking.Sidecar:
		hosts := 0
		for _, e := range spec.Egress {
			hosts += len(e.GetHosts())
		}
		k.product(root.field("egress"), MaxEgress, "listeners", factor{len(spec.Egress), "elements"})
		k.product(root.field("egress"), MaxHosts, "hosts of listeners", factor{hosts, "hosts"})
		k.product(root.field("ingress"), MaxEgress, "listeners", factor{len(spec.Ingress), "elements"})
	case *networkingv1.Ingress:
		k.ingressProducts(root, spec)
	case *security.AuthorizationPolicy:
		k.atMostBytes(root, MaxCopied, proto.Size(spec), "the rules, which each listener has,")
	case *security.RequestAuthentication:
		k.atMostBytes(root, MaxCopied, proto.Size(spec), "the rules, which each listener has,")
	case *networking.EnvoyFilter:
		k.product(root.field("configPatches"), MaxPatches, "patches", factor{len(spec.ConfigPatches), "elements"})
		k.atMostBytes(root, MaxCopied, proto.Size(spec), "the patches, which each resource may have,")
	case *telemetry.Telemetry:
		k.telemetryProducts(root, spec)
	}
}

// MatchesOf returns how many routes a route of HTTP makes for each host: one for each of its matches.
func MatchesOf(route *networking.HTTPRoute) int { return max(1, len(route.GetMatch())) }

// RoutesOf returns how many routes of HTTP a VirtualService makes for each host of its own, without its delegates.
func RoutesOf(spec *networking.VirtualService) (n int) {
	for _, route := range spec.GetHttp() {
		if route.GetDelegate() == nil {
			n += MatchesOf(route)
		}
	}
	return n
}

// ChainsOf returns how many filter chains the routes of TLS and TCP of a VirtualService make for each service.
func ChainsOf(spec *networking.VirtualService) (n int) {
	for _, route := range spec.GetTls() {
		n += len(route.GetMatch())
	}
	for _, route := range spec.GetTcp() {
		n += max(1, len(route.GetMatch()))
	}
	return n
}

func (k *checker) virtualServiceProducts(root *path, spec *networking.VirtualService) {
	hosts := factor{len(spec.Hosts), "hosts"}
	k.product(root.field("hosts"), MaxParts, "hosts of gateways", hosts, factor{len(spec.Gateways), "gateways"})
	at := root.field("http")
	matches, destinations, size := 0, 0, 0
	for _, route := range spec.Http {
		n := MatchesOf(route)
		own, ofMatches := sizesOf(route)
		matches += n
		destinations += n * (len(route.GetRoute()) + len(route.GetMirrors()))
		size += n*own + ofMatches
	}
	k.product(at, MaxRoutes, "routes", factor{matches, "matches"}, hosts)
	k.product(at, MaxParts, "destinations of routes", factor{destinations, "destinations of matches"}, hosts)
	k.atMostBytes(at, MaxBytes, times(max(1, size), max(1, hosts.count)), fmt.Sprintf("its routes, for each of %d matches and %d hosts,", matches, hosts.count))
	at = root.field("tls")
	chains, points := 0, 0
	for i, route := range spec.Tls {
		for j, m := range route.GetMatch() {
			of := len(m.GetSniHosts()) * max(1, len(m.GetDestinationSubnets()))
			k.product(at.at(i).field("match").at(j), MaxRoutes, "matches of connections", factor{len(m.GetSniHosts()), "sniHosts"}, factor{len(m.GetDestinationSubnets()), "destinationSubnets"})
			points += of
			chains += max(1, len(route.GetRoute()))
		}
	}
	k.product(at, MaxRoutes, "matches of connections", factor{points, "sniHosts and destinationSubnets"})
	k.product(at, MaxRoutes, "filter chains", factor{chains, "destinations of matches"}, hosts)
	k.product(at, MaxParts, "matches of connections", factor{points, "sniHosts and destinationSubnets"}, hosts)
	at = root.field("tcp")
	chains, points = 0, 0
	for _, route := range spec.Tcp {
		chains += max(1, len(route.GetMatch())) * max(1, len(route.GetRoute()))
		for _, m := range route.GetMatch() {
			points += max(1, len(m.GetDestinationSubnets()))
		}
	}
	k.product(at, MaxRoutes, "filter chains", factor{chains, "destinations of matches"}, hosts)
	k.product(at, MaxParts, "matches of connections", factor{points, "destinationSubnets"}, hosts)
}

func (k *checker) serviceEntryProducts(root *path, spec *networking.ServiceEntry) {
	hosts, ports := factor{len(spec.Hosts), "hosts"}, factor{len(spec.Ports), "ports"}
	k.product(root.field("ports"), MaxClusters, "clusters", ports, hosts)
	if spec.WorkloadSelector != nil {
		k.product(root.field("ports"), MaxSelecting, "clusters of workloads that it selects", ports, hosts)
	}
	k.product(root.field("endpoints"), MaxParts, "endpoints of clusters", factor{len(spec.Endpoints), "endpoints"}, ports, hosts)
	k.product(root.field("addresses"), MaxParts, "addresses of listeners", factor{len(spec.Addresses), "addresses"}, ports, hosts)
	k.product(root.field("subjectAltNames"), MaxParts, "names of clusters", factor{len(spec.SubjectAltNames), "subjectAltNames"}, ports, hosts)
	k.product(root.field("exportTo"), MaxParts, "namespaces of services", factor{len(spec.ExportTo), "namespaces"}, hosts)
}

func (k *checker) destinationRuleProducts(root *path, spec *networking.DestinationRule) {
	clusters := factor{1 + len(spec.Subsets), "clusters of a port"}
	k.product(root.field("subsets"), MaxClusters, "clusters of a port", factor{len(spec.Subsets), "subsets"})
	k.product(root.fields("trafficPolicy.portLevelSettings"), MaxParts, "settings of clusters", factor{len(spec.GetTrafficPolicy().GetPortLevelSettings()), "portLevelSettings"}, clusters)
	// Each cluster has the settings of one port, or those of all.
	size, ports := proto.Size(spec.GetTrafficPolicy()), 0
	for _, port := range spec.GetTrafficPolicy().GetPortLevelSettings() {
		size, ports = size-proto.Size(port), max(ports, proto.Size(port))
	}
	k.atMostBytes(root.field("trafficPolicy"), MaxBytes, times(max(1, size, ports), clusters.count), fmt.Sprintf("its settings, for each of %d clusters of a port,", clusters.count))
}

// wildIngress returns what an Ingress has that meets the hosts of other Ingresses, too: the paths without a host or of a wildcard, and the hosts of
// TLS.
func wildIngress(spec *networkingv1.Ingress) (paths, hosts int) {
	for _, rule := range spec.Spec.Rules {
		if rule.HTTP != nil && (rule.Host == "" || strings.HasPrefix(rule.Host, "*")) {
			paths += len(rule.HTTP.Paths)
		}
	}
	if spec.Spec.DefaultBackend != nil {
		paths++
	}
	for _, tls := range spec.Spec.TLS {
		if tls.SecretName != "" {
			hosts += max(1, len(tls.Hosts))
		}
	}
	return paths, hosts
}

func (k *checker) ingressProducts(root *path, spec *networkingv1.Ingress) {
	paths, hosts := wildIngress(spec)
	k.product(root.field("rules"), MaxRoutes, "routes", factor{paths, "paths without a host, or of a wildcard,"}, factor{hosts, "hosts of tls"})
}

func (k *checker) telemetryProducts(root *path, spec *telemetry.Telemetry) {
	k.atMostBytes(root, MaxCopied, proto.Size(spec), "what it says, which each listener has,")
	for i, logging := range spec.AccessLogging {
		at := root.field("accessLogging").at(i).fields("filter.expression")
		if n := len(logging.GetFilter().GetExpression()); n > MaxExpression {
			k.errorf(at, "must be at most %d bytes long, because each filter chain has it, and has %d", MaxExpression, n)
		}
	}
}
