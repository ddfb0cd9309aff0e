package grpcclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// meshWorld is a holdfast-mesh and a directory of its documents. Programs with gRPC are in this process.
type meshWorld struct {
	*rig.Rig
	xds       string
	documents string
	ca        *pkitest.CA
}

// newMesh starts a holdfast-mesh with documents by file name.
func newMesh(t *testing.T, documents map[string]string) *meshWorld {
	t.Helper()
	w := &meshWorld{Rig: rig.New(t)}
	w.xds, w.documents = w.FreeAddr(), w.Path("documents")
	w.ca = pkitest.Root(t, "ca", time.Now())
	w.Check(os.Mkdir(w.documents, 0o700))
	for name, text := range documents {
		w.write(name, text)
	}
	binary := filepath.Join(envoytest.Root(t), "bin", "holdfast-mesh")
	if _, err := exec.LookPath(binary); err != nil {
		t.Fatalf("this test needs the binary (%v): run `make build`", err)
	}
	w.Start("holdfast-mesh", binary, "serve", "--config", w.documents, "--listen", w.xds, "--admin", "", "--debounce-after", "10ms")
	return w
}

func (w *meshWorld) write(name, text string) {
	w.Helper()
	tmp := filepath.Join(w.documents, "."+name)
	w.Check(os.WriteFile(tmp, []byte(text), 0o600))
	w.Check(os.Rename(tmp, filepath.Join(w.documents, name+".yaml")))
}

// bootstrap returns that of a program with gRPC, with a certificate of an account.
func (w *meshWorld) bootstrap(account, address string, labels map[string]any) []byte {
	w.Helper()
	dir := w.Path(account)
	w.Check(os.MkdirAll(dir, 0o700))
	pair := w.ca.Leaf(w.TB, pkitest.URIs("spiffe://cluster.local/ns/shop/sa/"+account))
	w.Check(os.WriteFile(filepath.Join(dir, "cert.pem"), pair.ChainPEM(), 0o600))
	w.Check(os.WriteFile(filepath.Join(dir, "key.pem"), pair.KeyPEM(), 0o600))
	w.Check(os.WriteFile(filepath.Join(dir, "ca.pem"), w.ca.Pair().ChainPEM(), 0o600))
	text, err := json.Marshal(map[string]any{
		"xds_servers": []any{map[string]any{"server_uri": w.xds, "channel_creds": []any{map[string]any{"type": "insecure"}}, "server_features": []string{"xds_v3"}}},
		"node": map[string]any{
			"id":       "sidecar~" + address + "~" + account + ".shop~shop.svc.cluster.local",
			"metadata": map[string]any{"GENERATOR": "grpc", "NAMESPACE": "shop", "LABELS": labels, "INSTANCE_IPS": address},
		},
		"certificate_providers": map[string]any{"default": map[string]any{"plugin_name": "file_watcher", "config": map[string]any{
			"certificate_file": filepath.Join(dir, "cert.pem"), "private_key_file": filepath.Join(dir, "key.pem"),
			"ca_certificate_file": filepath.Join(dir, "ca.pem"), "refresh_interval": "600s",
		}}},
		"server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
	})
	w.Check(err)
	return text
}

// program is one with gRPC that dials a service of the mesh.
type program struct {
	w    *meshWorld
	conn *grpc.ClientConn
}

// dial returns a client of an account. It uses the certificates of xDS if the mesh says so.
func (w *meshWorld) dial(account, target string) *program {
	w.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting(w.bootstrap(account, "127.0.0.1", map[string]any{"app": account}))
	w.Check(err)
	creds, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	w.Check(err)
	conn, err := grpc.NewClient("xds:///"+target, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(creds))
	w.Check(err)
	w.Cleanup(func() { _ = conn.Close() })
	return &program{w, conn}
}

// call makes an RPC with metadata, and returns the code of its status and who has answered.
func (c *program) call(method string, headers ...string) (codes.Code, string) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), headers...), 10*time.Second)
	defer cancel()
	var from peer.Peer
	health := healthgrpc.NewHealthClient(c.conn)
	var err error
	switch method {
	case "Check":
		_, err = health.Check(ctx, &healthgrpc.HealthCheckRequest{}, grpc.Peer(&from))
	case "List":
		_, err = health.List(ctx, &healthgrpc.HealthListRequest{}, grpc.Peer(&from))
	}
	if from.Addr == nil {
		return grpcstatus.Code(err), ""
	}
	return grpcstatus.Code(err), from.Addr.String()
}

// comesTo waits until an RPC ends with a code, at a backend; "" is any.
func (c *program) comesTo(method string, code codes.Code, backend string, headers ...string) {
	c.w.Helper()
	c.w.Eventually(func() error {
		if got, from := c.call(method, headers...); got != code || backend != "" && from != backend {
			return fmt.Errorf("%s %v ends with %s at %s, want %s at %s", method, headers, got, from, code, backend)
		}
		return nil
	})
}

func echo(endpoints ...string) string {
	var b strings.Builder
	for _, ep := range endpoints {
		version, addr, _ := strings.Cut(ep, "=")
		_, port, _ := net.SplitHostPort(addr)
		fmt.Fprintf(&b, "  - {address: 127.0.0.1, ports: {grpc: %s}, labels: {version: %s}, serviceAccount: server}\n", port, version)
	}
	return `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: echo, namespace: shop}
spec:
  hosts: [echo.shop.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 7070, name: grpc, protocol: GRPC}]
  endpoints:
` + b.String()
}

