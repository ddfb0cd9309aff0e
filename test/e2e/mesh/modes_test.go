package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// pair is a client and a server, each with a sidecar whose certificate holdfast-mesh issues.
type pair struct {
	*world         // as the client sees it
	server  *world // as the server sees it
	inbound int    // the port on which the server's sidecar listens
	second  int    // that of a second server, which may not run
	issuer  *tokens.Issuer
}

// newPair starts a client and a server, in a mode. Each request of the client is a connection of its own,
// and is not tried again, so that each that is refused is seen. metadata is more of the client's.
func newPair(t *testing.T, mode string, metadata ...string) *pair {
	t.Helper()
	p := newPairAtRest(t, mode, metadata...)
	p.trust(p.issuer)
	p.startMesh()
	p.run(p.server, "web")
	p.run(p.world, "client")
	p.answers(p.request(), "200 v1")
	return p
}

// newPairAtRest is newPair, and starts nothing. holdfast-mesh has an authority, and trusts no issuer.
func newPairAtRest(t *testing.T, mode string, metadata ...string) *pair {
	t.Helper()
	w := newWorld(t)
	w.through = true
	w.of.labels, w.of.metadata = `{"app":"client","security.istio.io/tlsMode":"istio"}`, metadata
	p := &pair{world: w, server: w.beside("web-1", "sidecar", `{"app":"web","security.istio.io/tlsMode":"istio"}`), inbound: w.freePort(), second: w.freePort()}
	w.write("rule", "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: web, namespace: shop}\n"+
		"spec: {host: web.internal, trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}}\n")
	w.write("route", "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n"+
		"spec: {hosts: [web.internal], http: [{retries: {attempts: 0}, route: [{destination: {host: web.internal}}]}]}\n")
	p.endpoints("web")
	p.sidecar("web", p.inbound, w.v1)
	p.mode(mode)
	issuer, err := tokens.New()
	w.check(err)
	p.issuer = issuer
	w.args = append(w.args, "--listen", "", "--tls-listen", w.xds, "--ca", "dev:"+w.path("ca"))
	return p
}

// trust makes holdfast-mesh trust issuers from its start on.
func (p *pair) trust(issuers ...*tokens.Issuer) {
	p.Helper()
	for i, issuer := range issuers {
		file := p.path(fmt.Sprintf("keys-%d.json", i))
		p.check(os.WriteFile(file, issuer.Keys, 0o600))
		p.args = append(p.args, "--token-issuer", issuer.URL, "--token-keys", issuer.URL+"="+file)
	}
}

// run starts the sidecar of a service account.
func (p *pair) run(as *world, account string) {
	p.Helper()
	p.startAgentOf(as, p.issuer, account, "spiffe://cluster.local/ns/shop/sa/"+account)
	as.startEnvoy()
}

// startAgentOf starts the agent of a sidecar with a token of a service account, and asks for a certificate of an identity.
func (p *pair) startAgentOf(as *world, issuer *tokens.Issuer, account, identity string, more ...string) {
	p.Helper()
	text, err := issuer.Token("shop", account)
	p.check(err)
	token := p.path("token-" + account)
	p.check(os.WriteFile(token, text, 0o600))
	as.startAgentWith(append([]string{
		"--upstream", p.xds, "--upstream-ca", p.path("ca/root-cert.pem"), "--upstream-token-file", token,
		"--ca", "istio:" + p.xds, "--istio-ca", p.path("ca/root-cert.pem"), "--istio-token-file", token,
		"--identity", identity, "--identity-dir", as.own("identity"),
	}, more...)...)
}

// endpoints writes the service with endpoints of these service accounts: "web" for the server, others for
// the second one.
func (p *pair) endpoints(accounts ...string) {
	p.Helper()
	text := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints:
`, p.port)
	for _, account := range accounts {
		port := p.inbound
		if account != "web" {
			port = p.second
		}
		text += fmt.Sprintf("  - {address: 127.0.0.1, ports: {http: %d}, serviceAccount: %s, labels: {app: %[2]s, security.istio.io/tlsMode: istio}}\n", port, account)
	}
	p.write("service", text)
}

// sidecar writes the Sidecar of a server.
func (p *pair) sidecar(app string, inbound int, backend *testbed.Backend) {
	p.Helper()
	p.write("sidecar-"+app, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: %[1]s, namespace: shop}
spec:
  workloadSelector: {labels: {app: %[1]s}}
  ingress: [{port: {number: %[2]d, name: http, protocol: HTTP}, defaultEndpoint: "%[3]s"}]
  egress: [{hosts: ["~/*"]}]
`, app, inbound, backend.Addr))
}

// mode writes the PeerAuthentication of the namespace.
func (p *pair) mode(mode string) {
	p.Helper()
	p.write("authentication", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: "+mode+"}}\n")
}

