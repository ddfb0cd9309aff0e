package istio

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	meta "istio.io/api/meta/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/istio/pilot/pkg/config/kube/crd"
	pilotxds "istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/bootstrap/platform"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/schema/gvk"
	istioenvoy "istio.io/istio/pkg/envoy"
	istioagent "istio.io/istio/pkg/istio-agent"
	istiomodel "istio.io/istio/pkg/model"
	"istio.io/istio/pkg/security"
	"istio.io/istio/security/pkg/credentialfetcher/plugin"
	"istio.io/istio/security/pkg/nodeagent/sds"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// registering is a WorkloadGroup, and a service whose endpoints its workloads are.
const registering = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec:
  metadata: {labels: {app: web}}
  template: {serviceAccount: web, ports: {http: 8080}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
`

// application answers probes as a test says. It returns its port.
func application(t *testing.T) (sick *atomic.Bool, port uint32) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	sick = &atomic.Bool{}
	app := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})}
	go func() { _ = app.Serve(lis) }()
	t.Cleanup(func() { _ = app.Close() })
	return sick, uint32(lis.Addr().(*net.TCPAddr).Port)
}

// readinessProbe is the ProxyConfig of a workload that is probed at a port each second.
func readinessProbe(port uint32) map[string]any {
	return map[string]any{"readinessProbe": map[string]any{"periodSeconds": 1, "httpGet": map[string]any{"path": "/healthz", "port": port}}}
}

const nodeID = "sidecar~127.0.0.1~vm-1.shop~shop.svc.cluster.local"

// istiod takes the reports of the agent for those of pilot-agent: the workload is an endpoint while it is healthy.
func TestIstiodTakesTheReportsOfTheAgent(t *testing.T) {
	for _, form := range []string{"delta", "sotw"} {
		t.Run(form, func(t *testing.T) {
			documents, _, err := crd.ParseInputs(registering)
			check(t, err)
			for i := range documents {
				documents[i].Domain = "cluster.local"
			}
			security.AuthPlaintext = true
			s := pilotxds.NewFakeDiscoveryServer(t, pilotxds.FakeOptions{
				Configs: documents, ListenerBuilder: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
			})
			s.Discovery.Authenticators = []security.Authenticator{workload("spiffe://cluster.local/ns/shop/sa/web")}

			sick, port := application(t)
			dir := t.TempDir()
			config, err := json.Marshal(readinessProbe(port))
			check(t, err)
			socket, err := os.MkdirTemp("", "holdfast-") // shorter than dir
			check(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(socket) })
			agent := start(t, "holdfast", filepath.Join(dir, "agent.log"), agentBinary, "run", "--istio", "--upstream", s.Listener.Addr().String(), "--upstream-plaintext",
				"--upstream-protocol", form, "--socket", filepath.Join(socket, "xds.sock"), "--admin", "", "--health", fmt.Sprintf("127.0.0.1:%d", freePort(t)),
				"--node-id", nodeID, "--node-cluster", "web", "--node-metadata", "NAMESPACE=shop", "--node-metadata", "SERVICE_ACCOUNT=web",
				"--node-metadata", "AUTO_REGISTER_GROUP=web", "--node-metadata", "INSTANCE_IPS=127.0.0.1", "--node-metadata", "PROXY_CONFIG:="+string(config))

			// health waits until istiod has a condition, and endpoints to match.
			health := func(status, message string, endpoints int) {
				t.Helper()
				agent.wait(t, func() error {
					entry := s.Store().Get(gvk.WorkloadEntry, "web-127.0.0.1", "shop")
					if entry == nil {
						return errors.New("the workload has not registered")
					}
					return errors.Join(hasCondition(entry, status, message), hasEndpoints(s, endpoints))
				})
			}
			health("True", "", 1)
			sick.Store(true)
			health("False", "the answer has the status 503", 0)
			sick.Store(false)
			health("True", "", 1)
		})
	}
}

func hasCondition(entry *config.Config, status, message string) error {
	conditions, _ := entry.Status.(*meta.IstioStatus)
	for _, c := range conditions.GetConditions() {
		if c.GetType() == "Healthy" && c.GetStatus() == status && c.GetMessage() == message {
			return nil
		}
	}
	return fmt.Errorf("conditions %v, want %s %q", conditions, status, message)
}

func hasEndpoints(s *pilotxds.FakeDiscoveryServer, want int) error {
	n := 0
	if shards, ok := s.Discovery.Env.EndpointIndex.ShardsForService("web.internal", "shop"); ok {
		shards.RLock()
		defer shards.RUnlock()
		for _, endpoints := range shards.Shards {
			n += len(endpoints)
		}
	}
	if n != want {
		return fmt.Errorf("%d endpoints, want %d", n, want)
	}
	return nil
}

// Istio's own agent, as pilot-agent runs it, registers a workload with holdfast-mesh and reports its health.
func TestIstiosAgentReportsHealthToHoldfastMesh(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	check(t, os.Mkdir(path("documents"), 0o700))
	check(t, os.WriteFile(path("documents/all.yaml"), []byte(registering), 0o600))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	check(t, err)
	check(t, os.WriteFile(path("keys.pem"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	const issuer = "https://kubernetes.default.svc"
	token(t, key, path("token"), issuer, "system:serviceaccount:shop:web")
	addr, admin := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	plane := start(t, "holdfast-mesh", path("mesh.log"), holdfastBinary, "serve", "--config", path("documents"), "--listen", "", "--tls-listen", addr, "--admin", admin,
		"--register-any-address", "--ca", "dev:"+path("ca"), "--tls-name", "istiod.istio-system.svc", "--token-issuer", issuer, "--token-keys", issuer+"="+path("keys.pem"))
	plane.wait(t, func() error { return ready(admin) })

	sick, port := application(t)
	short, err := os.MkdirTemp("", "istio-agent-")
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	t.Chdir(short) // its sockets are below the working directory
	proxyConfig := mesh.DefaultProxyConfig()
	proxyConfig.DiscoveryAddress, proxyConfig.ConfigPath = addr, short
	proxyConfig.ReadinessProbe = &networking.ReadinessProbe{PeriodSeconds: 1, HealthCheckMethod: &networking.ReadinessProbe_HttpGet{
		HttpGet: &networking.HTTPHealthCheckConfig{Path: "/healthz", Port: port},
	}}
	agent := istioagent.NewAgent(proxyConfig, &istioagent.AgentOptions{
		CARootCerts: path("ca/root-cert.pem"), XDSRootCerts: path("ca/root-cert.pem"), XdsUdsPath: filepath.Join(short, "XDS"), ServiceNode: nodeID,
		ProxyIPAddresses: []string{"127.0.0.1"}, ProxyNamespace: "shop", ProxyType: istiomodel.SidecarProxy, Platform: &platform.Unknown{},
		IstiodSAN: "istiod.istio-system.svc", DisableEnvoy: true, WorkloadIdentitySocketFile: security.DefaultWorkloadIdentitySocketFile,
		SDSFactory: func(o *security.Options, secrets security.SecretManager, keys *meshconfig.PrivateKeyProvider) istioagent.SDSService {
			return sds.NewServer(o, secrets, keys)
		},
	}, &security.Options{
		CAEndpoint: addr, CAEndpointSAN: "istiod.istio-system.svc", CAProviderName: "Citadel", TrustDomain: "cluster.local", WorkloadNamespace: "shop", ServiceAccount: "web",
		CredFetcher: plugin.CreateTokenPlugin(path("token")), SecretTTL: time.Hour, ECCSigAlg: "ECDSA", ECCCurve: "P256", ClusterID: "Kubernetes",
	}, istioenvoy.ProxyConfig{TestOnly: true})
	ctx, cancel := context.WithCancel(t.Context())
	wait, err := agent.Run(ctx)
	check(t, err)
	defer wait()
	defer cancel()
	defer agent.Close()

	// In place of Envoy, a client opens the stream on which the agent reports.
	conn, err := grpc.NewClient("unix:"+filepath.Join(short, "XDS"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer conn.Close()
	metadata, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": "shop", "SERVICE_ACCOUNT": "web", "AUTO_REGISTER_GROUP": "web", "INSTANCE_IPS": "127.0.0.1", "ISTIO_VERSION": "1.31.0",
		"PROXY_CONFIG": map[string]any{"readinessProbe": map[string]any{"httpGet": map[string]any{"port": float64(port)}}},
	})
	check(t, err)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	check(t, err)
	check(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: nodeID, Metadata: metadata}, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
	}))
	_, err = stream.Recv()
	check(t, err)
	// It reports only after Envoy has asked for its listeners.
	check(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener"}))

	health := func(want string) {
		t.Helper()
		plane.wait(t, func() error { return workloadIs(admin, want) })
	}
	health("HEALTHY ")
	sick.Store(true)
	health("UNHEALTHY status code was not from [200,400), bad code 503")
	sick.Store(false)
	health("HEALTHY ")
	if text := tail(plane.log, 1000); strings.Contains(text, "level=ERROR") {
		t.Errorf("the log of holdfast-mesh has errors:\n%s", text)
	}
}

// workloadIs returns an error unless holdfast-mesh has one proxy, whose workload has a health and a message.
func workloadIs(admin, want string) error {
	resp, err := http.Get("http://" + admin + "/status")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var status struct {
		Proxies []struct {
			Workload struct{ Health, Message string }
			Types    []struct{ Type string }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return err
	}
	if len(status.Proxies) != 1 {
		return fmt.Errorf("proxies %+v", status.Proxies)
	}
	for _, t := range status.Proxies[0].Types {
		if strings.Contains(t.Type, "Health") {
			return fmt.Errorf("its reports are shown as a type: %+v", status.Proxies)
		}
	}
	if got := status.Proxies[0].Workload; got.Health+" "+got.Message != want {
		return fmt.Errorf("workload %+v, want %s", got, want)
	}
	return nil
}