const echoSubsets = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: echo, namespace: shop}
spec:
  host: echo.shop.svc.cluster.local
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`

func echoRoutes(http string) string {
	return "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: echo, namespace: shop}\nspec:\n  hosts: [echo.shop.svc.cluster.local]\n  http: " + http + "\n"
}

// A program with gRPC follows the routes of the mesh itself: by headers, weights and faults, under each name of a service,
// and with the endpoints of the moment.
func TestAProgramWithGRPCFollowsTheRoutesOfTheMesh(t *testing.T) {
	w := newMesh(t, map[string]string{
		"subsets": echoSubsets,
		"routes":  echoRoutes(`[{match: [{headers: {version: {exact: "2"}}}], route: [{destination: {host: echo, subset: v2}}]}, {match: [{uri: {prefix: /grpc.health.v1.Health/List}}], fault: {abort: {grpcStatus: UNIMPLEMENTED, percentage: {value: 100}}}, route: [{destination: {host: echo, subset: v1}}]}, {redirect: {uri: /x}, match: [{headers: {no: {}}}]}, {route: [{destination: {host: echo, subset: v1}}]}]`),
	})
	v1, v2 := backend(w.Rig), backend(w.Rig)
	w.write("echo", echo("v1="+v1, "v2="+v2))
	for _, name := range []string{"echo.shop.svc.cluster.local:7070", "echo.shop:7070", "echo:7070"} {
		c := w.dial("client", name)
		c.comesTo("Check", codes.OK, v1)
		c.comesTo("Check", codes.OK, v2, "version", "2")
		c.comesTo("List", codes.Unimplemented, "")
	}
	c := w.dial("client", "echo:7070")
	w.write("routes", echoRoutes("[{route: [{destination: {host: echo, subset: v1}, weight: 50}, {destination: {host: echo, subset: v2}, weight: 50}]}]"))
	c.comesTo("List", codes.OK, "")
	count := make(map[string]int)
	for range 200 {
		code, from := c.call("Check")
		if code != codes.OK {
			t.Fatalf("an RPC ends with %s", code)
		}
		count[from]++
	}
	if count[v1] < 50 || count[v2] < 50 {
		t.Errorf("of 200 RPCs with equal weights %v", count)
	}
	v3 := backend(w.Rig)
	w.write("echo", echo("v1="+v3, "v2="+v3))
	c.comesTo("Check", codes.OK, v3)
	w.write("subsets", strings.Replace(echoSubsets, "subsets:", "trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: user}}}\n  subsets:", 1))
	c.comesTo("Check", codes.OK, v3, "user", "bob")
	if state := c.conn.GetState(); state != connectivity.Ready {
		t.Errorf("the channel is %s", state)
	}
}

// A server with gRPC takes mutual TLS as the mesh says, and whom AuthorizationPolicies let in.
func TestAServerWithGRPCDecidesByIdentity(t *testing.T) {
	authentication := func(mode string) string {
		return "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: " + mode + "}}\n"
	}
	toServer := func(mode string) string {
		return "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: echo, namespace: shop}\nspec: {host: echo.shop.svc.cluster.local, trafficPolicy: {tls: {mode: " + mode + "}}}\n"
	}
	policy := func(spec string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: echo, namespace: shop}\nspec: {selector: {matchLabels: {app: server}}, " + spec + "}\n"
	}
	w := newMesh(t, map[string]string{"authentication": authentication("DISABLE"), "subsets": toServer("DISABLE")})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	w.Check(err)
	w.write("echo", echo("v1="+lis.Addr().String()))
	creds, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	w.Check(err)
	server, err := xds.NewGRPCServer(grpc.Creds(creds), xds.BootstrapContentsForTesting(w.bootstrap("server", "127.0.0.1", map[string]any{"app": "server"})))
	w.Check(err)
	healthgrpc.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(lis) }()
	w.Cleanup(server.Stop)

	friend, stranger := w.dial("friend", "echo:7070"), w.dial("stranger", "echo:7070")
	friend.comesTo("Check", codes.OK, "")
	w.write("authentication", authentication("STRICT"))
	friend.comesTo("Check", codes.Unavailable, "") // it does not speak TLS yet
	w.write("subsets", toServer("ISTIO_MUTUAL"))
	friend.comesTo("Check", codes.OK, "")
	stranger.comesTo("Check", codes.OK, "")

	w.write("policy", policy("rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/friend]}}], to: [{operation: {paths: [/grpc.health.v1.Health/Check]}}]}]"))
	stranger.comesTo("Check", codes.PermissionDenied, "")
	friend.comesTo("Check", codes.OK, "")
	friend.comesTo("List", codes.PermissionDenied, "")
	w.write("policy", policy("action: DENY, rules: [{to: [{operation: {ports: ['"+port(lis)+"']}}], when: [{key: 'request.headers[x-bad]', values: ['*']}]}]"))
	stranger.comesTo("List", codes.OK, "")
	stranger.comesTo("List", codes.PermissionDenied, "", "x-bad", "1")
	// gRPC cannot ask a provider, and knows no tokens: what they would decide about is denied, and not let in.
	w.write("policy", policy("action: CUSTOM, provider: {name: nobody}, rules: [{to: [{operation: {paths: ['*/List']}}]}]"))
	friend.comesTo("List", codes.PermissionDenied, "")
	friend.comesTo("Check", codes.OK, "")
	w.write("policy", policy("rules: [{from: [{source: {requestPrincipals: ['*']}}]}]"))
	friend.comesTo("Check", codes.PermissionDenied, "")
	w.write("policy", policy("rules: [{}]"))
	friend.comesTo("Check", codes.OK, "")
}

func port(lis net.Listener) string { return strconv.Itoa(lis.Addr().(*net.TCPAddr).Port) }
