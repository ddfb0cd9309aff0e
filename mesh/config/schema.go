package config

import (
	"fmt"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/internal/nearest"
)

// The ConfigMap whose keys "mesh" and "meshNetworks" are the mesh configuration and its networks.
const (
	RootNamespace = "istio-system"
	MeshName      = "istio"
)

// DefaultNamespace is the namespace of a document that does not name one.
const DefaultNamespace = "default"

// Schema describes a kind.
type Schema struct {
	Kind Kind
	// Group is the API group, "" for the core group; Versions are those that are accepted. All
	// versions of a kind have the same fields.
	Group    string
	Versions []string
	// Plural is the name of the kind in the paths of the Kubernetes API, such as "virtualservices".
	Plural     string
	Namespaced bool
	// New returns an empty Spec: a proto message for Istio's kinds, the whole object for those of
	// Kubernetes.
	New func() any

	// validate checks a document whose Spec has the type of New.
	validate func(*checker)
}

var (
	istioNetworking = []string{"v1", "v1beta1", "v1alpha3"}
	istioSecurity   = []string{"v1", "v1beta1"}
	istioTelemetry  = []string{"v1", "v1alpha1"}
	onlyV1          = []string{"v1"}
)

// gatewayAPI is the group of the Gateway API.
const gatewayAPI = "gateway.networking.k8s.io"

// Schemas has every kind that is read. It must not be changed.
var Schemas = []Schema{
	{ServiceEntry, "networking.istio.io", istioNetworking, "serviceentries", true, func() any { return &networking.ServiceEntry{} }, typed(validateServiceEntry)},
	{WorkloadEntry, "networking.istio.io", istioNetworking, "workloadentries", true, func() any { return &networking.WorkloadEntry{} }, typed(validateWorkloadEntry)},
	{VirtualService, "networking.istio.io", istioNetworking, "virtualservices", true, func() any { return &networking.VirtualService{} }, typed(validateVirtualService)},
	{DestinationRule, "networking.istio.io", istioNetworking, "destinationrules", true, func() any { return &networking.DestinationRule{} }, typed(validateDestinationRule)},
	{Gateway, "networking.istio.io", istioNetworking, "gateways", true, func() any { return &networking.Gateway{} }, typed(validateGateway)},
	{Sidecar, "networking.istio.io", istioNetworking, "sidecars", true, func() any { return &networking.Sidecar{} }, typed(validateSidecar)},
	{PeerAuthentication, "security.istio.io", istioSecurity, "peerauthentications", true, func() any { return &security.PeerAuthentication{} }, typed(validatePeerAuthentication)},
	{RequestAuthentication, "security.istio.io", istioSecurity, "requestauthentications", true, func() any { return &security.RequestAuthentication{} }, typed(validateRequestAuthentication)},
	{AuthorizationPolicy, "security.istio.io", istioSecurity, "authorizationpolicies", true, func() any { return &security.AuthorizationPolicy{} }, typed(validateAuthorizationPolicy)},
	{EnvoyFilter, "networking.istio.io", []string{"v1alpha3"}, "envoyfilters", true, func() any { return &networking.EnvoyFilter{} }, typed(validateEnvoyFilter)},
	{Telemetry, "telemetry.istio.io", istioTelemetry, "telemetries", true, func() any { return &telemetry.Telemetry{} }, typed(validateTelemetry)},
	{WorkloadGroup, "networking.istio.io", istioNetworking, "workloadgroups", true, func() any { return &networking.WorkloadGroup{} }, typed(validateWorkloadGroup)},
	{ProxyConfig, "networking.istio.io", []string{"v1beta1"}, "proxyconfigs", true, func() any { return &networkingv1beta1.ProxyConfig{} }, typed(validateProxyConfig)},
	{Service, "", onlyV1, "services", true, func() any { return &corev1.Service{} }, typed(validateService)},
	{EndpointSlice, "discovery.k8s.io", onlyV1, "endpointslices", true, func() any { return &discoveryv1.EndpointSlice{} }, typed(validateEndpointSlice)},
	{Pod, "", onlyV1, "pods", true, func() any { return &corev1.Pod{} }, typed(validatePod)},
	{Namespace, "", onlyV1, "namespaces", false, func() any { return &corev1.Namespace{} }, typed(validateNamespace)},
	{Node, "", onlyV1, "nodes", false, func() any { return &corev1.Node{} }, typed(validateNode)},
	{Secret, "", onlyV1, "secrets", true, func() any { return &corev1.Secret{} }, typed(validateSecret)},
	{Ingress, "networking.k8s.io", onlyV1, "ingresses", true, func() any { return &networkingv1.Ingress{} }, typed(validateIngress)},
	{ConfigMap, "", onlyV1, "configmaps", true, func() any { return &corev1.ConfigMap{} }, typed(validateConfigMap)},
	{GatewayClass, gatewayAPI, []string{"v1", "v1beta1"}, "gatewayclasses", false, func() any { return &gatewayv1.GatewayClass{} }, typed(validateGatewayClass)},
	{KubernetesGateway, gatewayAPI, []string{"v1", "v1beta1"}, "gateways", true, func() any { return &gatewayv1.Gateway{} }, typed(validateKubernetesGateway)},
	{HTTPRoute, gatewayAPI, []string{"v1", "v1beta1"}, "httproutes", true, func() any { return &gatewayv1.HTTPRoute{} }, typed(validateHTTPRoute)},
	{GRPCRoute, gatewayAPI, []string{"v1", "v1alpha2"}, "grpcroutes", true, func() any { return &gatewayv1.GRPCRoute{} }, typed(validateGRPCRoute)},
	{TLSRoute, gatewayAPI, []string{"v1", "v1alpha3", "v1alpha2"}, "tlsroutes", true, func() any { return &gatewayv1.TLSRoute{} }, typed(validateTLSRoute)},
	{TCPRoute, gatewayAPI, []string{"v1", "v1alpha2"}, "tcproutes", true, func() any { return &gatewayv1.TCPRoute{} }, typed(validateTCPRoute)},
	{ReferenceGrant, gatewayAPI, []string{"v1", "v1beta1", "v1alpha2"}, "referencegrants", true, func() any { return &gatewayv1.ReferenceGrant{} }, typed(validateReferenceGrant)},
	{BackendTLSPolicy, gatewayAPI, []string{"v1", "v1alpha3"}, "backendtlspolicies", true, func() any { return &gatewayv1.BackendTLSPolicy{} }, typed(validateBackendTLSPolicy)},
	{MeshConfig, "mesh.istio.io", []string{"v1alpha1"}, "meshconfigs", true, func() any { return &meshv1alpha1.MeshConfig{} }, typed(validateMeshConfig)},
	{MeshNetworks, "mesh.istio.io", []string{"v1alpha1"}, "meshnetworks", true, func() any { return &meshv1alpha1.MeshNetworks{} }, typed(validateMeshNetworks)},
}

