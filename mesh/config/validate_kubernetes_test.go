package config

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ocsp"
)

func TestServicesAreValidated(t *testing.T) {
	validateRows(t, Service, []row{
		{"valid", "spec: {ports: [{port: 80}], selector: {app: a}, sessionAffinity: None}", nil},
		{"headless without ports", "spec: {clusterIP: None}", nil},
		{"no ports", "spec: {}", []string{"spec.ports: must have at least one port"}},
		{"an automatic address", "spec: {clusterIP: 240.240.0.1, clusterIPs: [240.240.0.1, 10.0.0.1], ports: [{port: 80}]}", []string{`spec.clusterIP: warning: "240.240.0.1" is one of the addresses that services without one are given (240.240.0.0/16, 2001:2::/48): it is not this one's while an older service has it [HM0412]`}},
		{"addresses", "spec: {clusterIP: x, clusterIPs: [z], ports: [{port: 80}]}", []string{`spec.clusterIP: "x" is no IP address`, `spec.clusterIPs[0]: "z" is no IP address`, "spec.clusterIPs[0]: must be the clusterIP"}},
		{"ports", "spec: {ports: [{port: 80}, {port: 80, name: a_b, targetPort: 70000}, {port: 80, name: a, protocol: UDP}, {port: 0, name: a, protocol: SCTP}, {port: 1, name: c, protocol: X}]}", []string{
			"spec.ports[0].name: it is missing: each of several ports needs a name",
			`spec.ports[1].name: "a_b" is no name of a port: use lower case letters, digits and '-', at most 63`, "spec.ports[1].port: 80 is the port of ports[0] too",
			"spec.ports[1].targetPort: must be a port from 1 to 65535, and is 70000",
			"spec.ports[3].port: must be a port from 1 to 65535, and is 0", "spec.ports[3].protocol: warning: SCTP is not proxied [HM0110]", `spec.ports[3].name: "a" is the name of ports[2] too`,
			`spec.ports[4].protocol: "X" is no protocol: write TCP or UDP`}},
		{"an external name", "spec: {type: ExternalName, externalName: a_b}", []string{`spec.externalName: "a_b" is no host: use labels of letters, digits and '-', at most 63 each, with dots between them`}},
		{"a type that is none", "spec: {type: Other}", []string{`spec.type: "Other" is no type: write ClusterIP, NodePort, LoadBalancer or ExternalName`}},
		{"affinity of clients", "spec: {ports: [{port: 80}], sessionAffinity: ClientIP}", []string{"spec.sessionAffinity: warning: not supported: write a DestinationRule with consistentHash [HM0101]"}},
	})
}

func TestEndpointSlicesAreValidated(t *testing.T) {
	const noLabel = "metadata.labels: warning: has no effect without the label kubernetes.io/service-name [HM0102]"
	validateRows(t, EndpointSlice, []row{
		{"valid but for its label", "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}]\nports: [{port: 80, name: ''}]", []string{noLabel}},
		{"a type that is none", "addressType: IPv5\nendpoints: []", []string{noLabel, "addressType: must be IPv4, IPv6 or FQDN"}},
		{"addresses", "addressType: IPv6\nendpoints: [{addresses: []}, {addresses: [10.0.0.1, x]}]", []string{noLabel,
			"endpoints[0].addresses: must have at least one address", `endpoints[1].addresses[0]: "10.0.0.1" is not of the addressType IPv6`, `endpoints[1].addresses[1]: "x" is no IP address`}},
		{"names", "addressType: FQDN\nendpoints: [{addresses: [a_b]}]", []string{noLabel, `endpoints[0].addresses[0]: "a_b" is no host: use labels of letters, digits and '-', at most 63 each, with dots between them`}},
		{"ports", "addressType: IPv4\nendpoints: []\nports: [{port: 0, name: a, protocol: X}, {port: 1, name: a}]", []string{noLabel,
			"ports[0].port: must be a port from 1 to 65535, and is 0", `ports[0].protocol: "X" is no protocol: write TCP or UDP`, `ports[1].name: "a" is the name of ports[0] too`}},
	})
}

