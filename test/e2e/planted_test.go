package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// plants are the secrets of one test, by where they were planted.
type plants map[string]string

// text plants a text that is found nowhere else.
func (p plants) text(where string) string {
	p[where] = "PLANTED-" + strings.ToUpper(strings.ReplaceAll(where, " ", "-")) + "-5c2f81d07e"
	return p[where]
}

// shown returns the forms in which secrets are in an output.
func (p plants) shown(output string) (found []string) {
	for where, secret := range p {
		forms := map[string]string{
			"as it is": secret, "hexadecimal": hex.EncodeToString([]byte(secret)), "HEXADECIMAL": strings.ToUpper(hex.EncodeToString([]byte(secret))),
			"percent-encoded": url.QueryEscape(secret), "JSON": strings.Trim(strconv.Quote(secret), `"`), "a part": secret[len(secret)/3 : len(secret)*2/3],
		}
		for at := range 3 { // base64 depends on the place in its groups of three
			forms[fmt.Sprint("base64 ", at)] = base64.RawStdEncoding.EncodeToString([]byte(secret)[at:][:15])
		}
		octal := new(strings.Builder)
		for _, c := range []byte(secret[:12]) {
			fmt.Fprintf(octal, `\%03o`, c)
		}
		forms["octal"] = octal.String()
		for form, text := range forms {
			if i := strings.Index(output, text); i >= 0 {
				found = append(found, fmt.Sprintf("the secret %s, %s: …%q…", where, form, output[max(0, i-120):min(len(output), i+len(text)+40)]))
			}
		}
	}
	return found
}

