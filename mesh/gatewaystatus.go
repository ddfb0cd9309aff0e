package mesh

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/gatewayapi"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// apiStatus has the status of the documents of the Gateway API.
type apiStatus map[config.Key]any

// apiStatus returns the status of the documents of the Gateway API, as their conversion says it. A Gateway is programmed once a
// proxy that serves it is connected: none is deployed for it.
func (e *Environment) apiStatus() apiStatus {
	out := apiStatus(gatewayapi.Convert(e.config, e.cfg.Domain).Status)
	proxies := make(map[config.Key][]*proxy.Proxy)
	for _, s := range e.server.Served("") {
		for _, key := range s.Gateways() {
			proxies[key] = append(proxies[key], s.Proxy)
		}
	}
	for key, status := range out {
		if gw, ok := status.(*gatewayv1.GatewayStatus); ok {
			programmed(gw, key, proxies[key])
		}
	}
	return out
}

// maxAddresses is how many addresses the schema of the Gateway API allows in a status.
const maxAddresses = 16

// programmed says by which proxies a Gateway is served. One that has no Service has their addresses.
func programmed(status *gatewayv1.GatewayStatus, key config.Key, proxies []*proxy.Proxy) {
	var names []string
	kind := gatewayv1.IPAddressType
	addresses := status.Addresses
	for _, p := range proxies {
		names = append(names, p.Node)
		for _, ip := range p.IPs {
			one := gatewayv1.GatewayStatusAddress{Type: &kind, Value: ip.String()}
			known := slices.ContainsFunc(addresses, func(a gatewayv1.GatewayStatusAddress) bool { return a.Value == one.Value })
			if len(status.Addresses) == 0 && len(addresses) < maxAddresses && !known {
				addresses = append(addresses, one)
			}
		}
	}
	status.Addresses = addresses
	for i := range status.Conditions {
		c := &status.Conditions[i]
		if c.Type != string(gatewayv1.GatewayConditionProgrammed) || c.Status != metav1.ConditionTrue {
			continue
		}
		c.Message = "served by " + strings.Join(names, ", ")
		if len(proxies) == 0 {
			c.Status, c.Reason = metav1.ConditionFalse, string(gatewayv1.GatewayReasonNoResources)
			c.Message = fmt.Sprintf("no connected proxy serves it: start one of the type router in the namespace %s with the label gateway.networking.k8s.io/gateway-name: %s",
				key.Namespace, key.Name)
		}
	}
}

// add gives a document its status, and its spec without what all objects of Kubernetes have.
func (s apiStatus) add(d *Document, key config.Key) {
	var object struct{ Spec json.RawMessage }
	if err := json.Unmarshal(d.Spec, &object); err == nil && object.Spec != nil {
		d.Spec = object.Spec
	}
	if s[key] == nil {
		return
	}
	text, err := json.Marshal(s[key])
	if err != nil {
		return
	}
	// Nobody keeps the status, so that it is not known since when a condition holds.
	d.Status = bytes.ReplaceAll(text, []byte(`"lastTransitionTime":null,`), nil)
}
