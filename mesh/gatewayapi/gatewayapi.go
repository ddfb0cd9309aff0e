// Package gatewayapi makes documents of the Kubernetes Gateway API into what Istio's own API says: Gateways,
// VirtualServices and DestinationRules, as istiod does, so that the same documents send the same requests to the same
// places. It also says the status of each document.
//
// It promises that the result depends on the documents alone, and that equal documents give equal results. It does not
// decide which proxies serve a Gateway, and it knows nothing of endpoints. All functions are pure; what they return
// must not be changed.
package gatewayapi

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Kinds are the kinds of documents of which the result depends.
var Kinds = []config.Kind{
	config.GatewayClass, config.KubernetesGateway, config.HTTPRoute, config.GRPCRoute, config.TLSRoute, config.TCPRoute,
	config.ReferenceGrant, config.BackendTLSPolicy, config.ConfigMap, config.Secret, config.Namespace, config.Service, config.ServiceEntry,
}

// Result is what documents of the Gateway API say. The zero value stands for no documents.
type Result struct {
	// Listeners are those of all Gateways that are valid, the oldest Gateway first.
	Listeners []*Listener
	// Routes are what VirtualServices would say, by age.
	Routes []*Routes
	// Policies are the DestinationRules of BackendTLSPolicies.
	Policies []*Policy
	// Roots are certificates of authorities in PEM, by the name under which Listeners and Policies refer to them.
	Roots map[string]string
	// Problems are warnings of what has no effect: references to what does not exist, or may not be referred to, and listeners that are not
	// served. They have no file and no line.
	Problems []config.Problem
	// Status has the status of each document: a *GatewayStatus, *RouteStatus, … of the Gateway API's types.
	Status map[config.Key]any
}

// Listener is a listener of a Gateway as a server of Istio's Gateway.
type Listener struct {
	// Of is the document. Name is what the routes call the listener: NAMESPACE/NAME.
	Of     config.Key
	Name   string
	Age    config.Age
	Server *networking.Server
	// Services are the hosts of the Services, in the namespace of the document, whose workloads serve the Gateway.
	Services []string
}

// Routes are what a VirtualService says: the routes of one host at one listener, or of one service of the mesh.
type Routes struct {
	// Of is the oldest document of them, Origins the document of each route of HTTP in Rule.
	Of      config.Key
	Origins []config.Key
	Age     config.Age
	// Namespace is the namespace for which alone the routes are; "" for all.
	Namespace string
	Rule      *networking.VirtualService
}

// Policy is a DestinationRule that a BackendTLSPolicy stands for. As in Istio it has no age, so that it comes before those
// that were written for the same host.
type Policy struct {
	Of   config.Key
	Rule *networking.DestinationRule
}

// The prefixes of the names of credentials in Listeners and Policies, which are Istio's: NAMESPACE/NAME follows.
const (
	SecretPrefix    = "kubernetes-gateway://"
	ConfigMapPrefix = "configmap://"
	// NoRoots is the name of certificates of which there are none, and that therefore verify nothing.
	NoRoots = "invalid://"
)

// MeshParent is the gateway of routes for the sidecars.
const MeshParent = "mesh"

// Convert returns what the documents of a reader say. domain is the DNS domain of Kubernetes Services.
func Convert(reader config.Reader, domain string) *Result {
	c := &converter{
		reader: reader, domain: domain, classes: make(map[string]string), listeners: make(map[config.Key][]*listener),
		mergedFor: make(map[string]*Routes), ancestors: make(map[config.Key][]config.Key), warned: make(map[config.Problem]bool),
		out: &Result{Roots: make(map[string]string), Status: make(map[config.Key]any)},
	}
	if !c.any() {
		return c.out
	}
	c.readClasses()
	c.readNamespaces()
	c.readGrants()
	for _, d := range c.list(config.KubernetesGateway) {
		c.gateway(d, d.Spec.(*gatewayv1.Gateway))
	}
	c.httpRoutes()
	c.streamRoutes()
	c.backendPolicies()
	c.finishGateways()
	return c.out
}

// converter is a conversion that is under way.
type converter struct {
	reader config.Reader
	domain string
	out    *Result

	classes    map[string]string // controllers by the names of classes
	namespaces map[string]labels.Set
	grants     []grant
	// listeners are those of a Gateway that routes can refer to, those that are not served too.
	listeners map[config.Key][]*listener
	// merged are the routes of HTTP by parent and host, in the order in which they were found.
	merged    []*Routes
	mergedFor map[string]*Routes
	// ancestors are the Gateways through which requests reach a Service or a ServiceEntry.
	ancestors map[config.Key][]config.Key
	// warned are the warnings that there are already.
	warned map[config.Problem]bool
}

// warn adds a warning of a field of a document, once.
func (c *converter) warn(code config.Code, key config.Key, field, message string) {
	p := config.Problem{Code: code, Key: key, Field: field, Severity: config.SeverityWarning, Message: message}
	if !c.warned[p] {
		c.warned[p] = true
		c.out.Problems = append(c.out.Problems, p)
	}
}