// upstream returns a stat of the client's cluster.
func (p *pair) upstream(name string) int {
	p.Helper()
	return p.value(fmt.Sprintf(`cluster\.outbound.%d..web.internal.*\.%s`, p.port, strings.ReplaceAll(name, ".", `\.`)))
}

// switched writes a mode, and waits until the server's sidecar has it.
func (p *pair) switched(mode string) {
	p.Helper()
	began := time.Now()
	p.mode(mode)
	p.check(p.server.envoy.Wait(2*limit, func() error {
		got, err := p.inboundMode()
		if err == nil && got != mode {
			err = fmt.Errorf("the server's sidecar is %s, want %s", got, mode)
		}
		return err
	}))
	p.Logf("%s after %s", mode, time.Since(began).Round(100*time.Millisecond))
}

// inboundMode returns the mode of the inbound listener of the server's Envoy, by its filter chains.
func (p *pair) inboundMode() (string, error) {
	_, dump, err := testbed.Get("http://" + p.server.envoy.Admin + "/config_dump?resource=dynamic_listeners")
	if err != nil {
		return "", err
	}
	type chain struct {
		Socket *json.RawMessage `json:"transport_socket"`
	}
	var all struct {
		Configs []struct {
			Name   string
			Active struct {
				Listener struct {
					Chains  []chain `json:"filter_chains"`
					Default *chain  `json:"default_filter_chain"`
				}
			} `json:"active_state"`
		}
	}
	if err := json.Unmarshal([]byte(dump), &all); err != nil {
		return "", err
	}
	for _, c := range all.Configs {
		if !strings.HasSuffix(c.Name, fmt.Sprintf("_%d", p.inbound)) {
			continue
		}
		chains := c.Active.Listener.Chains
		if c.Active.Listener.Default != nil {
			chains = append(chains, *c.Active.Listener.Default)
		}
		tls, plain := 0, 0
		for _, one := range chains {
			if one.Socket != nil {
				tls++
			} else {
				plain++
			}
		}
		switch {
		case plain == 0 && tls > 0:
			return "STRICT", nil
		case tls == 0 && plain > 0:
			return "DISABLE", nil
		case tls > 0:
			return "PERMISSIVE", nil
		}
	}
	return "", errors.New("there is no inbound listener")
}

// Modes change under load, from each to each, and no request fails: where the client must speak another
// way, the server accepts both until the client does.
func TestModesOfMutualTLSChangeWithoutAFailedRequest(t *testing.T) {
	p := newPair(t, "PERMISSIVE")
	handshakes := fmt.Sprintf(`listener\.127\.0\.0\.1_%d\.ssl\.handshake`, p.inbound)
	plain := p.requestTo("web.internal", p.inbound) // of a client without a sidecar
	p.server.answers(plain, "200 v1")
	if p.server.value(handshakes) == 0 {
		t.Error("no request came by TLS")
	}
	// While the server's sidecar started, the client may have met nobody there.
	before := make(map[string]int)
	for _, stat := range []string{"ssl.connection_error", "ssl.fail_verify_san", "upstream_cx_connect_fail"} {
		before[stat] = p.upstream(stat)
	}
	tally, stop := p.load()
	refused := func() {
		t.Helper()
		if status, _, err := plain.Get(); err == nil {
			t.Errorf("a request without a sidecar is answered %d", status)
		}
	}
	probes := 0
	for _, mode := range []string{"STRICT", "PERMISSIVE", "DISABLE", "STRICT", "DISABLE", "PERMISSIVE"} {
		p.switched(mode)
		if mode == "STRICT" {
			refused()
			probes++
		} else {
			p.server.answers(plain, "200 v1")
		}
		p.check(tally.More(300, limit)) // that the new mode is used for a while
	}
	// After PERMISSIVE clients speak mutual TLS again.
	p.check(p.server.envoy.Wait(limit, func() error {
		if p.server.value(handshakes) == 0 {
			return errors.New("no request comes by TLS")
		}
		return nil
	}))
	stop()
	// Nor was any retried because the two spoke different ways.
	if n := p.server.value(fmt.Sprintf(`listener\.127\.0\.0\.1_%d\.no_filter_chain_match`, p.inbound)); n != probes {
		t.Errorf("%d connections in plaintext were closed, want those %d of the client without a sidecar", n, probes)
	}
	if p.upstream("ssl.handshake") == 0 {
		t.Error("the client has spoken no TLS")
	}
	for stat, n := range before {
		if n = p.upstream(stat) - n; n != 0 {
			t.Errorf("%s of the client has grown by %d", stat, n)
		}
	}
	t.Logf("%d requests, none failed", tally.Sent())
}

