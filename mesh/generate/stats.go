package generate

import (
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/mesh/service"
)

// statName returns the name of statistics that a pattern of the mesh configuration makes of a port of a
// service and of a subset; target is the port of the workload, 0 for none.
func statName(pattern string, svc *service.Service, port service.Port, subset string, target uint32) string {
	host := string(svc.Hostname)
	short, name := host, host
	if svc.Registry == "Kubernetes" {
		short, name = svc.Name+"."+svc.Namespace, svc.Name
	}
	return strings.NewReplacer(
		"%SERVICE%", short, "%SERVICE_NAME%", name, "%SERVICE_FQDN%", host, "%SUBSET_NAME%", subset,
		"%TARGET_PORT%", strconv.Itoa(int(target)), "%SERVICE_PORT%", strconv.Itoa(int(port.Number)), "%SERVICE_PORT_NAME%", port.Name,
	).Replace(pattern)
}

// outboundStatName returns the name of the statistics of an outbound cluster, or of the connections to
// it: that of the mesh configuration, or else the cluster's own.
func (g *Generator) outboundStatName(cluster string, svc *service.Service, port service.Port, subset string) string {
	if pattern := g.snap.Mesh.GetOutboundClusterStatName(); pattern != "" && svc != nil {
		return statName(pattern, svc, port, subset, 0)
	}
	return cluster
}

// inboundStatName returns the name of the statistics of a port of the workload.
func (g *Generator) inboundStatName(cluster string, p inboundPort) string {
	if pattern := g.snap.Mesh.GetInboundClusterStatName(); pattern != "" && p.target != nil {
		return statName(pattern, p.target.Service, p.target.Port, "", p.number)
	}
	return cluster
}

// destinationStatName returns the name of the statistics of the TCP connections to a destination.
func (g *Generator) destinationStatName(cluster string, svc *service.Service) string {
	number, subset, _, _ := ParseClusterName(cluster)
	port := service.Port{Number: number}
	if svc != nil {
		if own, ok := svc.Port(number); ok {
			port = own
		}
	}
	return g.outboundStatName(cluster, svc, port, subset)
}