// warnOf adds a warning of a problem; none for nil.
func (c *converter) warnOf(key config.Key, field string, p *problem) {
	if p != nil {
		c.warn(p.code(), key, field, p.reason+": "+p.message)
	}
}

// any reports whether there is a document that can have an effect.
func (c *converter) any() bool {
	return slices.ContainsFunc(Kinds[:8], func(kind config.Kind) bool { return len(c.reader.List(kind, "")) > 0 })
}

// list returns the documents of a kind, the oldest first.
func (c *converter) list(kind config.Kind) []*config.Config {
	return slices.SortedFunc(slices.Values(c.reader.List(kind, "")), config.ByAge)
}

// or returns what a pointer points to, or the default of the field for nil.
func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func (c *converter) readClasses() {
	c.classes["istio"] = config.GatewayController
	for _, d := range c.list(config.GatewayClass) {
		class := d.Spec.(*gatewayv1.GatewayClass)
		c.classes[d.Name] = string(class.Spec.ControllerName)
		if config.IsOurController(string(class.Spec.ControllerName)) {
			var wrong *problem
			if ref := class.Spec.ParametersRef; ref != nil {
				wrong = c.parameters(string(ref.Group), string(ref.Kind), string(or(ref.Namespace, "")), ref.Name)
			}
			c.out.Status[d.Meta.Key] = &gatewayv1.GatewayClassStatus{SupportedFeatures: SupportedFeatures(), Conditions: conditions(d.Generation, condition{
				kind: string(gatewayv1.GatewayClassConditionStatusAccepted), reason: string(gatewayv1.GatewayClassReasonAccepted), message: "Handled by holdfast-mesh", problem: wrong,
			})}
		}
	}
}

// namespaceLabel is the label that Kubernetes gives every namespace: its name.
const namespaceLabel = "kubernetes.io/metadata.name"

// readNamespaces reads the labels of namespaces. One of a route that has no document of its own has its name as a label.
func (c *converter) readNamespaces() {
	c.namespaces = make(map[string]labels.Set)
	for _, kind := range []config.Kind{config.HTTPRoute, config.GRPCRoute, config.TLSRoute, config.TCPRoute} {
		for _, d := range c.reader.List(kind, "") {
			c.namespaces[d.Namespace] = labels.Set{namespaceLabel: d.Namespace}
		}
	}
	for _, d := range c.reader.List(config.Namespace, "") {
		c.namespaces[d.Name] = labels.Merge(d.Labels, labels.Set{namespaceLabel: d.Name})
	}
}

// grant is what a ReferenceGrant allows: references from a kind in a namespace to a kind in another.
type grant struct {
	from, fromNamespace string
	to, toNamespace     string
	name                string // "" for all
}

func (c *converter) readGrants() {
	for _, d := range c.list(config.ReferenceGrant) {
		spec := d.Spec.(*gatewayv1.ReferenceGrant).Spec
		for _, from := range spec.From {
			for _, to := range spec.To {
				c.grants = append(c.grants, grant{
					string(from.Group) + "/" + string(from.Kind), string(from.Namespace),
					string(to.Group) + "/" + string(to.Kind), d.Namespace, string(or(to.Name, "")),
				})
			}
		}
	}
}

// allowed reports whether a document of a kind may refer to an object: it is in its namespace, or a grant allows it.
func (c *converter) allowed(from config.Kind, fromNamespace, to, toNamespace, name string) bool {
	return fromNamespace == toNamespace || slices.ContainsFunc(c.grants, func(g grant) bool {
		return g.from == string(from) && g.fromNamespace == fromNamespace && g.to == to && g.toNamespace == toNamespace && (g.name == "" || g.name == name)
	})
}

// hostOf returns the host of a Service.
func (c *converter) hostOf(name, namespace string) string {
	return name + "." + namespace + ".svc." + c.domain
}

// hasHost reports whether a namespace has a service of a host: a Service, or a ServiceEntry.
func (c *converter) hasHost(host, namespace string) bool {
	if name, ok := strings.CutSuffix(host, "."+namespace+".svc."+c.domain); ok && c.service(name, namespace) != nil {
		return true
	}
	return slices.ContainsFunc(c.reader.List(config.ServiceEntry, namespace), func(d *config.Config) bool {
		return slices.ContainsFunc(d.Spec.(*networking.ServiceEntry).GetHosts(), func(h string) bool { return strings.EqualFold(h, host) })
	})
}

// service returns a Service; nil for none.
func (c *converter) service(name, namespace string) *corev1.Service {
	d := c.reader.Get(config.Key{Kind: config.Service, Namespace: namespace, Name: name})
	if d == nil {
		return nil
	}
	return d.Spec.(*corev1.Service)
}

// serviceEntry returns a ServiceEntry; nil for none.
func (c *converter) serviceEntry(name, namespace string) *networking.ServiceEntry {
	d := c.reader.Get(config.Key{Kind: config.ServiceEntry, Namespace: namespace, Name: name})
	if d == nil {
		return nil
	}
	return d.Spec.(*networking.ServiceEntry)
}
