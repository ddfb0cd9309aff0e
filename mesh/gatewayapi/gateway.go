package gatewayapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// nameOverride is the annotation that names the Service of a Gateway's proxies.
const nameOverride = "gateway.istio.io/name-override"

// listener is a listener of a Gateway to which routes can be attached.
type listener struct {
	gatewayv1.Listener
	of config.Key
	// controller is that of the class of the Gateway, and generation that of the Gateway.
	controller gatewayv1.GatewayController
	generation int64
	ref        string // by which routes refer to it
	hosts      []string
	kinds      []gatewayv1.RouteGroupKind
	// served is set if it is one of the result.
	served   bool
	attached int
	// unresolved, conflict and unsupported are why it is not served, invalid why it is served in part.
	unresolved, conflict, unsupported, noCA *problem
	invalidKinds                            bool
}

// gateway reads a Gateway and its listeners.
func (c *converter) gateway(d *config.Config, gw *gatewayv1.Gateway) {
	controller, known := c.classes[string(gw.Spec.GatewayClassName)]
	switch {
	case !known:
		c.warn(config.GatewayAPINotFound, d.Meta.Key, "spec.gatewayClassName", fmt.Sprintf("ignored: there is no GatewayClass %q", gw.Spec.GatewayClassName))
		return
	case !config.IsOurController(controller):
		c.warn(config.GatewayAPIOtherController, d.Meta.Key, "spec.gatewayClassName", fmt.Sprintf("ignored: the GatewayClass %q is for the controller %s", gw.Spec.GatewayClassName, controller))
		return
	}
	services, _ := c.servicesOf(d, gw)
	var accepted []*listener
	for _, spec := range gw.Spec.Listeners {
		l := &listener{
			Listener: spec, of: d.Meta.Key, controller: gatewayv1.GatewayController(controller), generation: d.Generation,
			ref:   d.Namespace + "/" + d.Name + "~" + string(spec.Name),
			hosts: c.listenerHosts(d.Namespace, &spec),
		}
		l.kinds, l.invalidKinds = supportedKinds(&spec)
		if i := slices.IndexFunc(accepted, func(o *listener) bool { return !distinct(&spec, &o.Listener) }); i >= 0 {
			l.conflict = conflictOf(&spec, &accepted[i].Listener)
			c.listeners[d.Meta.Key] = append(c.listeners[d.Meta.Key], l)
			continue
		}
		accepted = append(accepted, l)
		c.listeners[d.Meta.Key] = append(c.listeners[d.Meta.Key], l)
		server := c.server(d, gw, l)
		if server == nil {
			continue
		}
		l.served = true
		c.out.Listeners = append(c.out.Listeners, &Listener{Of: d.Meta.Key, Name: l.ref, Age: d.Age(), Server: server, Services: services})
	}
}

// namesServices reports whether the addresses of a Gateway name Services.
func namesServices(gw *gatewayv1.Gateway) bool {
	addresses := gw.Spec.Addresses
	return len(addresses) > 1 || len(addresses) == 1 && or(addresses[0].Type, gatewayv1.IPAddressType) != gatewayv1.IPAddressType
}

// servicesOf returns the hosts of the Services whose workloads serve a Gateway: those that its addresses name or, if it has
// none, the one that a deployment of Istio would have.
func (c *converter) servicesOf(d *config.Config, gw *gatewayv1.Gateway) (services []string, wrong *problem) {
	addresses := gw.Spec.Addresses
	if !namesServices(gw) {
		name := d.Name + "-" + string(gw.Spec.GatewayClassName)
		if own := d.Annotations[nameOverride]; own != "" {
			name = own
		}
		return []string{c.hostOf(name, d.Namespace)}, nil
	}
	var ignored []string
	for _, a := range addresses {
		if or(a.Type, gatewayv1.HostnameAddressType) != gatewayv1.HostnameAddressType {
			ignored = append(ignored, a.Value)
			continue
		}
		host := a.Value
		if !strings.Contains(host, ".") {
			host = c.hostOf(host, d.Namespace)
		}
		services = append(services, host)
	}
	if len(ignored) > 0 {
		wrong = &problem{string(gatewayv1.GatewayReasonUnsupportedAddress), fmt.Sprintf("only Hostname is supported, ignoring %v", ignored)}
	}
	return services, wrong
}

// listenerHosts returns the hosts of a listener with the namespaces whose routes it accepts, as a server of Istio's Gateway
// has them.
func (c *converter) listenerHosts(namespace string, l *gatewayv1.Listener) []string {
	host := string(or(l.Hostname, ""))
	if host == "" {
		host = "*"
	}
	from, selector := gatewayv1.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if l.AllowedRoutes != nil && l.AllowedRoutes.Namespaces != nil {
		from, selector = or(l.AllowedRoutes.Namespaces.From, from), l.AllowedRoutes.Namespaces.Selector
	}
	switch from {
	case gatewayv1.NamespacesFromAll:
		return []string{"*/" + host}
	case gatewayv1.NamespacesFromSelector:
	default:
		return []string{namespace + "/" + host}
	}
	selects, err := metav1.LabelSelectorAsSelector(selector)
	var hosts []string
	for _, name := range slices.Sorted(maps.Keys(c.namespaces)) {
		if err == nil && selects.Matches(c.namespaces[name]) {
			hosts = append(hosts, name+"/"+host)
		}
	}
	if len(hosts) == 0 {
		return []string{"~/" + host} // the listener is there, and has no routes
	}
	return hosts
}

