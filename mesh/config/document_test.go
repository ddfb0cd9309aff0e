package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	meta "istio.io/api/meta/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
)

// problems reads a file and returns the text of its problems.
func problems(t *testing.T, name, text string) []string {
	t.Helper()
	documents, broken := Read(name, []byte(text))
	var texts []string
	if broken != nil {
		texts = append(texts, broken.String())
	}
	for _, d := range documents {
		for _, p := range d.Problems {
			texts = append(texts, p.String())
		}
		if d.Config != nil && Invalid(d.Problems) {
			t.Errorf("%s has an error and is used", d.Key)
		}
	}
	return texts
}

// compare compares problems.
func compare(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("problems\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

const reviews = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: reviews
  namespace: shop
  labels: {app: reviews}
  annotations: {note: "1"}
  creationTimestamp: "2026-01-02T03:04:05Z"
  uid: 0b8a
spec:
  hosts: [reviews]
  http:
  - route:
    - destination: {host: reviews}
status:
  anything: [1]
`

func TestADocumentOfIstioIsRead(t *testing.T) {
	documents, broken := Read("file.yaml", []byte("# comment\n"+reviews))
	if broken != nil || len(documents) != 1 || len(documents[0].Problems) > 0 {
		t.Fatalf("documents %+v, problem %v", documents, broken)
	}
	c := documents[0].Config
	if c.Meta.Key != (Key{VirtualService, "shop", "reviews"}) || c.Labels["app"] != "reviews" || c.Annotations["note"] != "1" ||
		!c.Created.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) || c.Origin != "file.yaml:2" || c.APIVersion != "networking.istio.io/v1" {
		t.Errorf("metadata %+v", c.Meta)
	}
	spec := c.Spec.(*networking.VirtualService)
	if spec.Http[0].Route[0].Destination.Host != "reviews" {
		t.Errorf("spec %v", spec)
	}
	if line := documents[0].Line("spec.http[0].route[0].destination.host"); line != 15 {
		t.Errorf("the host is on line %d, want 15", line)
	}
}

func TestADocumentOfKubernetesIsRead(t *testing.T) {
	const service = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "managedFields": [{"a": 1}], "creationTimestamp": null},
 "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80, "targetPort": "http"}]},
 "status": {"fieldOfALaterVersion": 1, "loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}`
	documents, broken := Read("file.json", []byte(service))
	if broken != nil || len(documents) != 1 || len(documents[0].Problems) > 0 {
		t.Fatalf("documents %+v, problem %v", documents, broken)
	}
	object := documents[0].Config.Spec.(*corev1.Service)
	if object.Name != "web" || object.Namespace != "default" || object.Kind != "Service" || object.Spec.Ports[0].TargetPort.StrVal != "http" ||
		object.Status.LoadBalancer.Ingress[0].IP != "192.0.2.1" {
		t.Errorf("object %+v", object)
	}
}

func TestTheStatusesThatMatterAreRead(t *testing.T) {
	const text = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: w}
spec: {address: 10.0.0.1}
status:
  ofALaterVersion: 1
  conditions: [{type: Healthy, status: "False", lastProbeTime: "2026-01-02T03:04:05Z", other: x}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s}
spec: {hosts: [a.test], resolution: DNS, ports: [{number: 80, name: http}]}
status:
  addresses: [{value: 240.240.0.7, host: a.test}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: wrong}
spec: {address: 10.0.0.1}
status: {conditions: 1}
`
	documents, broken := Read("file.yaml", []byte(text))
	if broken != nil || len(documents) != 3 {
		t.Fatalf("%d documents, problem %v", len(documents), broken)
	}
	w, s := documents[0].Config, documents[1].Config
	if c := w.Status.(*meta.IstioStatus).Conditions; len(c) != 1 || c[0].Type != "Healthy" || c[0].Status != "False" {
		t.Errorf("conditions %v", c)
	}
	if a := s.Status.(*networking.ServiceEntryStatus).Addresses; len(a) != 1 || a[0].Value != "240.240.0.7" || a[0].Host != "a.test" {
		t.Errorf("addresses %v", a)
	}
	if documents[2].Config != nil || documents[2].Problems[0].Line != 20 {
		t.Errorf("a status that cannot be read: %+v", documents[2])
	}
	version := ContentVersion(w)
	w.Status.(*meta.IstioStatus).Conditions[0].Status = "True"
	if ContentVersion(w) == version {
		t.Error("the version does not depend on the status")
	}
}

func TestAllVersionsOfAKindAreRead(t *testing.T) {
	for _, s := range Schemas {
		if s.Kind.ofConfigMap() {
			continue
		}
		for _, version := range s.Versions {
			apiVersion := strings.TrimPrefix(s.Group+"/"+version, "/")
			found, known := schemaFor(apiVersion, s.Kind.Short())
			if !known || found.Kind != s.Kind {
				t.Errorf("%s %s is not read", apiVersion, s.Kind)
			}
		}
		if SchemaOf(s.Kind).Kind != s.Kind || !strings.HasSuffix(s.APIVersion(), s.Versions[0]) {
			t.Errorf("the schema of %s is that of another kind", s.Kind)
		}
	}
}

func TestProblemsOfDocumentsNameLineAndField(t *testing.T) {
	const head = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\n"
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"no kind", "apiVersion: v1\n", []string{"file.yaml:1: kind: it is missing: every document needs an apiVersion and a kind"}},
		{"no apiVersion", "kind: Service\n", []string{"file.yaml:1: apiVersion: it is missing: every document needs an apiVersion and a kind"}},
		{"a kind that is no string", "apiVersion: v1\nkind: [Service]\n", []string{"file.yaml:1: kind: it is missing: every document needs an apiVersion and a kind"}},
		{"a list of documents", "- a\n", []string{"file.yaml:1: a document must be a mapping that has apiVersion and kind"}},
		{"no YAML", "a: [\n", []string{"file.yaml:1: did not find expected node content"}},
		{"an unknown version", "apiVersion: networking.istio.io/v2\nkind: Gateway\nmetadata: {name: a}\n",
			[]string{"file.yaml:1: Gateway default/a: apiVersion: networking.istio.io/v2 is not read: write networking.istio.io/v1"}},
		{"no metadata", "apiVersion: networking.istio.io/v1\nkind: Gateway\n", []string{"file.yaml:1: Gateway: metadata: it is missing: a document must have a name"}},
		{"no name", "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata:\n  labels: {}\n", []string{"file.yaml:4: Gateway: metadata.name: it is missing"}},
		{"a generated name", "apiVersion: v1\nkind: Secret\nmetadata:\n  generateName: a-\n", []string{"file.yaml:4: Secret: metadata.name: it is missing: names are not generated"}},
		{"a wrong name", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: A_b\n", []string{"file.yaml:4: Secret default/A_b: metadata.name: must consist of lower case letters, digits, '-' and '.', at most 253"}},
		{"a wrong namespace", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  namespace: a.b\n",
			[]string{"file.yaml:5: Secret a.b/a: metadata.namespace: must consist of lower case letters, digits and '-', at most 63"}},
		{"an unknown field of metadata", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  label: {}\n", []string{"file.yaml:5: Secret default/a: metadata.label: unknown field, did you mean labels?"}},
		{"a label that is no string", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  labels:\n    b: 1\n",
			[]string{"file.yaml:6: Secret default/a: metadata.labels.b: must be a string: write numbers and booleans in quotes"}},
		{"a wrong time", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n  creationTimestamp: today\n",
			[]string{"file.yaml:5: Secret default/a: metadata.creationTimestamp: must be a time as in 2006-01-02T15:04:05Z"}},
		{"an unknown field", head + "spec:\n  hosts: [a]\n  http:\n  - rout: []\n", []string{`file.yaml:7: VirtualService default/a: spec.http[0].rout: unknown field "rout", did you mean route?`}},
		{"a value that an enumeration does not have", "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a}\nspec: {host: a, trafficPolicy: {tls: {mode: SIMPL}}}\n",
			[]string{`file.yaml:4: DestinationRule default/a: spec.trafficPolicy.tls.mode: "SIMPL" is no value of this field: want one of DISABLE, SIMPLE, MUTUAL, ISTIO_MUTUAL, did you mean SIMPLE?`}},
		{"an unknown field beside spec", head + "specs: {}\n", []string{"file.yaml:4: VirtualService default/a: specs: unknown field, did you mean spec?"}},
		{"a wrong type", head + "spec:\n  hosts: a\n", []string{"file.yaml:5: VirtualService default/a: spec.hosts: must be a list, and is a string"}},
		{"unknown fields of Kubernetes, all at once", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: x\n    targetport: 1\n  clusterIP: 1\n  selector: a\n",
			[]string{"file.yaml:6: Service default/a: spec.ports[0].port: must be a number (int32), and is a string",
				"file.yaml:7: Service default/a: spec.ports[0].targetport: unknown field, did you mean targetPort?",
				"file.yaml:8: Service default/a: spec.clusterIP: must be a string, and is a number",
				"file.yaml:9: Service default/a: spec.selector: must be a mapping"}},
		{"data of a secret that is no base64", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata:\n  password: hunter2!\n",
			[]string{"file.yaml:5: Secret default/a: data.password: must be a string in base64"}},
		{"a List without items", "apiVersion: v1\nkind: List\nitem: []\n", []string{"file.yaml:3: item: unknown field of a List", "file.yaml:1: items: a List must have a list of items"}},
		{"a duration that is none", head + "spec:\n  hosts: [a]\n  http:\n  - timeout: 1min\n    route:\n    - destination: {host: a}\n",
			[]string{`file.yaml:7: VirtualService default/a: spec.http[0].timeout: invalid google.protobuf.Duration value "1min"`}},
		{"a duration in minutes that is too fine", head + "spec:\n  hosts: [a]\n  http:\n  - timeout: 1m0.5us\n    route:\n    - destination: {host: a}\n",
			[]string{"file.yaml:7: VirtualService default/a: spec.http[0].timeout: must be a duration in whole milliseconds, and is 1m0.0000005s"}},
		{"an item of a List", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec: {port: 1}\n- " +
			strings.ReplaceAll(head, "\n", "\n  ") + "spec: {host: []}\n",
			[]string{"file.yaml:7: Service default/a: spec.port: unknown field, did you mean ports?", `file.yaml:11: VirtualService default/a: spec.host: unknown field "host", did you mean hosts?`}},
		{"a field in snake case", head + "spec:\n  hosts: [a]\n  http:\n  - mirror: {host: b}\n    mirror_percentage:\n      value: 101\n    route:\n    - destination: {host: a}\n",
			[]string{"file.yaml:9: VirtualService default/a: spec.http[0].mirrorPercentage.value: must be a percentage from 0 to 100, and is 101"}},
		{"a field that is not supported", head + "spec:\n  hosts: [a]\n  tcp:\n  - match:\n    - sourceSubnet: 10.0.0.0/8\n    route:\n    - destination: {host: a}\n",
			[]string{"file.yaml:8: VirtualService default/a: spec.tcp[0].match[0].sourceSubnet: warning: not supported: reserved: Istio does not implement it [HM0101]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			compare(t, problems(t, "file.yaml", tc.text), tc.want)
		})
	}
}

func TestKindsThatAreNotReadGetAWarning(t *testing.T) {
	for _, tc := range []struct{ apiVersion, kind, want string }{
		{"extensions.istio.io/v1alpha1", "WasmPlugin", "ignored: proxies are not extended [HM0002]"},
		{"ambient.istio.io/v1", "Unheard", "ignored: Istio's kind Unheard is not supported [HM0002]"},
		{"gateway.networking.k8s.io/v1", "UDPRoute", "ignored: UDP is not proxied [HM0002]"},
		{"gateway.networking.k8s.io/v1", "Unheard", "ignored: the kind Unheard of the Gateway API is not read [HM0002]"},
		{"apps/v1", "Deployment", "ignored: this kind has no meaning for the mesh [HM0002]"},
		{"v1", "PersistentVolume", "ignored: this kind has no meaning for the mesh [HM0002]"},
		{"example.com/v1", "Service", "ignored: this kind has no meaning for the mesh [HM0002]"},
	} {
		t.Run(tc.apiVersion+" "+tc.kind, func(t *testing.T) {
			got := problems(t, "file.yaml", "apiVersion: "+tc.apiVersion+"\nkind: "+tc.kind+"\nmetadata: {name: a, namespace: b}\nspec: {x: y}\n")
			compare(t, got, []string{"file.yaml:1: " + tc.kind + " b/a: warning: " + tc.want})
		})
	}
}

func TestAMisspelledKindIsAnError(t *testing.T) {
	got := problems(t, "file.yaml", "apiVersion: networking.istio.io/v1\nkind: Gatway\nmetadata: {name: a, namespace: b}\nspec: {x: y}\n")
	compare(t, got, []string{`file.yaml:2: Gatway b/a: kind: networking.istio.io has no kind "Gatway", but DestinationRule, EnvoyFilter, Gateway, ` +
		"ProxyConfig, ServiceEntry, Sidecar, VirtualService, WorkloadEntry, WorkloadGroup"})
}

func TestTheMeshConfigurationIsReadFromItsConfigMap(t *testing.T) {
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\n"
	documents, broken := Read("file.yaml", []byte(head+"data:\n  mesh: |-\n    accessLogFile: /dev/stdout\n    # comment\n    connectTimeout: 3s\n"))
	if broken != nil || len(documents) != 1 || len(documents[0].Problems) > 0 {
		t.Fatalf("documents %+v, problem %v", documents, broken)
	}
	c := documents[0].Config
	if mesh := c.Spec.(*meshv1alpha1.MeshConfig); c.Meta.Key != (Key{MeshConfig, RootNamespace, MeshName}) || mesh.AccessLogFile != "/dev/stdout" || mesh.ConnectTimeout.AsDuration() != 3*time.Second {
		t.Errorf("%s is %v", c.Meta.Key, mesh)
	}
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"an unknown field", "data:\n  mesh: |-\n    accessLogFile: a\n    accessLog: b\n", []string{`file.yaml:9: MeshConfig istio-system/istio: accessLog: unknown field "accessLog"`}},
		{"a wrong value", "data:\n  mesh: |\n\n    connectTimeout: 1m\n", []string{"file.yaml:9: MeshConfig istio-system/istio: connectTimeout: must be at most 30s, and is 1m0s"}},
		{"in quotes", `data: {"mesh": "accessLogFile: a\nproxyListenPort: 0\nproxyHttpPort: 70000\n"}` + "\n",
			[]string{"file.yaml:6: MeshConfig istio-system/istio: proxyHttpPort: must be a port from 1 to 65535, and is 70000"}},
		{"no YAML", "data:\n  mesh: |\n    a: [\n", []string{"file.yaml:8: MeshConfig istio-system/istio: did not find expected node content"}},
		{"two documents", "data:\n  mesh: |\n    rootNamespace: a\n    ---\n    b: c\n", []string{"file.yaml:10: MeshConfig istio-system/istio: there must be one document only"}},
		{"other keys", "data:\n  values: '{}'\n", []string{"file.yaml:7: MeshConfig istio-system/istio: data.values: warning: ignored: only the keys mesh and meshNetworks are read [HM0003]"}},
		{"a field that is not supported", "data:\n  mesh: |\n    ingressService: a\n",
			[]string{"file.yaml:8: MeshConfig istio-system/istio: ingressService: warning: not supported: the status of an Ingress is not written [HM0101]"}},
		{"no text", "data:\n  mesh: {a: b}\n", []string{"file.yaml:7: MeshConfig istio-system/istio: data.mesh: must be a string that has YAML"}},
		{"no data", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			compare(t, problems(t, "file.yaml", head+tc.text), tc.want)
		})
	}
}

func TestTheNetworksAreReadFromTheConfigMapOfTheMesh(t *testing.T) {
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: istio\n  namespace: istio-system\ndata:\n  meshNetworks: |\n    networks:\n"
	documents, broken := Read("file.yaml", []byte(head+"      east: {endpoints: [{fromCidr: 10.0.0.0/8}], gateways: [{address: 192.0.2.1, port: 15443}]}\n"))
	if broken != nil || len(documents) != 2 || len(documents[0].Problems)+len(documents[1].Problems) > 0 {
		t.Fatalf("documents %+v, problem %v", documents, broken)
	}
	c := documents[1].Config
	if spec := c.Spec.(*meshv1alpha1.MeshNetworks); c.Meta.Key != (Key{MeshNetworks, RootNamespace, MeshName}) || spec.Networks["east"].GetGateways()[0].GetPort() != 15443 {
		t.Errorf("%s is %v", c.Meta.Key, spec)
	}
	const at = "MeshNetworks istio-system/istio: networks.east"
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"no prefix", "      east: {endpoints: [{fromCidr: 10.0.0.0/33}]}\n", []string{`file.yaml:9: ` + at + `.endpoints[0].fromCidr: "10.0.0.0/33" is no IP prefix as in 10.0.0.0/8`}},
		{"no registry", "      east:\n        endpoints:\n        - fromRegistry: a.b\n", []string{`file.yaml:11: ` + at + `.endpoints[0].fromRegistry: "a.b" is no name of a cluster: use letters, digits and '-'`}},
		{"no port", "      east: {gateways: [{address: 192.0.2.1}]}\n", []string{"file.yaml:9: " + at + ".gateways[0].port: must be a port from 1 to 65535, and is 0"}},
		{"no address", "      east: {gateways: [{address: a b, port: 1}]}\n", []string{`file.yaml:9: ` + at + `.gateways[0].address: "a b" is neither an IP address nor a host`}},
		{"no service", "      east: {gateways: [{registryServiceName: 'a b', port: 1}]}\n", []string{`file.yaml:9: ` + at + `.gateways[0].registryServiceName: "a b" is no host: use labels of letters, digits and '-', at most 63 each, with dots between them`}},
		{"a name", "      east: {gateways: [{address: east.example, port: 1}]}\n", []string{"file.yaml:9: " + at + ".gateways[0].address: warning: only proxies resolve names: " +
			"the gateway is used for services with the resolution DNS, and not for those whose endpoints have IP addresses [HM0114]"}},
		{"nothing", "      east: {gateways: [{port: 1}], endpoints: [{}]}\n", []string{
			"file.yaml:9: " + at + ".endpoints[0]: warning: it says nothing: write fromCidr or fromRegistry [HM0114]", "file.yaml:9: " + at + ".gateways[0]: warning: it says nothing: write address or registryServiceName [HM0114]"}},
		{"no effect", "      east: {gateways: [{address: 192.0.2.1, port: 1, locality: a}]}\n", []string{
			"file.yaml:9: " + at + ".gateways[0].locality: warning: not supported: as with istiod, a gateway has the locality of the endpoints that it stands for [HM0101]"}},
		{"an unknown field", "      east: {gateway: []}\n", []string{`file.yaml:9: ` + at + `.gateway: unknown field "gateway", did you mean gateways?`}},
	} {
		t.Run(tc.name, func(t *testing.T) { compare(t, problems(t, "file.yaml", head+tc.text), tc.want) })
	}
}

func TestOneBadDocumentHarmsNoOther(t *testing.T) {
	documents, broken := Read("file.yaml", []byte(reviews+"---\nkind: Gateway\n---\n"+strings.Replace(reviews, "name: reviews", "name: other", 1)))
	if broken != nil || len(documents) != 3 || documents[0].Config == nil || documents[1].Config != nil || documents[2].Config == nil {
		t.Errorf("documents %+v, problem %v", documents, broken)
	}
}

func TestTheVersionOfAContentIsThatOfWhatItSays(t *testing.T) {
	version := func(text string) string {
		documents, _ := Read("file.yaml", []byte(text))
		if len(documents) != 1 || documents[0].Config == nil {
			t.Fatalf("%s: %+v", text, documents)
		}
		return ContentVersion(documents[0].Config)
	}
	same := version(reviews)
	if version("\n\n"+reviews) != same || version(strings.Replace(reviews, "anything", "other", 1)) != same {
		t.Error("the version depends on the place or on the status")
	}
	for _, change := range []string{"hosts: [reviews]", "{app: reviews}", `note: "1"`, "04:05Z"} {
		if version(strings.Replace(reviews, change, strings.NewReplacer("reviews", "other", "1", "2", "05Z", "06Z").Replace(change), 1)) == same {
			t.Errorf("the version does not depend on %s", change)
		}
	}
}
