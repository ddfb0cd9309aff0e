package istio

import (
	"strconv"
	"strings"
	"testing"

	"istio.io/istio/pkg/config/schema/gvr"
	"istio.io/istio/pkg/kube"
	"istio.io/istio/pkg/kube/kclient/clienttest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"
	ktesting "k8s.io/client-go/testing"
	"sigs.k8s.io/gateway-api/pkg/consts"
	"sigs.k8s.io/yaml"
)

// gatewayAPIKinds are the kinds of the Gateway API. In a case they have the form of Istio's kinds: a document is its spec.
var gatewayAPIKinds = []string{"GatewayClass", "KubernetesGateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "ReferenceGrant", "BackendTLSPolicy"}

// routeKinds are the kinds of its routes.
var routeKinds = []string{"HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"}

// addGatewayAPI completes the documents of the Gateway API in a case. A Gateway is of the class istio and, if it has no addresses, served
// by the Envoy as the only endpoint of gateway-CASE.test. A route has the parent CASE. If there are routes and no Services, there are the
// Services CASE-v1, CASE-v2 and CASE-s1 with the port 80 and these backends, and with routes of connections also CASE-t1 and CASE-t2.
func (g *group) addGatewayAPI(name string, all map[string]any) {
	for _, spec := range specsOf(all, "KubernetesGateway") {
		setDefault(spec, "gatewayClassName", "istio")
		if spec["addresses"] == nil {
			spec["addresses"] = []any{map[string]any{"type": "Hostname", "value": "gateway-" + name + ".test"}}
			g.addGatewayService(name, all, spec)
		}
		if addresses, ok := spec["addresses"].([]any); ok && len(addresses) == 0 {
			delete(spec, "addresses")
		}
	}
	routes := 0
	for _, kind := range routeKinds {
		for _, spec := range specsOf(all, kind) {
			setDefault(spec, "parentRefs", []any{map[string]any{"name": name}})
			routes++
		}
	}
	if _, own := all["Service"]; routes == 0 || own {
		return
	}
	backends := []string{"v1", "v2", "s1"}
	if all["TCPRoute"] != nil || all["TLSRoute"] != nil {
		backends = append(backends, "t1", "t2")
	}
	var services, slices []any
	for _, backend := range backends {
		service, port := name+"-"+backend, "http"
		if strings.HasPrefix(backend, "t") {
			port = "tcp"
		}
		services = append(services, map[string]any{
			"metadata": map[string]any{"name": service},
			"spec":     map[string]any{"type": "ClusterIP", "clusterIP": g.nextAddress(), "ports": []any{map[string]any{"name": port, "port": 80, "protocol": "TCP", "targetPort": g.ports["PORT_"+backend]}}},
		})
		slices = append(slices, map[string]any{
			"metadata":    map[string]any{"name": service + "-1", "labels": map[string]any{"kubernetes.io/service-name": service}},
			"addressType": "IPv4", "ports": []any{map[string]any{"name": port, "port": g.ports["PORT_"+backend], "protocol": "TCP"}},
			"endpoints": []any{map[string]any{"addresses": []any{"127.0.0.1"}, "conditions": map[string]any{"ready": true}}},
		})
	}
	all["Service"] = services
	if _, own := all["EndpointSlice"]; !own {
		all["EndpointSlice"] = slices
	}
}

// nextAddress returns an address of a Service that no other has.
func (g *group) nextAddress() string {
	g.addresses++
	return "10.5." + strconv.Itoa(g.addresses/200) + "." + strconv.Itoa(1+g.addresses%200)
}

// addGatewayService adds the ServiceEntry gateway-CASE.test with the ports of the listeners.
func (g *group) addGatewayService(name string, all, spec map[string]any) {
	var ports []any
	seen := make(map[any]bool)
	listeners, _ := spec["listeners"].([]any)
	for _, l := range listeners {
		number := l.(map[string]any)["port"]
		if !seen[number] {
			seen[number] = true
			ports = append(ports, map[string]any{"number": number, "name": "port-" + strconv.Itoa(len(ports)), "protocol": "TCP"})
		}
	}
	entries, ok := all["ServiceEntry"].([]any)
	if !ok && all["ServiceEntry"] != nil {
		entries = []any{all["ServiceEntry"]}
	}
	meta := map[string]any{"name": name + "-gateway-" + strconv.Itoa(len(entries))}
	if of, ok := spec["metadata"].(map[string]any); ok && of["namespace"] != nil {
		meta["namespace"] = of["namespace"]
	}
	// istiod takes the labels of a workload from its endpoint, and not from what the Envoy says.
	labels := make(map[string]any)
	for key, value := range g.Proxy.Labels {
		labels[key] = value
	}
	all["ServiceEntry"] = append(entries, map[string]any{
		"metadata": meta, "hosts": []any{"gateway-" + name + ".test"}, "location": "MESH_INTERNAL", "resolution": "STATIC", "ports": ports,
		"endpoints": []any{map[string]any{"address": g.address(), "labels": labels}},
	})
}

// address is the first address of the Envoys.
func (g *group) address() string {
	if g.Proxy.Address == "" {
		return nodeAddress
	}
	first, _, _ := strings.Cut(g.Proxy.Address, ",")
	return first
}

// specsOf returns the documents of a kind in a case.
func specsOf(all map[string]any, kind string) (specs []map[string]any) {
	list, ok := all[kind].([]any)
	if !ok && all[kind] != nil {
		list = []any{all[kind]}
	}
	for _, spec := range list {
		if m, ok := spec.(map[string]any); ok {
			specs = append(specs, m)
		}
	}
	return specs
}

func setDefault(m map[string]any, key string, value any) {
	if m[key] == nil {
		m[key] = value
	}
}

// withAPIDefaults returns a document with the defaults that an API server gives the kinds of the Gateway API: istiod relies on them, and
// its fake has no API server.
func withAPIDefaults(t *testing.T, d document) map[string]any {
	t.Helper()
	text, err := yaml.Marshal(d.body)
	check(t, err)
	var body map[string]any
	check(t, yaml.Unmarshal(text, &body))
	spec, _ := body["spec"].(map[string]any)
	switch d.kind {
	case "HTTPRoute":
		for _, rule := range specsOf(spec, "rules") {
			setDefault(rule, "matches", []any{map[string]any{}})
			for _, match := range specsOf(rule, "matches") {
				setDefault(match, "path", map[string]any{})
				path := match["path"].(map[string]any)
				setDefault(path, "type", "PathPrefix")
				setDefault(path, "value", "/")
			}
			for _, filter := range specsOf(rule, "filters") {
				if redirect, ok := filter["requestRedirect"].(map[string]any); ok {
					setDefault(redirect, "statusCode", 302)
				}
				if cors, ok := filter["cors"].(map[string]any); ok {
					setDefault(cors, "maxAge", 5)
				}
			}
		}
	case "KubernetesGateway":
		for _, l := range specsOf(spec, "listeners") {
			setDefault(l, "allowedRoutes", map[string]any{})
			setDefault(l["allowedRoutes"].(map[string]any), "namespaces", map[string]any{"from": "Same"})
		}
	}
	return body
}

// kubernetesYAML returns the documents of Kubernetes itself as an API server has them.
func (g *group) kubernetesYAML(t *testing.T) string {
	t.Helper()
	var parts []string
	for _, d := range g.documents {
		// The controller of the Gateway API takes ServiceEntries from the cluster, and all others from the store of configuration.
		if d.core || d.kind == "ServiceEntry" {
			text, err := yaml.Marshal(withAPIDefaults(t, d))
			check(t, err)
			parts = append(parts, string(text))
		}
	}
	return strings.Join(parts, "\n---\n")
}

// withGatewayAPI makes istiod's fake cluster know BackendTLSPolicies, and says of all its definitions of the Gateway API that they are new
// enough: istiod ignores those that do not say it.
func withGatewayAPI(t *testing.T) func(kube.Client) {
	return func(c kube.Client) {
		metadata, ok := c.Metadata().(*metadatafake.FakeMetadataClient)
		if !ok {
			t.Fatal("the client of istiod is no fake")
		}
		annotate := func(action ktesting.Action) (bool, runtime.Object, error) {
			if write, ok := action.(interface{ GetObject() runtime.Object }); ok {
				if m, ok := write.GetObject().(metav1.Object); ok {
					m.SetAnnotations(map[string]string{consts.BundleVersionAnnotation: consts.BundleVersion})
				}
			}
			return false, nil, nil
		}
		metadata.PrependReactor("create", "customresourcedefinitions", annotate)
		metadata.PrependReactor("update", "customresourcedefinitions", annotate)
		clienttest.MakeCRD(t, c, gvr.BackendTLSPolicy)
	}
}
