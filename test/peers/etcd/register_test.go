package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/mesh/register"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// machines are the documents of a WorkloadGroup, and of a service of which its workloads are endpoints, at two ports.
const machines = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: shop}
spec:
  probe: {httpGet: {port: 1}}
  metadata: {labels: {app: machines}}
  template: {serviceAccount: machine, ports: {http: %[1]s}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machines, namespace: shop}
spec:
  hosts: [machines.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: machines}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: machines, namespace: shop}
spec: {host: machines.internal, trafficPolicy: {tls: {mode: DISABLE}}}
`

// machineKey is that of the WorkloadEntry of a machine at 127.0.0.1.
var machineKey = config.Key{Kind: config.WorkloadEntry, Namespace: "shop", Name: "machines-127.0.0.1"}

// control is several holdfast-mesh with one etcd.
type control struct {
	*store
	client    *etcd.Client
	issuer    *tokens.Issuer
	port      int // of the service
	documents string
	replicas  []*replica
}

// replica is a holdfast-mesh.
type replica struct {
	name, plain, tls, admin string
	id                      string // of the replica
	process                 *testbed.Process
}

// newControl starts servers with the documents of the machines, whose workloads take requests at a port.
func newControl(t *testing.T, backendPort string) *control {
	c := &control{store: newStore(t)}
	c.client = c.open(etcd.Options{})
	c.port = c.FreePort()
	c.documents = fmt.Sprintf(machines, backendPort, c.port)
	for _, text := range strings.Split(c.documents, "---\n") {
		write(c, c.client, read(c, text))
	}
	var err error
	c.issuer, err = tokens.New()
	c.Check(err)
	c.file("keys.json", string(c.issuer.Keys))
	for _, name := range []string{"A", "B"} {
		s := &replica{name: name, plain: c.FreeAddr(), tls: c.FreeAddr(), admin: c.FreeAddr()}
		c.replicas = append(c.replicas, s)
		c.serve(s)
	}
	return c
}

// serve starts a server, and waits until it is ready.
func (c *control) serve(s *replica) {
	c.Helper()
	s.process = c.Start("mesh-"+s.name, meshBinary(c), "serve", "--etcd", c.url(), "--listen", s.plain, "--tls-listen", s.tls, "--admin", s.admin, "--debounce-after", "10ms", "--register-any-address",
		"--state-dir", c.Path("state-"+s.name), "--ca", "dev:"+c.Path("ca"), "--token-issuer", c.issuer.URL, "--token-keys", c.issuer.URL+"="+c.Path("keys.json"))
	c.Check(s.process.Wait(rig.Limit, func() error {
		status, body, err := testbed.Get("http://" + s.admin + "/ready")
		if err == nil && status != http.StatusOK {
			err = errors.New(body)
		}
		return err
	}))
	c.Eventually(func() error {
		const servers = "/holdfast-replicas/servers/"
		resp, err := c.raw.Get(c.Context(), servers, clientv3.WithPrefix())
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			id := strings.TrimPrefix(string(kv.Key), servers)
			if !slices.ContainsFunc(c.replicas, func(s *replica) bool { return s.id == id }) {
				s.id = id
				return nil
			}
		}
		return errors.New("no record of the server")
	})
}

// token writes a token of the machines into a file.
func (c *control) token() string {
	c.Helper()
	text, err := c.issuer.Token("shop", "machine")
	c.Check(err)
	return c.file("token", string(text))
}

// node is that of a proxy in the namespace shop.
func node(id string, more map[string]any) *corev3.Node {
	values := map[string]any{"TYPE": "sidecar", "NAMESPACE": "shop", "INTERCEPTION_MODE": "NONE", "INSTANCE_IPS": "127.0.0.9", "LABELS": map[string]any{"rack": id}}
	for name, value := range more {
		values[name] = value
	}
	s, err := structpb.NewStruct(values)
	if err != nil {
		panic(err) // the values are those of a test
	}
	return &corev3.Node{Id: id, Cluster: "peers", Metadata: s}
}

// dialed is a client of a server, with a connection of its own.
func (c *control) dialed(addr string, creds credentials.TransportCredentials, n *corev3.Node) *xdstest.Client {
	c.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	c.Check(err)
	c.Cleanup(func() { _ = conn.Close() })
	client := xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: xdstest.Delta, Node: n})
	c.Cleanup(client.Close)
	return client
}

// machine is a stream of a machine to a server.
func (c *control) machine(s *replica) *xdstest.Client {
	c.Helper()
	roots, err := dial.CertPool(c.Path("ca/root-cert.pem"))
	c.Check(err)
	token, err := os.ReadFile(c.token())
	c.Check(err)
	m := c.dialed(s.tls, credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}), node("machine", map[string]any{"AUTO_REGISTER_GROUP": "machines", "INSTANCE_IPS": "127.0.0.1"}))
	m.Subscribe(xds.ClusterType)
	c.Check(m.Connect(metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+string(token))))
	c.Check(m.Wait(c.Context(), func() bool { return len(m.Responses()) > 0 }))
	return m
}

// report reports the health of a machine; "" is healthy.
func report(m *xdstest.Client, reason string) {
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.HealthType}
	if reason != "" {
		r.ErrorDetail = &statuspb.Status{Code: 500, Message: reason}
	}
	m.Send(r)
}

// observer is a client of the machines at a server.
type observer struct {
	*xdstest.Client
	*control
	at   *replica
	from int // the first answer that was not checked yet
}

func (c *control) observe(s *replica) *observer {
	c.Helper()
	o := &observer{c.dialed(s.plain, insecure.NewCredentials(), node("client", nil)), c, s, 0}
	o.Subscribe(xds.ClusterType)
	o.Subscribe(xds.EndpointType, fmt.Sprintf("outbound|%d||machines.internal", c.port))
	c.Check(o.Connect(context.Background()))
	return o
}

// endpoints returns what each answer since the last check says: whether the machine is an endpoint.
func (o *observer) endpoints() (out []bool) {
	o.Helper()
	for _, r := range o.Responses()[o.from:] {
		if r.Type != xds.EndpointType {
			continue
		}
		for _, resource := range r.Resources {
			var e endpointv3.ClusterLoadAssignment
			o.Check(resource.GetResource().UnmarshalTo(&e))
			there := false
			for _, l := range e.GetEndpoints() {
				there = there || len(l.GetLbEndpoints()) > 0
			}
			out = append(out, there)
		}
	}
	return out
}

// sees waits until the last answer says whether the machine is an endpoint, and forgets the answers.
func (o *observer) sees(want bool) {
	o.Helper()
	o.Eventually(func() error {
		all := o.endpoints()
		if len(all) == 0 || all[len(all)-1] != want {
			return fmt.Errorf("the client at %s has seen the endpoint %v, want %v in the end", o.at.name, all, want)
		}
		return nil
	})
	o.from = len(o.Responses())
}

// sawNothing checks that there was no answer since the last check.
func (o *observer) sawNothing(when string) {
	o.Helper()
	if all := o.endpoints(); len(all) > 0 {
		o.Errorf("%s: the client at %s was told of the endpoint: %v", when, o.at.name, all)
	}
}

// owner waits until the registration of the machine is of a server, and connected there.
func (c *control) owner(s *replica) {
	c.Helper()
	c.Eventually(func() error {
		doc, _, err := c.client.Read(c.Context(), machineKey)
		if err != nil || doc == nil {
			return fmt.Errorf("the registration is %v, %w", doc, err)
		}
		id, left := doc.Annotations[register.AnnotationController], doc.Annotations[register.AnnotationDisconnectedAt]
		if id != s.id || left != "" {
			return fmt.Errorf("the registration is of %s, left %q, want %s", id, left, s.name)
		}
		return nil
	})
}

// A machine is an endpoint for the clients of all servers, with its health, wherever it is connected. It moves without being
// removed for a moment: between servers, while etcd is away, and from one that is killed.
func TestARegisteredWorkloadIsSharedByAllServers(t *testing.T) {
	t.Parallel()
	c := newControl(t, "80")
	a, b := c.replicas[0], c.replicas[1]
	atA, atB := c.observe(a), c.observe(b)
	atA.sees(false)
	atB.sees(false)
	m := c.machine(a)
	report(m, "")
	atA.sees(true)
	atB.sees(true)
	c.owner(a)
	report(m, "it is sick")
	atA.sees(false)
	atB.sees(false)
	report(m, "")
	atA.sees(true)
	atB.sees(true)
	nothing := func(when string) {
		t.Helper()
		atA.sawNothing(when)
		atB.sawNothing(when)
	}
	longer := func() { time.Sleep(register.Grace + 5*time.Second) } // than what takes a workload away

	// Both streams are open for a while; then the old one ends.
	next := c.machine(b)
	c.owner(b)
	m.Disconnect()
	longer()
	nothing("it has moved to B")
	// The old one ends first.
	next.Disconnect()
	time.Sleep(time.Second)
	m = c.machine(a)
	c.owner(a)
	longer()
	nothing("it has moved back to A")

	c.stop()
	m.Disconnect()
	m = c.machine(b)
	longer()
	nothing("it has moved to B while etcd was away")
	c.start("data")
	c.owner(b)
	longer()
	nothing("etcd is back")

	m.Disconnect()
	m = c.machine(a)
	c.owner(a)
	c.Check(a.process.Signal(syscall.SIGKILL))
	<-a.process.Exited()
	m.Disconnect()
	m = c.machine(b)
	c.owner(b)
	c.serve(a)
	atA = c.observe(a)
	atA.sees(true)
	longer()
	nothing("its server was killed")

	// Its health was known everywhere without another report, and is followed where it is now.
	report(m, "it is sick")
	atA.sees(false)
	atB.sees(false)
	report(m, "")
	atA.sees(true)
	atB.sees(true)
	m.Disconnect()
	atA.sees(false)
	atB.sees(false)
	c.Eventually(func() error {
		doc, _, err := c.client.Read(c.Context(), machineKey)
		if err == nil && doc != nil {
			err = errors.New("the registration is still there")
		}
		return err
	})
	if text, err := os.ReadFile(b.process.Log); err != nil || !strings.Contains(string(text), "registered workloads cannot be published") {
		t.Errorf("the log of B does not say that etcd was away: %v", err)
	}
}

// A person's document takes the place of a machine everywhere, and prune and migrate leave alone what servers have published.
func TestDocumentsOfPersonsAndRegistrations(t *testing.T) {
	t.Parallel()
	c := newControl(t, "80")
	cmd := command{store: c.store}
	atB := c.observe(c.replicas[1])
	m := c.machine(c.replicas[0])
	report(m, "")
	atB.sees(true)
	cmd.says(0, "", "get workloadentry shop/machines-127.0.0.1 -o yaml", "istio.io/autoRegistrationGroup: machines", "istio.io/workloadController: ", "istio.io/connectedAt: ", "holdfast.dev/service-account: machine", "type: Healthy")
	out := cmd.says(0, c.documents, "apply --prune --dry-run -f -")
	if strings.Contains(out, "pruned") {
		t.Errorf("the registration would be pruned:\n%s", out)
	}
	cmd.says(0, "", "migrate --to "+c.Path("back"), "3 documents copied")
	written := strings.Replace(twoEntries, "name: a,", "name: machines-127.0.0.1,", 1)
	cmd.says(0, written, "apply -f -", "WorkloadEntry shop/machines-127.0.0.1 configured")
	atB.sees(false) // it has no label of the service
	cmd.says(0, "", "delete workloadentry shop/machines-127.0.0.1")
	atB.sees(true)
	c.owner(c.replicas[0])
	m.Disconnect()
	atB.sees(false)
}

// Requests of a client at one server reach a machine, which an agent and an Envoy register at the other one, and none fails
// when that one is killed and the machine registers where the client is.
func TestRequestsReachAMachineOfAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := &http.Server{ReadHeaderTimeout: rig.Limit, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("machine")) })}
	go func() { _ = app.Serve(lis) }()
	t.Cleanup(func() { _ = app.Close() })
	_, port, err := net.SplitHostPort(lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := newControl(t, port)
	a, b := c.replicas[0], c.replicas[1]
	// The machine's Envoy must not listen for the service, too: it would take requests of the client.
	write(c, c.client, read(c, `{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: machine, namespace: shop}, spec: {workloadSelector: {labels: {rack: machine}}, egress: [{hosts: ["~/*"]}]}}`))
	client := c.StartAgent("client", "--upstream", b.plain, "--upstream-plaintext")
	envoy := client.Envoy("client-envoy", "delta", func(boot *bootstrapv3.Bootstrap) { boot.Node = node("client", nil) })
	machine := c.StartAgent("machine", "--upstream", a.tls, "--upstream", b.tls, "--upstream-ca", c.Path("ca/root-cert.pem"), "--upstream-token-file", c.token(),
		"--workload-probe", "http://"+lis.Addr().String()+"/", "--workload-probe-period", "1s")
	machine.Envoy("machine-envoy", "delta", func(boot *bootstrapv3.Bootstrap) {
		boot.Node = node("machine", map[string]any{"AUTO_REGISTER_GROUP": "machines", "INSTANCE_IPS": "127.0.0.1"})
	})
	url := fmt.Sprintf("http://127.0.0.1:%d/", c.port)
	get := testbed.Request{URL: url, Host: "machines.internal"}
	c.Check(envoy.Wait(rig.Limit, func() error {
		status, body, err := get.Get()
		if err == nil && (status != http.StatusOK || body != "machine") {
			err = fmt.Errorf("%d %s", status, body)
		}
		return err
	}))
	c.owner(a)
	tally := testbed.StartTally(get, 20*time.Millisecond, 4)
	c.Check(a.process.Signal(syscall.SIGKILL))
	c.owner(b)
	time.Sleep(register.Grace + 5*time.Second)
	c.Check(tally.Stop())
	c.NeverRejected("client-envoy", envoy)
}