// supportedKinds returns the kinds of routes of a listener; invalid reports that it allows one that it cannot have.
func supportedKinds(l *gatewayv1.Listener) (kinds []gatewayv1.RouteGroupKind, invalid bool) {
	kind := func(names ...gatewayv1.Kind) (out []gatewayv1.RouteGroupKind) {
		for _, name := range names {
			group := gatewayv1.Group(gatewayv1.GroupName)
			out = append(out, gatewayv1.RouteGroupKind{Group: &group, Kind: name})
		}
		return out
	}
	var supported []gatewayv1.RouteGroupKind
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType:
		supported = kind("HTTPRoute", "GRPCRoute")
	case gatewayv1.TCPProtocolType:
		supported = kind("TCPRoute")
	case gatewayv1.TLSProtocolType:
		supported = kind("TLSRoute")
		if l.TLS != nil && or(l.TLS.Mode, "") == gatewayv1.TLSModeTerminate {
			supported = kind("TLSRoute", "TCPRoute")
		}
	}
	if l.AllowedRoutes == nil || len(l.AllowedRoutes.Kinds) == 0 {
		return supported, false
	}
	kinds = []gatewayv1.RouteGroupKind{}
	for _, s := range supported {
		if slices.ContainsFunc(l.AllowedRoutes.Kinds, func(k gatewayv1.RouteGroupKind) bool {
			return k.Kind == s.Kind && or(k.Group, gatewayv1.GroupName) == *s.Group
		}) {
			kinds = append(kinds, s)
		}
	}
	return kinds, len(kinds) != len(l.AllowedRoutes.Kinds)
}

// distinct reports whether two listeners of a Gateway can both be served: on one port, those of HTTP and TLS are told
// apart by their hostnames, and those of TCP not at all.
func distinct(a, b *gatewayv1.Listener) bool {
	hostname := func(l *gatewayv1.Listener) string { return strings.TrimPrefix(string(or(l.Hostname, "*")), "*") }
	stream := func(l *gatewayv1.Listener) bool {
		return l.Protocol == gatewayv1.TCPProtocolType || l.Protocol == gatewayv1.UDPProtocolType
	}
	switch {
	case a.Port != b.Port:
		return true
	case stream(a) || stream(b):
		return false
	}
	return hostname(a) != hostname(b)
}

// conflictOf returns why a listener conflicts with an earlier one.
func conflictOf(l, with *gatewayv1.Listener) *problem {
	reason := gatewayv1.ListenerReasonHostnameConflict
	if l.Protocol != with.Protocol || l.Protocol == gatewayv1.TCPProtocolType || l.Protocol == gatewayv1.UDPProtocolType {
		reason = gatewayv1.ListenerReasonProtocolConflict
	}
	return &problem{string(reason), fmt.Sprintf("Listener conflicts with the listener %q of the same Gateway", with.Name)}
}

// server returns a listener as a server of Istio's Gateway; nil if it cannot be served.
func (c *converter) server(d *config.Config, gw *gatewayv1.Gateway, l *listener) *networking.Server {
	switch l.Protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType:
	default:
		l.unsupported = &problem{string(gatewayv1.ListenerReasonUnsupportedProtocol), fmt.Sprintf("protocol %q is unsupported", l.Protocol)}
		return nil
	}
	secure := l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType
	tls := c.serverTLS(d, gw, l)
	if secure && tls == nil {
		if l.unresolved == nil {
			l.unresolved = &problem{string(gatewayv1.ListenerReasonInvalidCertificateRef), "the listener has no TLS"}
		}
		return nil
	}
	return &networking.Server{
		Port:  &networking.Port{Name: "default", Number: uint32(l.Port), Protocol: string(l.Protocol)}, //nolint:gosec // ports are validated
		Hosts: l.hosts, Tls: tls,
	}
}