// STRICT comes into force, and no request fails, while another namespace changes its own mode every second.
func TestAModeHoldsWhileAnotherNamespaceChangesItsOwn(t *testing.T) {
	p := newPair(t, "DISABLE")
	plain := p.requestTo("web.internal", p.inbound) // of a client without a sidecar
	p.server.answers(plain, "200 v1")
	changes, last := 0, time.Time{}
	other := func() {
		if time.Since(last) < time.Second {
			return
		}
		p.write("other", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: other}\n"+
			"spec: {mtls: {mode: "+[]string{"STRICT", "PERMISSIVE"}[changes%2]+"}}\n")
		changes, last = changes+1, time.Now()
	}
	tally, stop := p.load()
	// Steps to what the other namespace says are under way when the change comes.
	for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(100 * time.Millisecond) {
		other()
	}
	began, before := time.Now(), changes
	p.mode("STRICT")
	p.check(p.server.envoy.Wait(2*limit, func() error {
		other()
		got, err := p.inboundMode()
		if err == nil && got != "STRICT" {
			err = fmt.Errorf("the server's sidecar is %s", got)
		}
		return err
	}))
	p.check(p.server.envoy.Wait(limit, func() error {
		other()
		if status, _, err := plain.Get(); err == nil {
			return fmt.Errorf("a request without a sidecar is answered %d", status)
		}
		return nil
	}))
	took := time.Since(began)
	p.check(tally.More(100, limit))
	stop()
	if changes-before < 3 {
		t.Errorf("the other namespace has changed %d times only", changes-before)
	}
	t.Logf("STRICT after %s, with %d changes of another namespace; %d requests, none failed", took.Round(100*time.Millisecond), changes-before, tally.Sent())
}

// An endpoint with another service account joins a service, and takes the place of all others: the client
// knows the name before it uses the endpoint, and no request fails.
func TestAnEndpointWithAnotherServiceAccountFailsNoRequest(t *testing.T) {
	p := newPair(t, "STRICT")
	other := p.beside("web-2", "sidecar", `{"app":"web-2","security.istio.io/tlsMode":"istio"}`)
	p.sidecar("web-2", p.second, p.v2)
	p.run(other, "web-2")
	p.check(other.envoy.Wait(limit, func() error { return testbed.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.second)) }))
	tally, stop := p.load()
	for range 3 {
		p.endpoints("web", "web-2")
		p.answers(p.request(), "200 v2")
		p.endpoints("web-2")
		p.check(tally.More(50, limit))
		p.endpoints("web")
		p.answers(p.request(), "200 v1")
	}
	stop()
	if p.upstream("ssl.handshake") == 0 {
		t.Error("the client has spoken no TLS")
	}
	if n := p.upstream("ssl.fail_verify_san"); n != 0 {
		t.Errorf("the client rejected the name of a server %d times", n)
	}
	if tally.Got("v2") == 0 {
		t.Error("the second server got no request")
	}
	t.Logf("%d requests, %d of them to the second server, none failed", tally.Sent(), tally.Got("v2"))
}

// On ports whose protocol is detected, HTTP in mutual TLS is HTTP for the server's sidecar, and anything else
// comes through as it is.
func TestProtocolsAreDetectedInMutualTLS(t *testing.T) {
	p := newPair(t, "STRICT")
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	p.check(err)
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	web, raw, webIn, rawIn := p.freePort(), p.freePort(), p.freePort(), p.freePort()
	p.write("detected", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: detected, namespace: shop}
spec:
  hosts: [detected.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: web}, {number: %d, name: raw}]
  endpoints: [{address: 127.0.0.1, ports: {web: %d, raw: %d}, serviceAccount: web, labels: {app: web, security.istio.io/tlsMode: istio}}]
`, web, raw, webIn, rawIn))
	p.write("sidecar-web", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress: [{port: {number: %d, name: web}, defaultEndpoint: "%s"}, {port: {number: %d, name: raw}, defaultEndpoint: "%s"}]
  egress: [{hosts: ["~/*"]}]
`, webIn, p.v1.Addr, rawIn, echo.Addr()))
	p.answers(p.requestTo("detected.internal", web), "200 v1")
	p.check(p.envoy.Wait(limit, func() error {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", raw))
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "anything\n"); err != nil {
			return err
		}
		got := make([]byte, len("anything\n"))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "anything\n" {
			return fmt.Errorf("the echo is %q: %v", got, err)
		}
		return nil
	}))
	requests := func(port int) int {
		return p.server.value(fmt.Sprintf(`http\.inbound_.*_%d.*\.downstream_rq_total`, port))
	}
	if requests(webIn) == 0 {
		t.Error("the server's sidecar has seen no request")
	}
	if n := requests(rawIn); n != 0 {
		t.Errorf("the server's sidecar took %d connections for HTTP", n)
	}
	for _, port := range []int{webIn, rawIn} {
		if p.server.value(fmt.Sprintf(`listener\.127\.0\.0\.1_%d\.ssl\.handshake`, port)) == 0 {
			t.Error("connections come without TLS")
		}
	}
}
