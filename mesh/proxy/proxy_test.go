package proxy

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
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

func TestVirtualHostsNeedAnEnvoyThatHasThem(t *testing.T) {
	meta, err := structpb.NewStruct(map[string]any{"VHDS": "true"})
	if err != nil {
		t.Fatal(err)
	}
	for minor, want := range map[uint32]bool{0: true, 36: false, 37: true, 40: true} {
		n := &corev3.Node{Id: "n", Metadata: meta}
		if minor > 0 {
			n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor}}}
		}
		p, err := FromNode(n)
		if err != nil || p.VirtualHosts != want {
			t.Errorf("Envoy 1.%d: %v, %v, want %v", minor, p.VirtualHosts, err, want)
		}
	}
}

func TestWhereAProxyRunsIsInItsLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]any
		want   string
	}{
		"the locality of the Node":  {nil, "eu/a/1 eu a 1 c1 net n1"},
		"topology labels":           {map[string]any{labelRegion: "us", labelZone: "b"}, "us/b/ us b  c1 net n1"},
		"the label istio-locality":  {map[string]any{"istio-locality": "us.b.2"}, "us/b/2 us b 2 c1 net n1"},
		"a network of its own":      {map[string]any{labelNetwork: "other"}, "eu/a/1 eu a 1 c1 other n1"},
		"labels that say otherwise": {map[string]any{labelHostname: "n7", labelCluster: "c7"}, "eu/a/1 eu a 1 c1 net n1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node("n", map[string]any{metaLabels: tc.labels, metaCluster: "c1", metaNetwork: "net", metaNodeName: "n1", metaDNSCapture: "true"})
			n.Locality = &corev3.Locality{Region: "eu", Zone: "a", SubZone: "1"}
			p, err := FromNode(n)
			if err != nil {
				t.Fatal(err)
			}
			v := NewView(p)
			got := fmt.Sprint(v.Locality().GetRegion(), "/", v.Locality().GetZone(), "/", v.Locality().GetSubZone())
			for _, label := range []string{labelRegion, labelZone, labelSubzone, labelCluster, labelNetwork, labelHostname} {
				got += " " + v.Label(label)
			}
			if got != tc.want || !v.CapturesDNS() || v.NodeName() != "n1" {
				t.Errorf("got %s, DNS %v, node %s\nwant %s", got, v.CapturesDNS(), v.NodeName(), tc.want)
			}
		})
	}
}

func TestTheTextsOfANodeAreShortAndPrintable(t *testing.T) {
	for name, n := range map[string]*corev3.Node{
		"a long id": node(strings.Repeat("a", 2000), nil), "an id with control characters": node("a\x1b[31m", nil),
		"a long namespace": node("n", map[string]any{metaNamespace: strings.Repeat("a", 2000)}), "a namespace of two lines": node("n", map[string]any{metaNamespace: "a\nb"}),
	} {
		if _, err := FromNode(n); err == nil || len(err.Error()) > 200 {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
