package mesh

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// guarded is a client and a server, both behind a sidecar with a certificate, and what the workload of the server gets.
type guarded struct {
	*world
	server  *world
	inbound int // the port of the server's sidecar

	tries int
	sent  sync.WaitGroup

	mu    sync.Mutex
	paths []string
}

// got returns the paths of the requests that came to the workload.
func (g *guarded) got() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.paths...)
}

// newGuarded starts both with these policies.
func newGuarded(t *testing.T, policies string) *guarded {
	t.Helper()
	w := newWorld(t)
	w.through = true
	w.of.labels = `{"app":"client","security.istio.io/tlsMode":"istio"}`
	w.of.metadata = []string{"SERVICE_ACCOUNT=client"}
	g := &guarded{world: w, server: w.beside("web-1", "sidecar", `{"app":"web","security.istio.io/tlsMode":"istio"}`), inbound: w.freePort()}
	workload := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		g.mu.Lock()
		g.paths = append(g.paths, r.URL.Path)
		g.mu.Unlock()
		_, _ = io.WriteString(rw, "web")
	}))
	t.Cleanup(workload.Close)
	w.remove("rule")
	w.remove("route")
	w.write("policies", policies)
	w.startServed(g.server, g.inbound, strings.TrimPrefix(workload.URL, "http://"))
	return g
}

// policy returns a policy about the server.
func policy(name, spec string) string {
	return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec: {selector: {matchLabels: {app: web}}, " + spec + "}\n"
}

func (g *guarded) explain(args ...string) string {
	g.Helper()
	code, out, stderr := run(g.T, append([]string{"explain", "--admin", g.admin, "--proxy"}, args...)...)
	if code != 0 {
		g.Fatalf("explain %q: exit code %d\n%s", args, code, stderr)
	}
	return out
}

// Policies are enforced by who the client is, change while requests run, and explain says which of them denied a request
// and whom.
func TestAPolicyDecidesByIdentityAndExplainSaysWhich(t *testing.T) {
	g := newGuarded(t, policy("callers", "rules: [{from: [{source: {serviceAccounts: [client]}}], to: [{operation: {paths: [/, /public*]}}]}]"))
	g.answers(g.request(), "200 web")
	at := func(path string) testbed.Request {
		r := g.request()
		r.URL += strings.TrimPrefix(path, "/")
		return r
	}
	g.answers(at("/admin"), "403 RBAC: access denied")
	plain := g.requestTo("web.internal", g.inbound)
	g.answers(plain, "403 RBAC: access denied")
	target := fmt.Sprintf("web.internal:%d", g.port)
	for _, want := range []struct {
		args []string
		has  []string
	}{
		{[]string{"client-1", target + "/public"}, []string{"→ the request goes to the cluster", "at web-1", "by mutual TLS, as spiffe://cluster.local/ns/shop/sa/client", "→ allowed: the request goes to the workload"}},
		{[]string{"client-1", target + "/admin"}, []string{"→ 403: denied because no rule allows it: those of AuthorizationPolicy shop/callers"}},
		{[]string{"web-1", "--inbound", "--as", "spiffe://cluster.local/ns/shop/sa/client", fmt.Sprintf("web:%d/admin", g.inbound)}, []string{
			"403: denied because no rule allows it: those of AuthorizationPolicy shop/callers", "spiffe://cluster.local/ns/shop/sa/client"}},
		{[]string{"web-1", "--inbound", "--as", "spiffe://cluster.local/ns/shop/sa/client", fmt.Sprintf("web:%d/public/x", g.inbound)}, []string{
			"allowed: the request goes to the workload", "AuthorizationPolicy shop/callers (policies.yaml:", "rules[0] takes the request"}},
		{[]string{"web-1", "--inbound", fmt.Sprintf("web:%d/public", g.inbound)}, []string{"403: denied", "a client without an identity"}},
		{[]string{"web-1", "--inbound", "--as", "spiffe://evil.example/ns/shop/sa/client", fmt.Sprintf("web:%d/public", g.inbound)}, []string{
			"→ closed: the TLS handshake fails: the trust domain evil.example of the client is none of those that the listener accepts (cluster.local)"}},
	} {
		out := g.explain(want.args...)
		t.Log(out)
		for _, text := range want.has {
			if !strings.Contains(out, text) {
				t.Errorf("explain %q does not say %q:\n%s", want.args, text, out)
			}
		}
	}
	if code, _, stderr := run(t, "explain", "--admin", g.admin, "--proxy", "client-1", "--from", "10.0.0.1", target); code != 1 || !strings.Contains(stderr, "client-1 is a sidecar") {
		t.Errorf("the client of a sidecar: exit code %d, %s", code, stderr)
	}
	_, stop := g.load() // of /, which all of them allow
	for _, spec := range []string{
		"rules: [{}]", "action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]",
		"rules: [{from: [{source: {principals: ['*/sa/client']}}], to: [{operation: {paths: [/]}}]}]",
	} {
		g.write("policies", policy("callers", spec))
		want := "403 RBAC: access denied"
		if spec == "rules: [{}]" {
			want = "200 web"
		}
		g.answers(at("/admin"), want)
	}
	g.remove("policies")
	g.answers(at("/admin"), "200 web")
	stop()
}

