package gatewayapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

const (
	gatewayGroup = "gateway.networking.k8s.io"
	// gatewayLabel is that of the proxies of a Gateway.
	gatewayLabel = gatewayGroup + "/gateway-name"
)

// documented are the kinds whose objects become documents.
var documented = []schema.GroupKind{
	{Kind: "Namespace"}, serviceKind, secretKind, {Kind: "ConfigMap"}, sliceKind,
	{Group: gatewayGroup, Kind: "GatewayClass"}, gatewayKind, {Group: gatewayGroup, Kind: "HTTPRoute"}, {Group: gatewayGroup, Kind: "GRPCRoute"},
	{Group: gatewayGroup, Kind: "TLSRoute"}, {Group: gatewayGroup, Kind: "TCPRoute"}, {Group: gatewayGroup, Kind: "ReferenceGrant"},
	{Group: gatewayGroup, Kind: "BackendTLSPolicy"},
}

// plane is a holdfast-mesh that has the objects of a cluster as documents, and for each Gateway an Envoy behind an agent.
type plane struct {
	*rig.Rig
	*cluster
	nodes
	// holdfast and envoy are the paths of the binaries.
	holdfast, envoy string
	issuer          *tokens.Issuer
	mesh            *testbed.Process
	xds             string
	admin           string
	documents       string
	// api is where the suite's client finds the cluster.
	api      string
	gateways map[types.NamespacedName]*gateway
}

// gateway is an Envoy behind an agent, for a Gateway.
type gateway struct {
	agent, envoy *testbed.Process
	admin        string // Envoy's, a Unix socket
}

// newPlane starts holdfast-mesh, without any document.
func newPlane(t *testing.T) *plane {
	r := rig.New(t)
	p := &plane{Rig: r, documents: r.Path("documents"), xds: r.FreeAddr(), admin: r.FreeAddr(), gateways: make(map[types.NamespacedName]*gateway)}
	p.dir, p.holdfast, p.envoy = r.Dir, rig.Holdfast(t), envoytest.Binary(t)
	r.Check(os.Mkdir(p.documents, 0o700))
	r.Check(os.WriteFile(filepath.Join(p.documents, "none.yaml"), []byte("# no document\n"), 0o600))
	var err error
	p.issuer, err = tokens.New()
	r.Check(err)
	r.Check(os.WriteFile(r.Path("keys.json"), p.issuer.Keys, 0o600))
	p.cluster, err = newCluster(filepath.Join(os.Getenv(definitionsVariable), "experimental"))
	r.Check(err)
	p.watch, p.status, p.logs = p.changed, p.readStatus, p.log
	p.cluster.pods = p.podObjects
	p.mesh = r.Start("mesh", meshBinary(t), "serve", "--config", p.documents, "--listen", "", "--tls-listen", p.xds, "--ca", "dev:"+r.Path("ca"), "--tls-name", "127.0.0.1",
		"--token-issuer", p.issuer.URL, "--token-keys", p.issuer.URL+"="+r.Path("keys.json"), "--admin", p.admin, "--debounce-after", "10ms")
	r.Check(p.mesh.Wait(rig.Limit, func() error {
		if status, body, err := testbed.Get("http://" + p.admin + "/ready"); err != nil || status != http.StatusOK {
			return fmt.Errorf("it is not ready: %s %w", body, err)
		}
		return nil
	}))
	server := httptest.NewServer(p.cluster)
	p.api = server.URL
	r.Cleanup(func() {
		server.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for key := range p.gateways {
			p.stopGateway(key)
		}
		for _, pod := range p.nodes.pods {
			pod.stop()
		}
	})
	return p
}

func meshBinary(t *testing.T) string {
	path := filepath.Join(envoytest.Root(t), "bin", "holdfast-mesh")
	if _, err := exec.LookPath(path); err != nil {
		t.Fatalf("this test needs holdfast-mesh (%v): run `make build`", err)
	}
	return path
}

// changed makes what follows from an object of the cluster: its document, pods, endpoints, gateways.
func (p *plane) changed(obj *unstructured.Unstructured, deleted bool) {
	if err := p.follow(obj, deleted); err != nil {
		p.Errorf("%s %s/%s: %v", obj.GetKind(), obj.GetNamespace(), obj.GetName(), err)
	}
}

