package istio

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// An application whose sidecar is holdfast's gets the same answers as one whose sidecar is pilot-agent's, from the same
// applications, whatever the configuration makes of a request.
func TestTheSameAnswersAsWithPilotAgent(t *testing.T) {
	m := newMesh(t, "same")
	m.deploy("h", 1, withHoldfast)
	m.deploy("p", 1, withPilotAgent)
	m.deploy("one", 1, withHoldfast)
	m.deploy("two", 1, withPilotAgent)
	m.deploy("outside", 1, withoutSidecar)
	for _, name := range []string{"h", "p", "one", "two", "outside"} {
		m.RolledOut(name)
	}
	m.Apply(strings.ReplaceAll(strings.ReplaceAll(configuration, "OUTSIDE_IP", m.Pod(selector("outside")).Status.PodIP), "NAMESPACE", m.Name))
	const anywhere = "http://10.99.0.1" // of the ServiceEntry "names"; the header Host says which of its hosts
	for _, r := range []struct{ what, url, host, status string }{
		{"mutual TLS with holdfast", "http://one/echo?msg=hello", "", "200"},
		{"mutual TLS with pilot-agent", "http://two/echo?msg=hello", "", "200"},
		{"a longer name", "http://one.same.svc.cluster.local/echo?msg=hello", "", "200"},
		{"a status of the application", "http://one/echo?msg=teapot&code=418", "", "418"},
		{"a name that nobody has", anywhere, "nowhere.example", ""},
		{"ServiceEntry", anywhere + "/echo?msg=outside", "outside.example", "200"},
		{"VirtualService: rewrite, and a header of the response", anywhere + "/anything", "rewritten.example", "200"},
		{"VirtualService: an abort", anywhere, "fault.example", "418"},
		{"VirtualService: a redirect", anywhere, "redirect.example", "301"},
		{"VirtualService: all weight on one of two", anywhere + "/echo?msg=weights", "mirror.example", "200"},
		{"a headless Service", "http://headless:8080/echo?msg=headless", "", "200"},
		{"AuthorizationPolicy", "http://one/denied", "", "403"},
		{"a Service by its address", "http://" + m.Service("one") + "/echo?msg=by-address", "", "200"},
		{"a pod outside of the mesh by its address", "http://" + m.Pod(selector("outside")).Status.PodIP + ":8080/echo?msg=plain", "", "200"},
	} {
		t.Run(r.what, func(t *testing.T) {
			m := &mesh{m.During(t)}
			m.Eventually(30*time.Second, func() error { // both proxies have the configuration
				h, p := comparable(m.get("h", r.url, "-host", r.host)), comparable(m.get("p", r.url, "-host", r.host))
				switch {
				case !maps.Equal(h, p):
					return fmt.Errorf("holdfast %v, pilot-agent %v", h, p)
				case r.status != "" && h["status"] != r.status:
					return fmt.Errorf("both %v, want status %s", h, r.status)
				case r.what == "ServiceEntry" && h["X-Filter"] != "envoyfilter":
					return fmt.Errorf("both %v, without the header of the EnvoyFilter", h)
				case strings.HasPrefix(r.what, "VirtualService: rewrite") && h["X-From"] != "virtualservice":
					return fmt.Errorf("both %v, without the header of the VirtualService", h)
				}
				return nil
			})
		})
	}
	m.balanced("h")
	m.balanced("p")
	for _, name := range []string{"h", "p"} {
		log := m.Kubectl("logs", m.Pod(selector(name)).Metadata.Name, "--container", "istio-proxy")
		if !strings.Contains(log, "GET /echo?msg=hello") {
			t.Errorf("%s: Telemetry's access log is not there", name)
		}
	}
}

// comparable is what of a response does not depend on the time and the client.
func comparable(r cluster.Response) map[string]string {
	all := map[string]string{"status": fmt.Sprint(r.Status), "body": r.Body, "error": r.Error}
	for _, name := range []string{"Server", "Content-Type", "Location", "X-From", "X-Filter"} {
		if r.Header.Get(name) != "" {
			all[name] = r.Header.Get(name)
		}
	}
	return all
}

// balanced checks that a VirtualService's weights lead to both of its destinations.
func (m *mesh) balanced(from string) {
	m.Helper()
	counts := make(map[string]int)
	for range 40 {
		r := m.get(from, "http://10.99.0.1/hostname", "-host", "half.example")
		name, _, _ := strings.Cut(r.Body, "-")
		counts[name]++
	}
	if counts["one"] < 8 || counts["two"] < 8 || counts["one"]+counts["two"] != 40 {
		m.Errorf("%s: weights of 50 and 50 led to %v", from, counts)
	}
}

const configuration = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside}
spec:
  hosts: [outside.example]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  resolution: STATIC
  location: MESH_EXTERNAL
  endpoints: [{address: OUTSIDE_IP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: names}
spec:
  hosts: [rewritten.example, fault.example, redirect.example, mirror.example, half.example]
  addresses: [10.99.0.1]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.99.0.2}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: rewritten}