func TestPodsAreValidated(t *testing.T) {
	validateRows(t, Pod, []row{
		{"valid", "spec: {containers: [{name: a, image: b, resources: {limits: {cpu: 100m}}}]}\nstatus: {podIP: 10.0.0.1, phase: Running}", nil},
		{"addresses", "spec: {containers: []}\nstatus: {podIP: x, podIPs: [{ip: z}]}", []string{`status.podIP: "x" is no IP address`, `status.podIPs[0].ip: "z" is no IP address`}},
		{"a quantity that is none", "spec: {containers: [{name: a, resources: {limits: {cpu: many}}}]}", []string{
			"spec.containers[0].resources.limits.cpu: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"}},
	})
}

func TestIngressesAreValidated(t *testing.T) {
	validateRows(t, Ingress, []row{
		{"valid", "spec: {rules: [{host: a.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}", nil},
		{"empty", "spec: {}", []string{"spec: must have rules or a defaultBackend"}},
		{"hosts", "spec: {rules: [{host: a_b}, {host: '*a.com'}], tls: [{hosts: [a_b]}]}", []string{
			`spec.rules[0].host: "a_b" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`,
			`spec.rules[1].host: "*a.com" has a "*" that is only a part of a label: such a host is not matched`,
			`spec.tls[0].hosts[0]: "a_b" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`,
			"spec.tls[0].secretName: warning: it is missing: there is no TLS for these hosts [HM0116]"}},
		{"paths", "spec: {rules: [{http: {paths: [{path: a, pathType: Exact, backend: {}}, {backend: {resource: {kind: a, name: b}}}, {pathType: Other, backend: {service: {name: a_b, port: {}}}}, " +
			"{pathType: ImplementationSpecific, backend: {service: {name: a, port: {number: 70000}}}}]}}]}", []string{
			`spec.rules[0].http.paths[0].path: must begin with "/"`, "spec.rules[0].http.paths[0].backend.service: it is missing",
			"spec.rules[0].http.paths[1].pathType: it is missing: write Exact, Prefix or ImplementationSpecific", "spec.rules[0].http.paths[1].backend.resource: only services are backends",
			"spec.rules[0].http.paths[2].pathType: must be Exact, Prefix or ImplementationSpecific", `spec.rules[0].http.paths[2].backend.service.name: "a_b" is no name of a Service`,
			"spec.rules[0].http.paths[2].backend.service.port: must have either a name or a number",
			"spec.rules[0].http.paths[3].backend.service.port.number: must be a port from 1 to 65535, and is 70000"}},
	})
}

