package config

import (
	"strings"
	"testing"
)

func TestKindNamed_IsWhatAPersonMeans(t *testing.T) {
	for text, want := range map[string]Kind{
		"VirtualService": VirtualService, "virtualservices": VirtualService, "vs": VirtualService, "VS": VirtualService,
		"virtualservices.networking.istio.io": VirtualService, "virtualservice.networking.istio.io": VirtualService,
		"gateway": Gateway, "gw": Gateway, "gtw": KubernetesGateway, "kubernetesgateway": KubernetesGateway,
		"gateways.gateway.networking.k8s.io": KubernetesGateway, "dr": DestinationRule, "se": ServiceEntry, "svc": Service,
		"refgrant": ReferenceGrant, "meshconfig": MeshConfig,
	} {
		if got, err := KindNamed(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for text, want := range map[string]int{"gateways": 2, "Gateway": 2, "gw": 1, "gtw": 1, "gateways.networking.istio.io": 1, "vs": 1, "": 0} {
		if kinds, err := KindsNamed(text); len(kinds) != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %v, %v", text, kinds, err)
		}
	}
	for _, text := range []string{"virtualservce", "VirtualServices2", "virtualsevice"} {
		if _, err := KindNamed(text); err == nil || !strings.Contains(err.Error(), ", did you mean VirtualService? If not, want one of ") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "xyzzy"} {
		if _, err := KindNamed(text); err == nil || !strings.Contains(err.Error(), ": want one of ServiceEntry, ") {
			t.Errorf("%q: %v", text, err)
		}
	}
	short := make(map[string]Kind)
	for kind, abbreviation := range abbreviations {
		if other, twice := short[abbreviation]; twice || SchemaOf(kind) == nil {
			t.Errorf("%s is %s and %s", abbreviation, kind, other)
		}
		short[abbreviation] = kind
	}
}