spec:
  hosts: [rewritten.example]
  http:
  - rewrite: {uri: "/echo?msg=rewritten", authority: one}
    route: [{destination: {host: one, port: {number: 80}}, headers: {response: {set: {x-from: virtualservice}}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: fault}
spec:
  hosts: [fault.example]
  http: [{fault: {abort: {httpStatus: 418, percentage: {value: 100}}}, route: [{destination: {host: one}}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: redirect}
spec:
  hosts: [redirect.example]
  http: [{redirect: {authority: one, uri: "/echo?msg=redirected"}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: mirror}
spec:
  hosts: [mirror.example]
  http: [{route: [{destination: {host: one}, weight: 100}, {destination: {host: two}, weight: 0}]}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: half}
spec:
  hosts: [half.example]
  http: [{route: [{destination: {host: one}, weight: 50}, {destination: {host: two}, weight: 50}]}]
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: two}, ports: [{name: http, port: 8080}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: denied}
spec:
  selector: {matchLabels: {app: one}}
  action: DENY
  rules: [{to: [{operation: {paths: ["/denied*"]}}]}]
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: header}
spec:
  configPatches:
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-filter, value: envoyfilter}}]}}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: log}
spec: {accessLogging: [{providers: [{name: envoy}]}]}
`

// A gateway of the template "gateway,holdfast" serves HTTPS with the certificate of a Secret that istiod reads for it.
func TestAGateway(t *testing.T) {
	m := newMesh(t, "edge")
	m.deploy("web", 1, withHoldfast)
	_, cert, key, err := cluster.ServerCertificate("shop.example")
	m.Check(err)
	dir := t.TempDir()
	m.Write(dir, "tls.crt", string(cert))
	m.Write(dir, "tls.key", string(key))
	m.Kubectl("create", "secret", "tls", "shop", "--cert", dir+"/tls.crt", "--key", dir+"/tls.key")
	for name, templates := range map[string]string{"h": "gateway,holdfast", "p": "gateway"} {
		m.Apply(fmt.Sprintf(gateway, name, templates))
	}
	m.Apply(`
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  selector: {edge: "yes"}
  servers: [{port: {number: 8443, name: https, protocol: HTTPS}, hosts: [shop.example], tls: {mode: SIMPLE, credentialName: shop}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop}
spec: {hosts: [shop.example], gateways: [edge], http: [{route: [{destination: {host: web}}]}]}`)
	m.RolledOut("web")
	for _, name := range []string{"h", "p"} {
		m.RolledOut("gateway-" + name)
		m.Eventually(30*time.Second, func() error {
			r, err := rig.Node.Get(loadProgram(), "https://"+m.Pod("app=gateway-"+name).Status.PodIP+":8443/echo?msg=hello", "-host", "shop.example")
			if err != nil || r.Status != 200 || r.Body != "hello" || r.CommonName != "shop.example" {
				return fmt.Errorf("gateway-%s: %+v (%v)", name, r, err)
			}
			return nil
		})
	}
	// Its certificate changes in the Secret, and so does what it serves.
	_, cert, key, err = cluster.ServerCertificate("renewed.example", "shop.example")
	m.Check(err)
	m.Write(dir, "tls.crt", string(cert))
	m.Write(dir, "tls.key", string(key))
	m.Kubectl("delete", "secret", "shop")
	m.Kubectl("create", "secret", "tls", "shop", "--cert", dir+"/tls.crt", "--key", dir+"/tls.key")
	m.Eventually(time.Minute, func() error {
		r, err := rig.Node.Get(loadProgram(), "https://"+m.Pod("app=gateway-h").Status.PodIP+":8443/echo?msg=hello", "-host", "shop.example")
		if err != nil || r.Status != 200 || r.CommonName != "renewed.example" {
			return fmt.Errorf("%+v (%v)", r, err)
		}
		return nil
	})
}

const gateway = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: gateway-%[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: gateway-%[1]s}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get, watch, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: gateway-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: gateway-%[1]s}
subjects: [{kind: ServiceAccount, name: gateway-%[1]s}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gateway-%[1]s}
spec:
  selector: {matchLabels: {app: gateway-%[1]s}}
  template:
    metadata:
      labels: {app: gateway-%[1]s, edge: "yes", sidecar.istio.io/inject: "true"}
      annotations: {inject.istio.io/templates: "%[2]s"}
    spec:
      serviceAccountName: gateway-%[1]s
      containers: [{name: istio-proxy, image: auto, imagePullPolicy: IfNotPresent}]
`

// A pod that ends, ends with holdfast as its sidecar: what its init container and its container ask goes through the mesh.
func TestAPodThatEnds(t *testing.T) {
	m := newMesh(t, "ends")
	m.deploy("web", 1, withHoldfast)
	m.RolledOut("web")
	for job, annotations := range map[string]string{"one": withHoldfast, "apart": withHoldfast + ", " + envoyApart} {
		ask := `[/load, -once, -url, "http://web/hostname"]`
		m.Apply(fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %s}
spec:
  backoffLimit: 0
  template:
    metadata: {annotations: {%s}, labels: {app: %[1]s}}
    spec:
      restartPolicy: Never
      initContainers: [{name: before, image: "%[3]s", command: %[4]s}]
      containers: [{name: application, image: "%[3]s", command: %[4]s}]`, job, annotations, rig.Agnhost, ask))
		m.Kubectl("wait", "--for=condition=Complete", "job/"+job, "--timeout=2m")
		for _, container := range []string{"before", "application"} {
			if log := m.Kubectl("logs", "job/"+job, "--container", container); !strings.Contains(log, `"Status":200`) {
				t.Errorf("%s: %s: %s", job, container, log)
			}
		}
		if !slices.ContainsFunc(m.Pods(selector(job)), func(p cluster.Pod) bool { return p.Status.Phase == "Succeeded" }) {
			t.Errorf("%s: the pod has not succeeded", job)
		}
	}
}