// stapleFor returns an OCSP response about a certificate that has signed itself, for a serial number.
func stapleFor(t *testing.T, certificate, key []byte, serial int64) []byte {
	t.Helper()
	response := ocsp.Response{Status: ocsp.Good, SerialNumber: big.NewInt(serial), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	private, leaf := signer(t, certificate, key)
	staple, err := ocsp.CreateResponse(leaf, leaf, response, private)
	if err != nil {
		t.Fatal(err)
	}
	return staple
}

// signer returns the key of a key pair in PEM, and its certificate.
func signer(t *testing.T, certificate, key []byte) (crypto.Signer, *x509.Certificate) {
	t.Helper()
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.PrivateKey.(crypto.Signer), pair.Leaf
}

// keyPair returns a certificate and its key in PEM.
func keyPair(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func TestSecretsAreValidatedWithoutTellingThem(t *testing.T) {
	certificate, key := keyPair(t)
	_, otherKey := keyPair(t)
	data := func(certificate, key []byte) string {
		return "type: kubernetes.io/tls\ndata: {tls.crt: " + base64.StdEncoding.EncodeToString(certificate) + ", tls.key: " + base64.StdEncoding.EncodeToString(key) + "}"
	}
	stapled := func(staple []byte) string {
		return strings.TrimSuffix(data(certificate, key), "}") + ", tls.ocsp-staple: " + base64.StdEncoding.EncodeToString(staple) + "}"
	}
	private, _ := signer(t, certificate, key)
	crl, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1)}, &x509.Certificate{KeyUsage: x509.KeyUsageCRLSign, SubjectKeyId: []byte{1}}, private)
	if err != nil {
		t.Fatal(err)
	}
	list := func(der []byte) string {
		return "stringData: {ca.crl: " + strconv.Quote(string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))) + "}"
	}
	validateRows(t, Secret, []row{
		{"of any type", "data: {password: aHVudGVyMg==}", nil},
		{"a key pair", data(certificate, key), nil},
		{"nothing", "type: kubernetes.io/tls", []string{"data.tls.crt: it is missing", "data.tls.key: it is missing"}},
		{"generic names", "stringData: {cert: " + strconv.Quote(string(certificate)) + ", key: " + strconv.Quote(string(key)) + ", cacert: " + strconv.Quote(string(certificate)) + "}", nil},
		{"data that is no text", "data: {tls.key: 12345, tls.crt: [a], x: '!'}", []string{
			"data.tls.key: must be a string in base64", "data.tls.crt: must be a string in base64", "data.x: must be a string in base64"}},
		{"a key alone", "stringData: {tls.key: hunter2}", []string{"data: must have both a certificate and its key: tls.crt and tls.key, or cert and key"}},
		{"authorities that are none", "stringData: {ca.crt: hunter2}", []string{"data.ca.crt: are not certificates: there is something that is not PEM"}},
		{"a key among the authorities", "stringData: {cacert: " + strconv.Quote(string(certificate)+string(key)) + "}", []string{"data.ca.crt: are not certificates: block 2 is a PRIVATE KEY"}},
		{"a CRL that is none", "stringData: {ca.crl: " + strconv.Quote(string(certificate)) + "}", []string{"data.ca.crl: are not lists of revoked certificates: block 1 is a CERTIFICATE"}},
		{"a CRL", list(crl), nil},
		{"half a CRL", list(crl[:len(crl)/2]), []string{"data.ca.crl: are not lists of revoked certificates: block 1: malformed crl"}},
		{"a staple", stapled(stapleFor(t, certificate, key, 1)), nil},
		{"a staple that is none", stapled([]byte("foo")), []string{"data.tls.ocsp-staple: is not an OCSP response for the certificate: it is not DER"}},
		{"a staple of another certificate", stapled(stapleFor(t, certificate, key, 2)), []string{"data.tls.ocsp-staple: is not an OCSP response for the certificate: it is about another certificate"}},
		{"a staple that says that the responder was busy", stapled(ocsp.TryLaterErrorResponse), []string{"data.tls.ocsp-staple: is not an OCSP response for the certificate: error from server: try later"}},
		{"a staple alone", "stringData: {tls.ocsp-staple: a}", []string{"data.tls.ocsp-staple: is not an OCSP response for the certificate: there is no certificate"}},
		{"another's key", data(certificate, otherKey), []string{"data.tls.crt: is not a certificate with its key in tls.key: private key does not match public key"}},
		{"no PEM", data([]byte("hunter2"), key), []string{"data.tls.crt: is not a certificate with its key in tls.key: failed to find any PEM data in certificate input"}},
		{"text", "type: kubernetes.io/tls\nstringData: {tls.crt: hunter2}\ndata: {tls.key: aHVudGVyMg==}", []string{
			"data.tls.crt: is not a certificate with its key in tls.key: failed to find any PEM data in certificate input"}},
	})
}