func (p *plane) follow(obj *unstructured.Unstructured, deleted bool) error {
	key := keyOf(obj)
	var errs []error
	if slices.Contains(documented, key.GroupKind) {
		errs = append(errs, p.document(obj, deleted))
	}
	switch key.GroupKind {
	case deploymentKind:
		if deleted {
			errs = append(errs, p.removePods(key.NamespacedName))
		}
		errs = append(errs, p.deployAll(), p.writeSlices())
	case secretKind:
		errs = append(errs, p.deployAll(), p.writeSlices())
	case serviceKind:
		if deleted {
			errs = append(errs, p.removeSlice(key.NamespacedName))
		}
		errs = append(errs, p.writeSlices())
	case gatewayKind:
		switch {
		case deleted:
			p.stopGateway(key.NamespacedName)
			errs = append(errs, p.removePods(proxyOf(key.NamespacedName)), p.writeSlices())
		case p.gateways[key.NamespacedName] == nil:
			errs = append(errs, p.startGateway(key.NamespacedName), p.writeSlices())
		}
	}
	return errors.Join(errs...)
}

// removePods ends the pods of a Deployment, and removes their documents.
func (p *plane) removePods(of types.NamespacedName) error {
	var errs []error
	for _, pod := range p.nodes.remove(of) {
		obj, err := unstructuredOf(pod.object(true))
		errs = append(errs, err, p.document(obj, true))
	}
	return errors.Join(errs...)
}

