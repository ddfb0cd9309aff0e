package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

// NodeSelectorAnnotation is the annotation of a Service of the type NodePort by which a gateway of a network is reached
// at the addresses of Nodes.
const NodeSelectorAnnotation = "traffic.istio.io/nodeSelector"

// The labels of a Service that is the gateway of a network.
const (
	NetworkLabel     = "topology.istio.io/network"
	GatewayPortLabel = "networking.istio.io/gatewayPort"
)

// networkGatewayPort is the port of a gateway whose Service names none.
const networkGatewayPort = 15443

// NetworkGatewayPort returns the port of the Service of a gateway of a network, by its labels: 15443 if they name none.
func NetworkGatewayPort(labels map[string]string) int64 {
	if port, err := strconv.ParseInt(labels[GatewayPortLabel], 10, 32); err == nil {
		return port
	}
	return networkGatewayPort
}

// NodeSelector returns the labels of the Nodes at whose addresses a Service is reached from other networks; none stand
// for all Nodes. ok is false if it is reached at no Node: it is no Service of the type NodePort with the annotation
// NodeSelectorAnnotation, or the annotation is not valid.
func NodeSelector(c *Config) (labels map[string]string, ok bool) {
	text, found := c.Annotations[NodeSelectorAnnotation]
	service, isService := c.Spec.(*corev1.Service)
	if !found || !isService || service.Spec.Type != corev1.ServiceTypeNodePort {
		return nil, false
	}
	labels, err := parseNodeSelector(text)
	return labels, err == nil
}

// parseNodeSelector parses the value of NodeSelectorAnnotation. As with istiod, an empty value selects all Nodes.
func parseNodeSelector(text string) (labels map[string]string, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &labels); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return nil, fmt.Errorf("a %s stands where a string or the object is", wrong.Value)
		}
		return nil, err
	}
	return labels, nil
}

// NodePort returns the port of Nodes at which a port of a Service is reached, 0 for none. ok is false if the Service has
// no such port.
func NodePort(service *corev1.Service, port uint32) (number uint32, ok bool) {
	for _, p := range service.Spec.Ports {
		if uint32(p.Port) == port && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) { //nolint:gosec // ports are validated
			return uint32(p.NodePort), true //nolint:gosec // ports are validated
		}
	}
	return 0, false
}

// NodeAddress returns the address at which a Node is reached from other networks, its first ExternalIP as with istiod;
// "" for none.
func NodeAddress(c *Config) string {
	node, ok := c.Spec.(*corev1.Node)
	if !ok {
		return ""
	}
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeExternalIP && address.Address != "" {
			return address.Address
		}
	}
	return ""
}

// SelectsNode reports whether labels that NodeSelector has returned select a Node.
func SelectsNode(labels map[string]string, node *Config) bool { return hasLabels(node.Labels, labels) }

// validateNode checks the addresses at which a Node is reached from other networks. Only these and the labels are read.
func validateNode(k *checker, node *corev1.Node) {
	for i, address := range node.Status.Addresses {
		if address.Type == corev1.NodeExternalIP && address.Address != "" {
			k.report((&path{name: "status"}).field("addresses").at(i).field("address"), address.Address, ipProblem(address.Address))
		}
	}
}

// nodeSelector checks the annotation by which a Service is reached at the addresses of Nodes.
func (k *checker) nodeSelector(service *corev1.Service) {
	text, found := k.config.Annotations[NodeSelectorAnnotation]
	if !found {
		return
	}
	at := (&path{name: "metadata"}).field("annotations").field(NodeSelectorAnnotation)
	if service.Spec.Type != corev1.ServiceTypeNodePort {
		k.warnf(NoEffect, at, "has no effect: it is for Services of the type NodePort")
		return
	}
	labels, err := parseNodeSelector(text)
	if err != nil {
		k.errorf(at, `is no JSON object of labels, such as {"kubernetes.io/hostname": "node-1"} or {} for all Nodes: %v`, err)
		return
	}
	for _, key := range sortedKeys(labels) {
		switch {
		case !isLabelKey(key):
			k.errorf(at, "%q is no key of a label", key)
		case !isLabelValue(labels[key]):
			k.errorf(at, "%q is no value of a label", labels[key])
		}
	}
}

// nodeGateways warns of Services that are to be reached at the addresses of Nodes, and are not.
func (x *references) nodeGateways() {
	named := make(map[string]uint32) // the port by the name of a Service
	for _, c := range x.reader.List(MeshNetworks, "") {
		for _, network := range c.Spec.(*meshv1alpha1.MeshNetworks).GetNetworks() {
			for _, gw := range network.GetGateways() {
				if name := gw.GetRegistryServiceName(); name != "" {
					named[name] = gw.GetPort()
				}
			}
		}
	}
	nodes := x.reader.List(Node, "")
	for _, c := range x.reader.List(Service, "") {
		labels, ok := NodeSelector(c)
		if !ok {
			continue
		}
		at := (&path{name: "metadata"}).field("annotations").field(NodeSelectorAnnotation)
		port, isNamed := named[x.resolve(c.Name, c.Namespace)]
		if c.Labels[NetworkLabel] != "" {
			port, isNamed = uint32(NetworkGatewayPort(c.Labels)), true //nolint:gosec // no port is negative
		}
		if !isNamed {
			x.warn(GatewayOfNetworkUnreachable, c, at, "has no effect: neither the label %s nor the meshNetworks make this Service the gateway of a network", NetworkLabel)
			continue
		}
		x.nodePort(c, port)
		if len(c.Spec.(*corev1.Service).Spec.ExternalIPs) == 0 {
			x.selectsNodes(c, at, labels, nodes)
		}
	}
}

// nodePort checks that the port of a gateway of a network is a port of Nodes.
func (x *references) nodePort(c *Config, port uint32) {
	at := (&path{name: "spec"}).field("ports")
	switch number, ok := NodePort(c.Spec.(*corev1.Service), port); {
	case !ok && c.Labels[NetworkLabel] != "":
		x.warn(GatewayOfNetworkUnreachable, c, at, "the gateway is not reached: there is no TCP port %d, which is that of a gateway unless the label %s names another", port, GatewayPortLabel)
	case ok && number == 0:
		x.warn(GatewayOfNetworkUnreachable, c, at, "the gateway is not reached: its port %d has no nodePort, which a cluster would assign", port)
	}
}

// selectsNodes checks that labels select a Node with an address.
func (x *references) selectsNodes(c *Config, at *path, labels map[string]string, nodes []*Config) {
	selected := 0
	for _, node := range nodes {
		switch {
		case !SelectsNode(labels, node):
		case NodeAddress(node) != "":
			return
		default:
			selected++
		}
	}
	what := "the annotation selects no Node"
	switch {
	case len(nodes) == 0:
		what = "there are no Nodes"
	case selected > 0:
		what = "the Nodes that it selects have no address of the type ExternalIP (status.addresses)"
	}
	x.warn(GatewayOfNetworkUnreachable, c, at, "the gateway is not reached: %s", what)
}