// finishGateways makes the status of the Gateways, once the routes are attached.
func (c *converter) finishGateways() {
	for _, d := range c.list(config.KubernetesGateway) {
		listeners := c.listeners[d.Meta.Key]
		if len(listeners) == 0 {
			continue
		}
		status := &gatewayv1.GatewayStatus{}
		valid := 0
		for i, l := range listeners {
			at := fmt.Sprintf("spec.listeners[%d]", i)
			c.warnOf(d.Meta.Key, at, l.conflict)
			c.warnOf(d.Meta.Key, at+".tls", l.unresolved)
			if l.invalidKinds {
				c.warn(config.GatewayAPINotServed, d.Meta.Key, at+".allowedRoutes.kinds", "a listener of "+string(l.Protocol)+" does not have all of these routes")
			}
			status.Listeners = append(status.Listeners, l.status())
			if l.served {
				valid++
			}
		}
		gw := d.Spec.(*gatewayv1.Gateway)
		services, wrong := c.servicesOf(d, gw)
		if in := gw.Spec.Infrastructure; in != nil && in.ParametersRef != nil {
			ref := in.ParametersRef
			if p := c.parameters(string(ref.Group), string(ref.Kind), d.Namespace, ref.Name); p != nil {
				wrong = firstProblem(p, wrong)
			}
		}
		kind := gatewayv1.HostnameAddressType
		var unknown []string
		for _, host := range services {
			if c.hasHost(host, d.Namespace) {
				status.Addresses = append(status.Addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: host})
			} else if namesServices(gw) {
				unknown = append(unknown, host)
			}
		}
		accepted := condition{kind: string(gatewayv1.GatewayConditionAccepted), reason: string(gatewayv1.GatewayReasonAccepted), message: "Resource accepted", problem: wrong}
		if valid < len(listeners) && wrong == nil {
			accepted.reason, accepted.message = string(gatewayv1.GatewayReasonListenersNotValid), "One or more of the Gateway's listeners are invalid"
			if valid == 0 {
				accepted.problem = &problem{accepted.reason, "None of the Gateway's listeners are valid"}
			}
		}
		programmed := condition{kind: string(gatewayv1.GatewayConditionProgrammed), reason: string(gatewayv1.GatewayReasonProgrammed), message: "Resource programmed"}
		if valid == 0 {
			programmed.problem = &problem{string(gatewayv1.GatewayReasonInvalid), "None of the Gateway's listeners are valid"}
		} else if len(unknown) > 0 {
			programmed.problem = &problem{string(gatewayv1.GatewayReasonAddressNotUsable), "there is no service " + strings.Join(unknown, ", ")}
		}
		all := []condition{accepted, programmed, {
			kind: string(gatewayv1.GatewayConditionResolvedRefs), reason: string(gatewayv1.GatewayReasonResolvedRefs), message: "All references resolved",
		}}
		if insecureFrontend(gw) {
			all = append(all, condition{
				kind: string(gatewayv1.GatewayConditionInsecureFrontendValidationMode), reason: string(gatewayv1.GatewayReasonConfigurationChanged),
				message: "Clients are served whose certificate is not valid, or that have none",
			})
		}
		status.Conditions = conditions(d.Generation, all...)
		c.out.Status[d.Meta.Key] = status
	}
}

// parameters returns what is wrong with a reference to parameters; nil for a ConfigMap that exists. Those have no effect here: they say
// how istiod deploys proxies.
func (c *converter) parameters(group, kind, namespace, name string) *problem {
	switch {
	case group != "" || kind != "ConfigMap":
		return &problem{string(gatewayv1.GatewayReasonInvalidParameters), fmt.Sprintf("parametersRef: a %s of the group %q is not supported, only a ConfigMap", kind, group)}
	case c.reader.Get(config.Key{Kind: config.ConfigMap, Namespace: namespace, Name: name}) == nil:
		return &problem{string(gatewayv1.GatewayReasonInvalidParameters), fmt.Sprintf("parametersRef: ConfigMap %s/%s not found", namespace, name)}
	}
	return nil
}

// status returns the status of a listener.
func (l *listener) status() gatewayv1.ListenerStatus {
	fine := func(kind gatewayv1.ListenerConditionType, reason gatewayv1.ListenerConditionReason) condition {
		return condition{kind: string(kind), reason: string(reason), message: "No errors found"}
	}
	accepted := fine(gatewayv1.ListenerConditionAccepted, gatewayv1.ListenerReasonAccepted)
	programmed := fine(gatewayv1.ListenerConditionProgrammed, gatewayv1.ListenerReasonProgrammed)
	resolved := fine(gatewayv1.ListenerConditionResolvedRefs, gatewayv1.ListenerReasonResolvedRefs)
	conflicted := fine(gatewayv1.ListenerConditionConflicted, gatewayv1.ListenerReasonNoConflicts)
	conflicted.bad, conflicted.problem = true, l.conflict
	switch {
	case l.conflict != nil:
		accepted.problem, programmed.problem = l.conflict, l.conflict
	case l.unsupported != nil:
		accepted.problem, programmed.problem = l.unsupported, &problem{string(gatewayv1.ListenerReasonInvalid), l.unsupported.message}
	case l.unresolved != nil:
		resolved.problem = l.unresolved
		if !l.served {
			programmed.problem = &problem{string(gatewayv1.ListenerReasonInvalid), "Bad TLS configuration"}
		}
		if l.noCA != nil {
			accepted.problem = &problem{string(gatewayv1.ListenerReasonNoValidCACertificate), l.noCA.message}
		}
	}
	if l.invalidKinds && resolved.problem == nil {
		resolved.problem = &problem{string(gatewayv1.ListenerReasonInvalidRouteKinds), "Invalid route kinds"}
	}
	return gatewayv1.ListenerStatus{
		Name: l.Name, SupportedKinds: l.kinds, AttachedRoutes: int32(l.attached), //nolint:gosec // it is a number of documents
		Conditions: conditions(l.generation, accepted, programmed, resolved, conflicted),
	}
}