// Requests that mean one thing to the sidecar and another to the workload do not bring a client to what is denied.
func TestNoTrickBringsARequestToWhatIsDenied(t *testing.T) {
	g := newGuarded(t, policy("admin", "action: DENY, rules: [{to: [{operation: {paths: ['/admin*']}}]}]"))
	g.answers(g.requestTo("web.internal", g.inbound), "200 web")
	addr := fmt.Sprintf("127.0.0.1:%d", g.inbound)
	const smuggled = "GET /admin00 HTTP/1.1\r\nHost: web\r\n\r\n"
	for name, request := range map[string]string{
		"plainly":                        smuggled,
		"absolute":                       "GET http://web/admin00 HTTP/1.1\r\nHost: other\r\n\r\n",
		"dots":                           "GET /public/../admin00 HTTP/1.1\r\nHost: web\r\n\r\n",
		"encoded dots":                   "GET /public/%2e%2e/admin00 HTTP/1.1\r\nHost: web\r\n\r\n",
		"an encoded letter":              "GET /%61dmin00 HTTP/1.1\r\nHost: web\r\n\r\n",
		"a backslash":                    "GET /public\\..\\admin00 HTTP/1.1\r\nHost: web\r\n\r\n",
		"a tab":                          "GET\t/admin00\tHTTP/1.1\r\nHost: web\r\n\r\n",
		"bare line feeds":                "GET /admin00 HTTP/1.1\nHost: web\n\n",
		"a length and chunks":            "POST /public HTTP/1.1\r\nHost: web\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"chunks and a length":            fmt.Sprintf("POST /public HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n%s", 5+len(smuggled), smuggled),
		"two lengths":                    fmt.Sprintf("POST /public HTTP/1.1\r\nHost: web\r\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n%s", len(smuggled), smuggled),
		"a length with a sign":           fmt.Sprintf("POST /public HTTP/1.1\r\nHost: web\r\nContent-Length: +%d\r\n\r\n%s", len(smuggled), smuggled),
		"a space before a colon":         "POST /public HTTP/1.1\r\nHost: web\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"chunks by another name":         "POST /public HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
		"a folded header":                "GET /public HTTP/1.1\r\nHost: web\r\nX: a\r\n Transfer-Encoding: chunked\r\n\r\n" + smuggled,
		"a bare carriage return":         "GET /public HTTP/1.1\r\nHost: web\r\nX: a\rGET /admin00 HTTP/1.1\r\n\r\n",
		"a size of a chunk with a space": "POST /public HTTP/1.1\r\nHost: web\r\nTransfer-Encoding: chunked\r\n\r\n0 \r\n\r\n" + smuggled,
		"a path override":                "GET /public HTTP/1.1\r\nHost: web\r\nX-Original-URL: /admin00\r\nX-Rewrite-URL: /admin00\r\nX-Envoy-Original-Path: /admin00\r\n\r\n",
		"an upgrade":                     "GET /public HTTP/1.1\r\nHost: web\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n" + smuggled,
		"two hosts":                      "GET /admin00 HTTP/1.1\r\nHost: web\r\nHost: other\r\n\r\n",
		"no version":                     "GET /admin00\r\n\r\n",
	} {
		g.try(name, func(number string) error {
			return sendRaw(addr, strings.ReplaceAll(request, "dmin00", "dmin"+number))
		})
	}
	for name, fields := range map[string][][2]string{
		"plainly":          {{":path", "/admin00"}},
		"two paths":        {{":path", "/public"}, {":path", "/admin00"}},
		"a line break":     {{":path", "/public HTTP/1.1\r\nHost: web\r\n\r\nGET /admin00"}},
		"a header's break": {{":path", "/public"}, {"x", "a\r\n\r\n" + smuggled}},
		"chunks":           {{":path", "/public"}, {"transfer-encoding", "chunked"}},
		"a length":         {{":path", "/public"}, {"content-length", "0"}},
		"an absolute path": {{":path", "http://web/admin00"}},
		"dots":             {{":path", "/public/../admin00"}},
		"a method":         {{":path", "/public"}, {":method", "GET /admin00 HTTP/1.1\r\nHost: web\r\n\r\nGET"}},
	} {
		g.try("HTTP/2, "+name, func(number string) error {
			own := make([][2]string, len(fields))
			for i, f := range fields {
				own[i] = [2]string{f[0], strings.ReplaceAll(f[1], "dmin00", "dmin"+number)}
			}
			return sendFrames(addr, own, strings.ReplaceAll(smuggled, "dmin00", "dmin"+number))
		})
	}
	g.wait()
	before := len(g.got())
	g.answers(g.requestTo("web.internal", g.inbound), "200 web")
	if len(g.got()) == before {
		t.Error("the workload got nothing any more: the test would not notice a request")
	}
}

