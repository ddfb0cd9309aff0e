package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// documents are the configuration of the mesh that is measured.
type documents struct {
	dir string
	options
	weight   int // of the route that changes
	endpoint int // of the service that changes
	extra    int // the services that were added
}

func (d *documents) write() error {
	for i := range d.services {
		if err := d.put(serviceFile(i), d.service(i, 1)); err != nil {
			return err
		}
	}
	for i := range min(d.services, 100) {
		if err := d.put(fmt.Sprintf("route-%04d.yaml", i), d.route(i, 10)); err != nil {
			return err
		}
	}
	if d.scoped == 0 {
		return nil
	}
	for n := range d.namespaces {
		var b strings.Builder
		fmt.Fprintf(&b, "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: ns%d}\nspec:\n  egress:\n  - hosts:\n", n)
		for i := range d.scoped {
			fmt.Fprintf(&b, "    - \"*/%s\"\n", host((n*d.scoped+i)%d.services))
		}
		if err := d.put(fmt.Sprintf("sidecar-%d.yaml", n), b.String()); err != nil {
			return err
		}
	}
	return nil
}

// put replaces a file at once.
func (d *documents) put(name, text string) error {
	path := filepath.Join(d.dir, name)
	if err := os.WriteFile(path+".tmp", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func serviceFile(i int) string { return fmt.Sprintf("service-%05d.yaml", i) }
func host(i int) string        { return fmt.Sprintf("service-%05d.mesh.internal", i) }

// endpoint is the address of an endpoint of a service.
func endpoint(i, e int) string { return fmt.Sprintf("10.%d.%d.%d", 1+e, i/250%250, i%250+1) }

// namespaceOf returns the namespace of a service: that of its workload, if sidecars are workloads.
func (o options) namespaceOf(i int) string {
	if o.workloads {
		return fmt.Sprintf("ns%d", i%o.namespaces)
	}
	return "services"
}

// service is a service with an HTTP port that all share, and a TCP port at its own address.
func (d *documents) service(i, endpoints int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: service-%05d, namespace: %s}
spec:
  hosts: [%s]
  addresses: [10.%d.%d.%d]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}]
  endpoints:
`, i, d.namespaceOf(i), host(i), 100+i/62500, i/250%250, i%250+1)
	for e := range endpoints {
		fmt.Fprintf(&b, "  - {address: %s}\n", endpoint(i, e))
	}
	return b.String()
}

func (d *documents) route(i, weight int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: route-%04d, namespace: services}
spec:
  hosts: [%s]
  http:
  - match: [{headers: {x-user: {exact: test}}}]
    route: [{destination: {host: %s, port: {number: 80}}}]
  - timeout: %ds
    route: [{destination: {host: %s, port: {number: 80}}}]
`, i, host(i), host(i), weight, host(i))
}

// changeRoute changes the timeout of one route.
func (d *documents) changeRoute() error {
	d.weight++
	return d.put("route-0000.yaml", d.route(0, 10+d.weight))
}

// changeEndpoint adds an endpoint to one service; changed is the cluster that it belongs to.
func (d *documents) changeEndpoint() error {
	d.endpoint++
	return d.put(serviceFile(1), d.service(1, 1+d.endpoint))
}

func (d *documents) changed() string { return "outbound|80||" + host(1) }

// addService adds a service; added is its cluster.
func (d *documents) addService() error {
	d.extra++
	return d.put(serviceFile(d.services+d.extra), d.service(d.services+d.extra, 1))
}

func (d *documents) added() string { return "outbound|80||" + host(d.services+d.extra) }