// No key, token or password of any kind is in what the agent writes, answers, stores and dumps; also
// not where Envoy says why it NACKed a resource, which it does with the whole resource.
func TestNothingThatIsSecretIsShownAnywhere(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	p := make(plants)
	token := w.path("token")
	w.check(os.WriteFile(token, []byte(p.text("token file")+"\n"), 0o600))
	t.Setenv("HOLDFAST_UPSTREAM_HEADER", "x-acme-token="+p.text("environment"))
	rest, health := net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort())), net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
	w.startWithChild("--log-level", "debug", "--state-dir", w.path("state"), "--rest", rest, "--health", health,
		"--upstream-token-file", token)

	inline := func(s string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s}}
	}
	socket := func(m proto.Message) *corev3.TransportSocket {
		return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: xdstest.Pack(m)}}
	}
	key := func(where string) *tlsv3.CommonTlsContext {
		pem := "-----BEGIN PRIVATE KEY-----\n" + p.text(where) + "\n-----END PRIVATE KEY-----\n"
		return &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline("chain"), PrivateKey: inline(pem), Password: inline(p.text(where + " password"))}}}
	}
	bySDS := func(l *listenerv3.Listener, name string) *listenerv3.Listener {
		l.FilterChains[0].TransportSocket = socket(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: name, SdsConfig: xdstest.ADS()}},
		}})
		return l
	}
	listener := func(name string) *listenerv3.Listener { return xdstest.Listener(name, uint32(w.freePort()), "ingress") }
	header := func(value string) []*corev3.HeaderValueOption {
		return []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: value}}}
	}

	// What Envoy accepts.
	certificate, private := keyPair(t, "good")
	p["key of the listener"] = strings.Split(string(private), "\n")[2]
	accepted := listener("accepted")
	accepted.FilterChains[0].TransportSocket = socket(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline(string(certificate)), PrivateKey: inline(string(private))}},
	}})
	certificate, private = keyPair(t, "secret")
	p["key of the Secret"] = strings.Split(string(private), "\n")[2]
	route := xdstest.Route("ingress", "c1")
	route.RequestHeadersToAdd = header("Bearer " + p.text("route"))
	w.cp.Set(accepted, bySDS(listener("by-sds"), "good"), xdstest.Secret("good", certificate, private), route)
	w.stat("listener_manager.total_listeners_active", 3)

	// What it NACKs, in its own words.
	nacked := func(want string, resources ...proto.Message) {
		t.Helper()
		w.cp.Set(resources...)
		w.asked("of a NACK with "+want, func(e xdstest.Event) bool {
			return e.Kind == xdstest.Nack && strings.Contains(e.Error.GetMessage(), want)
		})
	}
	cluster := xdstest.StaticCluster("bad-cluster", w.v1.Addr)
	cluster.ConnectTimeout = durationpb.New(0)
	cluster.TransportSocket = socket(&tlsv3.UpstreamTlsContext{CommonTlsContext: key("refused cluster")})
	nacked(`"bad-cluster": Proto constraint validation failed (ClusterValidationError.ConnectTimeout: value must be greater than 0s)`, cluster)
	nested := xdstest.StaticCluster("nested", w.v1.Addr)
	nested.TransportSocket = socket(&tlsv3.UpstreamTlsContext{CommonTlsContext: key("part of a cluster"), Sni: strings.Repeat("x", 300)})
	nacked("Error adding/updating cluster(s) nested: Proto constraint validation failed (", nested)
	bad := listener("bad-listener")
	bad.FilterChains[0].TransportSocket = socket(&tlsv3.DownstreamTlsContext{CommonTlsContext: key("refused listener")})
	bad.FilterChains[0].Filters[0].Name = ""
	nacked(`"bad-listener": Proto constraint validation failed (`, bad)
	users, err := structpb.NewStruct(map[string]any{"users": p.text("basic authentication")})
	w.check(err)
	manager := &hcmv3.HttpConnectionManager{StatPrefix: "x", HttpFilters: []*hcmv3.HttpFilter{{Name: "basic", ConfigType: &hcmv3.HttpFilter_TypedConfig{
		TypedConfig: xdstest.Pack(&xdstypev3.TypedStruct{TypeUrl: "type.googleapis.com/envoy.extensions.filters.http.basic_auth.v3.BasicAuth", Value: users}),
	}}}, RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: xdstest.Route("inline", "c1")}}
	basic := listener("basic")
	basic.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(manager)}
	nacked("Error adding/updating listener(s) basic: Unable to parse JSON as proto (", basic)
	badRoute := xdstest.Route("ingress", "c1")
	badRoute.RequestHeadersToAdd = header("Bearer " + p.text("refused route") + " %BAD(")
	nacked("Incorrect configuration: [redacted]", badRoute)
	staple := xdstest.Secret("staple", certificate, private)
	staple.GetTlsCertificate().OcspStaple = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte("no staple")}}
	nacked("OCSP", bySDS(listener("with-staple"), "staple"), staple)

	// What other clients NACK, with the whole resource in several forms.
	secrets := []*tlsv3.Secret{
		{Name: "generic", Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline(p.text("generic secret"))}}},
		{Name: "tickets", Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline(p.text("ticket key"))}}}},
	}
	conn, err := grpc.NewClient("unix:"+w.path("xds.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.check(err)
	defer func() { _ = conn.Close() }()
	for i, secret := range secrets {
		w.cp.Set(secret)
		said := make([]string, 0, 4)
		wire, err := proto.Marshal(secret)
		w.check(err)
		asJSON, err := protojson.Marshal(secret)
		w.check(err)
		said = append(said, prototext.Format(secret), string(asJSON), base64.StdEncoding.EncodeToString(wire), hex.EncodeToString(wire), fmt.Sprintf("%q", asJSON))
		c := xdstest.NewClient(conn, xdstest.ClientConfig{
			Protocol: xdstest.Delta, Node: &corev3.Node{Id: fmt.Sprint("client-", i), UserAgentName: "other"},
			Reject: func(string, *discoveryv3.Resource) error { return errors.New("refused: " + strings.Join(said, ", ")) },
		})
		w.check(c.Connect(t.Context()))
		defer c.Close()
		c.Subscribe(xds.SecretType, secret.Name)
		w.asked("of the NACK of "+secret.Name, func(e xdstest.Event) bool {
			return e.Kind == xdstest.Nack && e.Type == xds.SecretType && strings.Contains(e.Error.GetMessage(), "refused: ")
		})
	}
	time.Sleep(time.Second) // the state is written 200 ms later

	outputs := w.everything(rest, health, conn)
	for _, output := range slices.Sorted(maps.Keys(outputs)) {
		for _, found := range p.shown(outputs[output]) {
			t.Errorf("%s shows %s", output, found)
		}
	}
	// The search itself can find them.
	for where, secret := range p {
		if len(plants{where: secret}.shown("x"+secret+"y")) == 0 {
			t.Errorf("the secret %s is not found where it is", where)
		}
	}
	t.Logf("%d secrets in %d outputs", len(p), len(outputs))
}

// everything returns all that the agent writes, answers, stores and dumps.
func (w *world) everything(rest, health string, conn *grpc.ClientConn) map[string]string {
	w.Helper()
	outputs := make(map[string]string)
	for _, command := range [][]string{{"dump"}, {"status"}, {"status", "-o", "json"}} {
		_, outputs["holdfast "+strings.Join(command, " ")] = run(w.T, append(command, "--admin", "unix:"+w.path("admin.sock"))...)
	}
	for _, path := range []string{"/", "/dump", "/status.json", "/metrics", "/readyz?verbose", "/livez"} {
		got, err := w.ask(path)
		w.check(err)
		outputs["GET "+path] = got.body
	}
	for _, path := range []string{"/metrics", "/readyz?verbose", "/readyz"} {
		_, body, err := testbed.Get("http://" + health + path)
		w.check(err)
		outputs["GET "+path+" on TCP"] = body
	}
	for _, kind := range []string{"clusters", "listeners", "routes", "secrets", "endpoints"} {
		resp, err := http.Post("http://"+rest+"/v3/discovery:"+kind, "application/json", strings.NewReader(`{"node": {"id": "e2e", "cluster": "e2e", "user_agent_name": "envoy"}, "resource_names": ["ingress", "c1"]}`))
		w.check(err)
		body, err := io.ReadAll(resp.Body)
		w.check(err)
		_ = resp.Body.Close()
		outputs["REST on TCP: "+kind] = resp.Status + "\n" + string(body)
	}
	csds, err := statusv3.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(w.Context(), &statusv3.ClientStatusRequest{})
	w.check(err)
	outputs["CSDS"] = prototext.Format(csds)
	if n := strings.Count(outputs["CSDS"], "NACKED"); n < 5 {
		w.Errorf("CSDS knows of %d resources that were NACKed", n)
	}
	for i, e := range w.cp.Events() {
		if e.Kind == xdstest.Nack {
			outputs[fmt.Sprint("what the control plane is told, event ", i)] = e.Error.GetMessage()
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.alive(0).PID))
	w.check(err)
	outputs["the environment of Envoy"] = string(environ)
	log, err := os.ReadFile(w.agent.Log)
	w.check(err)
	if !bytes.Contains(log, []byte("level=WARN")) || !bytes.Contains(log, []byte("level=DEBUG")) {
		w.Errorf("the log does not tell of NACKs:\n%.2000s", log)
	}
	outputs["what the agent writes"] = string(log)
	files := 0
	w.check(filepath.WalkDir(w.path("state"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		outputs["the state: "+e.Name()], files = string(content), files+len(content)
		return err
	}))
	if files == 0 {
		w.Error("nothing is stored")
	}
	if !strings.Contains(outputs["holdfast status"], `RDS "ingress"`) {
		w.Errorf("status does not say that the route is not stored:\n%s", outputs["holdfast status"])
	}
	return outputs
}
