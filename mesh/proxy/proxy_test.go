package proxy

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

func node(id string, meta map[string]any) *corev3.Node {
	s, err := structpb.NewStruct(meta)
	if err != nil {
		panic(err)
	}
	return &corev3.Node{Id: id, Metadata: s}
}

func TestANodeSaysWhoTheProxyIs(t *testing.T) {
	for name, tc := range map[string]struct {
		node *corev3.Node
		want string
	}{
		"Istio's sidecar": {
			node("sidecar~10.1.2.3~web-1.shop~shop.svc.cluster.local", map[string]any{metaNetwork: "n1"}),
			"sidecar web-1 shop [10.1.2.3] shop.svc.cluster.local REDIRECT n1",
		},
		"metadata takes precedence": {
			node("sidecar~10.1.2.3~web-1.shop~shop.svc.cluster.local", map[string]any{
				metaNamespace: "other", metaIPs: "10.9.9.9, fd00::1", metaCapture: "TPROXY",
			}),
			"sidecar web-1 other [10.9.9.9 fd00::1] shop.svc.cluster.local TPROXY ",
		},
		"a gateway captures nothing": {
			node("router~10.1.2.3~gw.istio-system~istio-system.svc.cluster.local", map[string]any{metaCapture: "REDIRECT"}),
			"router gw istio-system [10.1.2.3] istio-system.svc.cluster.local NONE ",
		},
		"a plain node": {node("laptop", nil), "sidecar laptop default [127.0.0.1] default.svc.cluster.local NONE "},
		"a plain node with metadata": {
			node("edge-1", map[string]any{metaType: "router", metaNamespace: "edge", metaIPs: "::ffff:10.0.0.1"}),
			"router edge-1 edge [10.0.0.1] edge.svc.cluster.local NONE ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := FromNode(tc.node)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(p.Type, " ", p.Name, " ", p.Namespace, " ", p.IPs, " ", p.DNSDomain, " ", p.Capture, " ", p.Network); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestANodeThatIsWrongIsNamed(t *testing.T) {
	for want, n := range map[string]*corev3.Node{
		"is no IP address":                node("sidecar~here~web.shop~x", nil),
		"\"a\" in INSTANCE_IPS":           node("x", map[string]any{metaIPs: "10.0.0.1,a"}),
		"is not sidecar, router":          node("waypoint~10.0.0.1~w.shop~x", nil),
		"is not REDIRECT, TPROXY or NONE": node("x", map[string]any{metaCapture: "redirect"}),
		"HTTP_PROXY_PORT \"70000\" is no": node("x", map[string]any{metaHTTPProxyPort: 70000}),
	} {
		if _, err := FromNode(n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