// typed makes a validation of a Spec of a type.
func typed[T any](validate func(*checker, T)) func(*checker) {
	return func(k *checker) {
		spec, ok := k.config.Spec.(T)
		if !ok {
			k.errorf(nil, "its content has the type %T", k.config.Spec)
			return
		}
		validate(k, spec)
	}
}

// SchemaOf returns the schema of a kind, nil if the kind is not read.
func SchemaOf(kind Kind) *Schema {
	if i := slices.IndexFunc(Schemas, func(s Schema) bool { return s.Kind == kind }); i >= 0 {
		return &Schemas[i]
	}
	return nil
}

// abbreviations are the short names of kinds that their CustomResourceDefinitions, and Kubernetes, give them.
var abbreviations = map[Kind]string{
	VirtualService: "vs", DestinationRule: "dr", ServiceEntry: "se", Gateway: "gw", WorkloadEntry: "we", WorkloadGroup: "wg",
	AuthorizationPolicy: "ap", PeerAuthentication: "pa", RequestAuthentication: "ra",
	KubernetesGateway: "gtw", GatewayClass: "gc", ReferenceGrant: "refgrant", BackendTLSPolicy: "btlspolicy",
	Service: "svc", Pod: "po", Namespace: "ns", Node: "no", Ingress: "ing", ConfigMap: "cm",
}

// KindNamed returns the kind that a person means: its name, plural or short name in any case, with its group behind a dot or without;
// "gateway" is Istio's, as in what is printed. An error names the kinds that there are, and the one that was probably meant.
func KindNamed(text string) (Kind, error) {
	var known []string
	for _, schema := range Schemas {
		names := []string{schema.Kind.Label(), schema.Plural + "." + schema.Group, schema.Kind.Short() + "." + schema.Group, abbreviations[schema.Kind]}
		if schema.Kind.Label() == schema.Kind.Short() {
			names = append(names, schema.Plural)
		}
		if text != "" && slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, text) }) {
			return schema.Kind, nil
		}
		known = append(known, schema.Kind.Label())
	}
	return "", fmt.Errorf("unknown kind %q%s want one of %s", text, orNearest(text, known), strings.Join(known, ", "))
}