// document writes an object as a document, or removes it.
func (p *plane) document(obj *unstructured.Unstructured, deleted bool) error {
	path := filepath.Join(p.documents, strings.ToLower(obj.GetKind())+"."+obj.GetNamespace()+"."+obj.GetName()+".json")
	if deleted {
		return os.Remove(path)
	}
	text, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	if before, err := os.ReadFile(path); err == nil && string(before) == string(text) {
		return nil
	}
	next := filepath.Join(p.documents, ".next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// deployAll starts the pods of the Deployments that have none.
func (p *plane) deployAll() error {
	var errs []error
	for _, obj := range p.of(deploymentKind, "") {
		of := types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
		if slices.ContainsFunc(p.nodes.pods, func(pod *pod) bool { return pod.of == of }) {
			continue
		}
		d, err := into[appsv1.Deployment](obj)
		if err == nil {
			err = p.deploy(d, func(name types.NamespacedName) *corev1.Secret {
				obj := p.objects[objectKey{secretKind, name}]
				if obj == nil {
					return nil
				}
				secret, _ := into[corev1.Secret](obj)
				return secret
			})
		}
		if !errors.Is(err, errNoSecret) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// writeSlices writes the endpoints of the Services with selectors, and the pods, without which holdfast-mesh takes no endpoint that names one.
func (p *plane) writeSlices() error {
	var errs []error
	for _, obj := range p.of(serviceKind, "") {
		svc, err := into[corev1.Service](obj)
		if err != nil {
			return err
		}
		if s := p.slice(svc); s != nil {
			obj, err := unstructuredOf(s)
			if err == nil {
				err = p.document(obj, false)
			}
			errs = append(errs, err)
		}
	}
	for _, pod := range p.nodes.pods {
		obj, err := unstructuredOf(pod.object(true))
		if err == nil {
			err = p.document(obj, false)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeSlice removes the endpoints of a Service that is gone.
func (p *plane) removeSlice(of types.NamespacedName) error {
	err := os.Remove(filepath.Join(p.documents, "endpointslice."+of.Namespace+"."+of.Name+"-pods.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (p *plane) podObjects() (out []*unstructured.Unstructured) {
	for _, pod := range p.nodes.pods {
		if obj, err := unstructuredOf(pod.object(pod.ready())); err == nil {
			out = append(out, obj)
		}
	}
	return out
}

func (p *plane) log(of types.NamespacedName, since time.Time) string {
	for _, pod := range p.nodes.pods {
		if pod.NamespacedName == of {
			return pod.since(since)
		}
	}
	return ""
}

// readStatus asks holdfast-mesh for the status of all documents of the Gateway API.
func (p *plane) readStatus() (map[objectKey]map[string]any, error) {
	resp, err := http.Get("http://" + p.admin + "/documents")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var documents []map[string]any
	if err := utiljson.Unmarshal(text, &documents); err != nil {
		return nil, err
	}
	out := make(map[objectKey]map[string]any)
	for _, d := range documents {
		status, ok := d["status"].(map[string]any)
		if !ok {
			continue
		}
		of := func(field string) string { text, _ := d[field].(string); return text }
		group, _, _ := strings.Cut(of("apiVersion"), "/")
		out[objectKey{schema.GroupKind{Group: group, Kind: of("kind")}, types.NamespacedName{Namespace: of("namespace"), Name: of("name")}}] = status
	}
	return out, nil
}

// startGateway starts an agent, and behind it an Envoy with an address of its own, for a Gateway. Envoy's proof of who it is is a token.
func (p *plane) startGateway(of types.NamespacedName) error {
	ip := p.address()
	p.nodes.pods = append(p.nodes.pods, &pod{
		NamespacedName: types.NamespacedName{Namespace: of.Namespace, Name: of.Name + "-proxy"}, of: proxyOf(of), ip: ip, labels: map[string]string{gatewayLabel: of.Name},
	})
	name := fmt.Sprintf("g%d", p.next)
	token, err := p.issuer.Token(of.Namespace, "default")
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.Path(name+"-token"), token, 0o600); err != nil {
		return err
	}
	g := &gateway{admin: p.Path(name + "-envoy.sock")}
	p.gateways[of] = g
	g.agent, err = testbed.Start(name, p.Path(name+".log"), p.holdfast, "run", "--socket", p.Path(name+".sock"), "--admin", "unix:"+p.Path(name+"-admin.sock"), "--health", "",
		"--upstream", p.xds, "--upstream-ca", p.Path("ca/root-cert.pem"), "--upstream-token-file", p.Path(name+"-token"))
	if err != nil {
		return err
	}
	out, err := exec.Command(p.holdfast, "bootstrap", "--node-id", of.Name+"."+of.Namespace, "--node-cluster", of.Name, "--socket", p.Path(name+".sock"),
		"--node-metadata", "TYPE=router", "--node-metadata", "NAMESPACE="+of.Namespace, "--node-metadata", "INSTANCE_IPS="+ip,
		"--node-metadata", "SERVICE_ACCOUNT=default", "--node-metadata", `LABELS:={"`+gatewayLabel+`":"`+of.Name+`"}`,
		"--envoy-admin", "unix:"+g.admin, "--out", p.Path(name+".json")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	g.envoy, err = testbed.Start(name+"-envoy", p.Path(name+"-envoy.log"), os.Args[0], podCommand, ip, p.envoy, "-c", p.Path(name+".json"),
		"--concurrency", "1", "--drain-time-s", "1", "--disable-hot-restart", "--log-level", "info")
	return err
}

// proxyOf names the proxy of a Gateway among the Deployments.
func proxyOf(gateway types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: gateway.Namespace, Name: "gateway/" + gateway.Name}
}

// stopGateway ends the Envoy and the agent of a Gateway. The Envoy must have rejected nothing.
func (p *plane) stopGateway(of types.NamespacedName) {
	g := p.gateways[of]
	delete(p.gateways, of)
	if err := g.neverRejected(); err != nil {
		p.Errorf("the Envoy of the Gateway %s: %v", of, err)
	}
	for _, process := range []*testbed.Process{g.envoy, g.agent} {
		if process == nil {
			continue
		}
		if err := process.Alive(); err != nil {
			p.Errorf("the %s of the Gateway %s: %v", process.Name, of, err)
			continue
		}
		process.Kill()
	}
}

// neverRejected returns which updates the Envoy has rejected. One that has only just started has no statistics yet.
func (g *gateway) neverRejected() error {
	client := http.Client{Timeout: rig.Limit, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", g.admin)
	}}}
	resp, err := client.Get("http://envoy/stats?filter=update_rejected$")
	if err != nil {
		return nil //nolint:nilerr // it has not started yet, or has ended, which is said elsewhere
	}
	defer func() { _ = resp.Body.Close() }()
	stats, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(stats)) {
		if !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
			return fmt.Errorf("it has rejected an update: %s", line)
		}
	}
	return nil
}