// try sends a request at once with others, and fails the test if the workload gets what is denied: its path has the number.
func (g *guarded) try(name string, send func(number string) error) {
	g.tries++
	number := fmt.Sprintf("%02d", g.tries)
	g.sent.Go(func() {
		if err := send(number); err != nil {
			g.Errorf("%s: %v", name, err)
		}
		for _, path := range g.got() {
			if strings.Contains(path, "admin"+number) {
				g.Errorf("%s: the workload got %q", name, path)
			}
		}
	})
}

// wait returns when all requests were sent.
func (g *guarded) wait() { g.sent.Wait() }

// sendRaw sends bytes, and waits for an answer, and for a second one or the end of the connection.
func sendRaw(addr, request string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<16))
	return nil
}

// sendFrames sends a request of HTTP/2 with these fields and a body, and waits for an answer or the end of the
// connection. The frames are made here (RFC 9113, section 4.1; RFC 7541, section 6.2.2), because libraries reject such
// requests.
func sendFrames(addr string, fields [][2]string, body string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
	var block []byte
	for _, f := range append([][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "web"}}, fields...) {
		block = append(block, 0) // a literal that is not indexed
		for _, text := range f {
			block = appendLength(block, len(text))
			block = append(block, text...)
		}
	}
	const data, headers, reset, settings, goAway = 0, 1, 3, 4, 7
	const endStream, endHeaders = 1, 4
	out := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	out = appendFrame(out, settings, 0, 0, nil)
	out = appendFrame(out, headers, endHeaders, 1, block)
	out = appendFrame(out, data, endStream, 1, []byte(body))
	if _, err := conn.Write(out); err != nil {
		return err
	}
	for {
		header := make([]byte, 9)
		if _, err := io.ReadFull(conn, header); err != nil {
			return nil // Envoy has ended the connection
		}
		length := int64(header[0])<<16 | int64(header[1])<<8 | int64(header[2])
		if _, err := io.CopyN(io.Discard, conn, length); err != nil {
			return nil
		}
		kind, flags := header[3], header[4]
		if kind == reset || kind == goAway || (kind == headers || kind == data) && flags&endStream != 0 {
			return nil
		}
	}
}

// appendFrame appends a frame of HTTP/2.
func appendFrame(out []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	out = append(out, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	out = append(out, byte(stream>>24), byte(stream>>16), byte(stream>>8), byte(stream))
	return append(out, payload...)
}

// appendLength appends a number with a prefix of 7 bits (RFC 7541, section 5.1).
func appendLength(out []byte, n int) []byte {
	const most = 127
	if n < most {
		return append(out, byte(n))
	}
	out = append(out, most)
	for n -= most; n > most; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(out, byte(n))
}

// What an issuer answers for its keys must neither end holdfast-mesh nor make Envoy reject its listeners, because a later
// policy would then not be in force.
func TestAnIssuerThatAnswersAnythingHoldsNoPolicyUp(t *testing.T) {
	const key = `{"kty":"EC","kid":"a\u0062","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}`
	answers := map[string]string{
		"utf8": `{"keys":[` + strings.Replace(key, "\\u0062", "\xff", 1) + `]}`, "upper": `{"KEYS":[` + key + `]}`, "twice": `{"keys":[` + key + `],"keys":[` + key + `,{}]}`,
		"more": `{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"},` + strings.TrimSuffix(key, "}") + `,"alg":"none"},` + key + `],"x":"` + "\xff" + `"}`, "none": `{"keys":[]}`,
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, answers[strings.TrimPrefix(r.URL.Path, "/")])
	}))
	t.Cleanup(issuer.Close)
	var rules []string
	for name := range answers {
		rules = append(rules, fmt.Sprintf("{issuer: %s, jwksUri: %q}", name, issuer.URL+"/"+name))
	}
	rules = append(rules, `{issuer: inline, jwks: '{"keys":[]}'}`)
	g := newGuarded(t, "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: tokens, namespace: shop}\nspec: {selector: {matchLabels: {app: web}}, jwtRules: ["+strings.Join(rules, ", ")+"]}\n")
	g.answers(g.request(), "200 web")
	if code, out, stderr := run(t, "diff", "--admin", g.admin, g.path("documents")); code != 0 || !strings.Contains(out, "web-1: nothing changes") {
		t.Errorf("the documents that are served: exit code %d\n%s%s", code, out, stderr)
	}
	g.write("deny", policy("deny", "action: DENY, rules: [{}]"))
	g.answers(g.request(), "403 RBAC: access denied")
	token := g.request()
	token.Header = map[string]string{"Authorization": "Bearer e30.e30.e30"}
	g.answers(token, "401 Jwt header [alg] field is required and must be a string")
}