// KindsNamed is KindNamed where several kinds may be meant: "gateway" are both Istio's and that of the Gateway API.
func KindsNamed(text string) ([]Kind, error) {
	kind, err := KindNamed(text)
	if err != nil {
		return nil, err
	}
	if kind == Gateway && (strings.EqualFold(text, "gateway") || strings.EqualFold(text, "gateways")) {
		return []Kind{Gateway, KubernetesGateway}, nil
	}
	return []Kind{kind}, nil
}

// orNearest returns ", did you mean …?" with the kind whose name is near to a text, in any case, and ":" if there is none.
func orNearest(text string, known []string) string {
	lower := make([]string, len(known))
	for i, kind := range known {
		lower[i] = strings.ToLower(kind)
	}
	if meant := slices.Index(lower, nearest.Name(strings.ToLower(text), lower)); meant >= 0 {
		return ", did you mean " + known[meant] + "? If not,"
	}
	return ":"
}

// IsIstio reports whether the kind is one of Istio's, whose Spec is a proto message.
func (s *Schema) IsIstio() bool { return strings.HasSuffix(s.Group, ".istio.io") }

// APIVersion returns the preferred version as documents have it, such as "networking.istio.io/v1".
func (s *Schema) APIVersion() string {
	if s.Group == "" {
		return s.Versions[0]
	}
	return s.Group + "/" + s.Versions[0]
}

// schemaFor returns the schema of the documents that have an apiVersion and a kind; nil if there is
// none. known is false if the group and kind are read, but in other versions.
func schemaFor(apiVersion, kind string) (s *Schema, knownVersion bool) {
	group, version, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group, version = "", apiVersion
	}
	for i := range Schemas {
		s := &Schemas[i]
		if s.Group == group && s.Kind.Short() == kind && !s.Kind.ofConfigMap() {
			return s, slices.Contains(s.Versions, version)
		}
	}
	return nil, false
}

// ignoredKinds has the reasons why kinds of Istio and of the Gateway API are not read.
var ignoredKinds = map[string]string{
	"extensions.istio.io/WasmPlugin":        "proxies are not extended",
	"extensions.istio.io/TrafficExtension":  "proxies are not extended",
	"gateway.networking.k8s.io/UDPRoute":    "UDP is not proxied",
	"gateway.networking.k8s.io/ListenerSet": "listeners are read from Gateways only: write them there",
}

// unknownKind names the kinds of a group of Istio for a kind that the group does not have: a misspelled
// one, probably. It returns "" for all other kinds.
func unknownKind(apiVersion, kind string) string {
	group, _, _ := strings.Cut(apiVersion, "/")
	if (group != "networking.istio.io" && group != "security.istio.io" && group != "telemetry.istio.io") || ignoredKinds[group+"/"+kind] != "" {
		return ""
	}
	var kinds []string
	for _, s := range Schemas {
		if s.Group == group {
			kinds = append(kinds, s.Kind.Short())
		}
	}
	for name := range ignoredKinds {
		if of, short, _ := strings.Cut(name, "/"); of == group {
			kinds = append(kinds, short)
		}
	}
	slices.Sort(kinds)
	return fmt.Sprintf("%s has no kind %q, but %s", group, kind, strings.Join(kinds, ", "))
}

// ignoredMessage says why the documents of a kind that is not read are ignored.
func ignoredMessage(apiVersion, kind string) string {
	group, _, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group = ""
	}
	if reason := ignoredKinds[group+"/"+kind]; reason != "" {
		return "ignored: " + reason
	}
	switch {
	case strings.HasSuffix(group, "gateway.networking.k8s.io"), strings.HasSuffix(group, "gateway.networking.x-k8s.io"):
		return "ignored: the kind " + kind + " of the Gateway API is not read"
	case strings.HasSuffix(group, "istio.io"):
		return "ignored: Istio's kind " + kind + " is not supported"
	default:
		return "ignored: this kind has no meaning for the mesh"
	}
}
