package main

import (
	"bytes"
	"os"
	"path/filepath"
	"text/template"
)

// The documents of the demo. Everything runs on one machine, so each workload has ports of its own: the
// Sidecars say where its proxy listens.
var documents = template.Must(template.New("").Parse(`
{{define "web"}}apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: {{.Service}}, name: http, protocol: HTTP}]
  endpoints:
{{- range .Endpoints}}
  - {address: 127.0.0.1, ports: {http: {{.Port}}}, labels: {app: web, version: {{.Version}}}}
{{- end}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: web.shop.internal
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
{{end}}

{{define "sidecars"}}
{{- range .Workloads}}apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: {{.Name}}, namespace: shop}
spec:
  workloadSelector: {labels: {instance: {{.Name}}}}
  ingress: [{port: {number: {{.Port}}, name: http, protocol: HTTP}, defaultEndpoint: "{{.Application}}"}]
  egress: [{hosts: ["~/*"]}]
---
{{end -}}
{{end}}

{{define "gateway"}}apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers: [{port: {number: {{.Edge}}, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: [shop.example.com]}]
{{end}}

{{define "route"}}apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.internal, shop.example.com]
  gateways: [mesh, edge]
  http:
{{- if .Fault}}
  - match: [{headers: {x-demo: {exact: fault}}}]
    fault: {abort: {percentage: {value: 100}, httpStatus: 418}}
    route: [{destination: {host: web.shop.internal, subset: v1}}]
{{- end}}
  - route:
    - {destination: {host: web.shop.internal, subset: v1}, weight: {{.V1}}}
    - {destination: {host: web.shop.internal, subset: v2}, weight: {{.V2}}}
{{end}}
`))

// endpoint is an endpoint of the service: the port of the proxy before a version of it.
type endpoint struct {
	Port    int
	Version string
}

// write puts a document into the directory by rename, as an editor does.
func (d *demo) write(name string, values any) error {
	var b bytes.Buffer
	if err := documents.ExecuteTemplate(&b, name, values); err != nil {
		return err
	}
	return d.put(name, b.Bytes())
}

func (d *demo) put(name string, text []byte) error {
	tmp := d.path("edited.tmp")
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(d.path("mesh"), name+".yaml"))
}

// route writes the VirtualService with the weights of the versions.
func (d *demo) route(v1, v2 int, fault bool) error {
	return d.write("route", map[string]any{"V1": v1, "V2": v2, "Fault": fault})
}

// web writes the service with its endpoints.
func (d *demo) web(endpoints ...endpoint) error {
	return d.write("web", map[string]any{"Service": d.service, "Endpoints": endpoints})
}