func TestMeshConfigurationsAreValidated(t *testing.T) {
	for _, tc := range []row{
		{"valid", "accessLogFile: /dev/stdout\ndefaultConfig: {gatewayTopology: {numTrustedProxies: 1, proxyProtocol: {}}}\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}", nil},
		{"values", "proxyListenPort: 70000\nconnectTimeout: 0s\nprotocolDetectionTimeout: 0s\ndnsRefreshRate: 0s\ntrustDomain: a_b\nrootNamespace: a.b\n" +
			"serviceSettings: [{hosts: [a_b]}]\ndefaultServiceExportTo: ['*', b]\ndefaultDestinationRuleExportTo: [a_b]\nmeshMTLS: {ecdhCurves: [P-256]}\ndefaultHttpRetryPolicy: {attempts: -1}", []string{
			"proxyListenPort: must be a port from 1 to 65535, and is 70000", "connectTimeout: must be a duration of at least 1ms, and is 0s",
			"dnsRefreshRate: must be a duration of at least 1ms, and is 0s", "defaultHttpRetryPolicy.attempts: must not be negative, and is -1",
			`serviceSettings[0].hosts[0]: "a_b" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`,
			`trustDomain: "a_b" is no trust domain: use labels of letters, digits and '-', with dots between them`, `rootNamespace: "a.b" is no namespace`,
			`defaultServiceExportTo[0]: "*" must be the only element`, `defaultDestinationRuleExportTo[0]: "a_b" is no namespace, "." (its own), "*" (all) or "~" (none)`,
			"meshMTLS.ecdhCurves: cannot be set for mesh mTLS"}},
		{"selectors of namespaces", "discoverySelectors: [{matchLabels: {a: b}, matchExpressions: [{key: c, operator: Exists}, {operator: In}, {key: d, operator: Exists, values: [x]}]}]\n" +
			"serviceEntryVisibility: {policies: [{matchingRules: [{}, {namespaceSelector: {matchExpressions: [{key: a, operator: in}]}}]}]}", []string{
			"discoverySelectors[0].matchExpressions[1].key: it is missing", "discoverySelectors[0].matchExpressions[1].values: the operator In needs values",
			"discoverySelectors[0].matchExpressions[2].values: the operator Exists has no values",
			"serviceEntryVisibility.policies[0].matchingRules[0].namespaceSelector: it is missing",
			`serviceEntryVisibility.policies[0].matchingRules[1].namespaceSelector.matchExpressions[0].operator: must be In, NotIn, Exists or DoesNotExist, and is "in"`,
			"serviceEntryVisibility: warning: has an effect with applyToSidecars only [HM0102]"}},
		{"connections", "outboundTrafficPolicy: {mode: ALLOW_ANY, tls: {mode: SIMPLE}}\nzoneAwareLbSetting: {enabled: false, failover: [{from: a, to: a}]}\n" +
			"defaultConfig: {connectionSettings: {profile: EDGE, httpIdleTimeout: -1s, httpMaxConcurrentStreams: 0, http2InitialStreamWindowSize: 100}}", []string{
			"zoneAwareLbSetting.failover[0].to: must be another region than from", "outboundTrafficPolicy.tls: warning: has an effect with the mode ALLOW_ANY_DYNAMIC_DNS only [HM0102]",
			"defaultConfig.connectionSettings.httpIdleTimeout: must be a duration of at least 1ms, and is -1s",
			"defaultConfig.connectionSettings.httpMaxConcurrentStreams: must be at least 1, and is 0",
			"defaultConfig.connectionSettings.http2InitialStreamWindowSize: must be at least 65535, and is 100"}},
		{"what is not supported", "defaultConfig: {tracing: {sampling: 1, zipkin: {address: x}}, concurrency: 2, connectionSettings: {clusterPerConnectionBufferLimitBytes: 1}}", []string{
			"defaultConfig.concurrency: warning: not supported: it configures the process of the proxy: set it in its holdfast agent [HM0101]",
			"defaultConfig.tracing.zipkin: warning: not supported: its tracer is in the bootstrap of the proxy: name a provider in extensionProviders [HM0101]",
			"defaultConfig.connectionSettings.clusterPerConnectionBufferLimitBytes: warning: not supported: istiod ignores it too [HM0101]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := problems(t, "f", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    "+strings.ReplaceAll(tc.spec, "\n", "\n    ")+"\n")
			for i := range got {
				_, got[i], _ = strings.Cut(got[i], "MeshConfig istio-system/istio: ")
			}
			compare(t, got, tc.want)
		})
	}
}

func TestAnnotationsThatIstioRejectsAreErrors(t *testing.T) {
	const text = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: a\n  annotations:\n    istio.io/dry-run: 'true'\n    internal.istio.io/parents: x\nspec: {address: 10.0.0.1}\n"
	compare(t, problems(t, "f", text), []string{
		"f:7: WorkloadEntry default/a: metadata.annotations.internal.istio.io/parents: users must not set this annotation",
		"f:6: WorkloadEntry default/a: metadata.annotations.istio.io/dry-run: a WorkloadEntry cannot be tried without effect: remove the annotation"})
}

func TestASpecOfAnotherTypeIsAnError(t *testing.T) {
	for _, c := range []*Config{{Meta: Meta{Key: Key{Gateway, "a", "b"}}, Spec: "text"}, {Meta: Meta{Key: Key{"Other", "a", "b"}}}, {Meta: Meta{Key: Key{Sidecar, "a", "b"}}}} {
		if !Invalid(Validate(c)) {
			t.Errorf("%s with the content %T is valid", c.Meta.Key, c.Spec)
		}
	}
}
