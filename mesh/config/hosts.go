package config

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// withoutDot returns a host without the dot at its end, which says that it is not to be completed: no host of a document is, but names of
// Services, which have no dots. A host with a namespace before it, "shop/web.example.com.", has its namespace.
func withoutDot(host string) string {
	short, dotted := strings.CutSuffix(host, ".")
	if !dotted || short == "" || strings.HasSuffix(short, ".") || strings.HasSuffix(short, "*") || strings.HasSuffix(short, "/") {
		return host // what is wrong with it is said of what was written
	}
	return short
}

// canonicalHosts takes the dots from the ends of the hosts of a document. With and without it a host is the same one, whoever asks for it.
func canonicalHosts(spec any) {
	all := func(hosts []string) {
		for i := range hosts {
			hosts[i] = withoutDot(hosts[i])
		}
	}
	to := func(d *networking.Destination) {
		if d != nil {
			d.Host = withoutDot(d.Host)
		}
	}
	switch spec := spec.(type) {
	case *networking.ServiceEntry:
		all(spec.Hosts)
	case *networking.Gateway:
		for _, server := range spec.Servers {
			all(server.Hosts)
		}
	case *networking.DestinationRule:
		spec.Host = withoutDot(spec.Host)
	case *networking.Sidecar:
		for _, egress := range spec.Egress {
			all(egress.GetHosts())
		}
	case *networking.VirtualService:
		all(spec.Hosts)
		for _, route := range spec.Http {
			for _, destination := range route.GetRoute() {
				to(destination.GetDestination())
			}
			to(route.GetMirror())
			for _, mirror := range route.GetMirrors() {
				to(mirror.GetDestination())
			}
		}
		for _, route := range spec.Tls {
			for _, match := range route.GetMatch() {
				all(match.GetSniHosts())
			}
			for _, destination := range route.GetRoute() {
				to(destination.GetDestination())
			}
		}
		for _, route := range spec.Tcp {
			for _, destination := range route.GetRoute() {
				to(destination.GetDestination())
			}
		}
	}
}
