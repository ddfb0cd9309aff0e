package istio

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

const livez = "/app-health/app/livez"

// probing returns an environment with one probe of an application on 127.0.0.1.
func probing(path, probe string) environ {
	return environ{addressVar: "127.0.0.1", probersVar: fmt.Sprintf(`{%q:%s}`, path, probe)}
}

func httpGet(port, more string) environ {
	return probing(livez, fmt.Sprintf(`{"httpGet":{"port":%s%s}}`, port, more))
}

func TestTheApplicationsAnswerIsPassedOn(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		code   int
		body   string
	}{
		{"success", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }, 200, "fine"},
		{"another success", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 204, ""},
		{"failure", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no database", http.StatusServiceUnavailable)
		}, 503, "no database\n"},
		{"no such page", http.NotFound, 404, "404 page not found\n"},
		{"a status that there is not", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }, 500, "status 799"},
		{"a long body", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		}, 200, strings.Repeat("x", maxProbeBody)},
		{"a redirect within the host", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/there" {
				_, _ = io.WriteString(w, "there")
				return
			}
			http.Redirect(w, r, "/there", http.StatusFound)
		}, 200, "there"},
		{"a redirect to another host", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, 200, "redirected\n"},
		{"a redirect to a port of the proxy", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:15000/config_dump", http.StatusFound)
		}, 500, "belongs to the proxy (Envoy's admin interface)"},
		{"redirects without end", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/", http.StatusFound)
		}, 500, "more than 10 redirects"},
		{"a page for a browser", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<script>")
		}, 200, "<script>"},
		{"no answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 500, "EOF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := start(t, httpGet(application(t, tc.answer), ""), nil)
			resp, body := r.get(livez)
			if resp.StatusCode != tc.code || !strings.Contains(body, tc.body) || tc.code < 500 && body != tc.body {
				t.Errorf("%d %.200q, want %d %.200q", resp.StatusCode, body, tc.code, tc.body)
			}
			if h := resp.Header; tc.code == 200 && (h.Get("Content-Type") != "text/plain; charset=utf-8" || h.Get("X-Content-Type-Options") != "nosniff") {
				t.Errorf("a browser might take the answer for a page: %v", h)
			}
		})
	}
}

// The application sees the request that the kubelet would have sent, from the address that is not
// redirected to Envoy.
func TestTheApplicationSeesTheKubeletsRequest(t *testing.T) {
	var got *http.Request
	port := application(t, func(_ http.ResponseWriter, r *http.Request) { got = r })
	r := start(t, httpGet(port, `,"path":"/ready?deep=1"`), nil)
	own := strings.TrimPrefix(r.url, "http://")
	for _, tc := range []struct {
		name, sent, want string
	}{
		{"the host of the pod", own, "127.0.0.1:" + port},
		{"a host of the probe", "shop.example", "shop.example"},
		{"a host of the probe with another port", "shop.example:1", "shop.example:1"},
	} {
		r.get(livez, "Host", tc.sent, "X-Probe", "yes", "User-Agent", "kube-probe/1.40", "Connection", "close", "Upgrade", "x")
		if got.Host != tc.want {
			t.Errorf("%s: the host is %q, want %q", tc.name, got.Host, tc.want)
		}
	}
	h := got.Header
	switch from, _, _ := net.SplitHostPort(got.RemoteAddr); {
	case got.Method != "GET" || got.URL.String() != "/ready?deep=1" || got.Proto != "HTTP/1.1":
		t.Errorf("the request is %s %s %s", got.Method, got.URL, got.Proto)
	case h.Get("X-Probe") != "yes" || h.Get("User-Agent") != "kube-probe/1.40" || h.Get("Upgrade") != "" || h.Get("Accept-Encoding") != "":
		t.Errorf("the headers are %v", h)
	case from != "127.0.0.6":
		t.Errorf("the request comes from %s", from)
	}
	r.get(livez, "User-Agent", "")
	if ua := got.Header.Get("User-Agent"); ua != probeUserAgent {
		t.Errorf("without one, the user agent is %q", ua)
	}
}

func TestHTTPSIsProbedWithoutVerificationInTheVersionThatTheServerPrefers(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(version, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
			server.EnableHTTP2 = version == "HTTP/2.0"
			var open opened
			server.Config.ConnState = open.state
			server.StartTLS()
			t.Cleanup(server.Close)
			r := start(t, httpGet(portOf(server.Listener.Addr()), `,"scheme":"HTTPS"`), nil)
			if resp, body := r.get(livez); resp.StatusCode != 200 || body != version {
				t.Errorf("%d %q", resp.StatusCode, body)
			}
			open.none(t)
		})
	}
}

// opened counts the connections of a server.
type opened struct {
	mu     sync.Mutex
	now    map[net.Conn]bool
	ever   int
	closed *sync.Cond
}

func (o *opened) state(c net.Conn, state http.ConnState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed == nil {
		o.closed, o.now = sync.NewCond(&o.mu), make(map[net.Conn]bool)
	}
	switch state {
	case http.StateNew:
		o.now[c] = true
		o.ever++
	case http.StateClosed, http.StateHijacked:
		delete(o.now, c)
		o.closed.Broadcast()
	}
}

// none waits until no connection is open. A leak makes the test hang.
func (o *opened) none(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ever == 0 {
		t.Error("there was no connection")
	}
	for len(o.now) > 0 {
		o.closed.Wait()
	}
}

func TestAHundredProbesAtOnceLeaveNoConnection(t *testing.T) {
	var open opened
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ConnState = open.state
	server.Start()
	t.Cleanup(server.Close)
	r := start(t, httpGet(portOf(server.Listener.Addr()), ""), nil)
	var all sync.WaitGroup
	for range maxProbesOfOne {
		all.Go(func() {
			if resp, body := r.get(livez); resp.StatusCode != 200 {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
	all.Wait()
	open.none(t)
	if open.ever != maxProbesOfOne {
		t.Errorf("%d connections for %d probes: one is to be opened for each", open.ever, maxProbesOfOne)
	}
}

// closedPort returns a port on which nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	return portOf(lis.Addr())
}

func TestAPortIsProbed(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	accepted := make(chan string, 1)
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		b, _ := io.ReadAll(conn) // until the probe closes
		from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		accepted <- fmt.Sprintf("%d bytes from %s", len(b), from)
		_ = conn.Close()
	}()
	r := start(t, probing(livez, `{"tcpSocket":{"port":`+portOf(lis.Addr())+`}}`), nil)
	if resp, body := r.get(livez); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if got := <-accepted; got != "0 bytes from 127.0.0.6" {
		t.Error(got)
	}
	r = start(t, probing(livez, `{"tcpSocket":{"port":`+closedPort(t)+`}}`), nil)
	if resp, body := r.get(livez); resp.StatusCode != 500 || !strings.Contains(body, "refused") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// healthServer is a gRPC server whose health service, unless it is missing, says that "up" serves and
// "down" does not.
func healthServer(t *testing.T, missing bool, agents chan<- string) (port string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(insecure.NewCredentials()), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			agents <- strings.Join(md.Get("user-agent"), " ")
			return next(ctx, req)
		}))
	if !missing {
		state := health.NewServer()
		state.SetServingStatus("up", healthpb.HealthCheckResponse_SERVING)
		state.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
		healthpb.RegisterHealthServer(server, state)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(lis)
	}()
	t.Cleanup(func() { server.Stop(); <-ended })
	return portOf(lis.Addr())
}

func TestGRPCHealthIsProbed(t *testing.T) {
	for _, tc := range []struct {
		name, service string
		missing       bool
		code          int
		want          string
	}{
		{"the server", `""`, false, 200, "ok"},
		{"no service named", `null`, false, 200, "ok"},
		{"a service", `"up"`, false, 200, "ok"},
		{"a service that does not serve", `"down"`, false, 500, "NOT_SERVING"},
		{"a service that there is not", `"unknown"`, false, 500, "unknown service"},
		{"a server without health", `""`, true, 500, "does not have the health service"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agents := make(chan string, 1)
			port := healthServer(t, tc.missing, agents)
			r := start(t, probing(livez, `{"grpc":{"port":`+port+`,"service":`+tc.service+`},"timeoutSeconds":30}`), nil)
			resp, body := r.get(livez, "User-Agent", "kube-probe/1.40")
			if resp.StatusCode != tc.code || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if tc.missing {
				return
			}
			if agent := <-agents; !strings.HasPrefix(agent, "kube-probe/1.40") {
				t.Errorf("the user agent is %q", agent)
			}
		})
	}
	r := start(t, probing(livez, `{"grpc":{"port":`+closedPort(t)+`},"timeoutSeconds":30}`), nil)
	if resp, body := r.get(livez); resp.StatusCode != 500 || !strings.Contains(body, "refused") {
		t.Errorf("nobody listens: %d %s", resp.StatusCode, body)
	}
}

// A probe that hangs ends after its own timeout, and one whose client has gone at once.
func TestAHangingApplicationCostsOnlyTheTimeout(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // whose connections nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for _, kind := range []string{"httpGet", "grpc"} {
		t.Run(kind, func(t *testing.T) {
			r := probing(livez, fmt.Sprintf(`{%q:{"port":%s}}`, kind, portOf(silent.Addr())))
			cfg, err := FromEnv(r.get, 15020)
			if err != nil {
				t.Fatal(err)
			}
			cfg.probers[livez].timeout = time.Millisecond
			w := httptest.NewRecorder()
			s := New(*cfg, Parts{})
			s.probe(w, httptest.NewRequestWithContext(t.Context(), "GET", livez, nil))
			if w.Code != 500 || !strings.Contains(w.Body.String(), "no answer within the probe's timeout of 1ms") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			cfg.probers[livez].timeout = 0 // as for a lifecycle handler
			gone, leave := context.WithCancel(t.Context())
			leave()
			s.probe(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, "GET", livez, nil)) // returns
		})
	}
}

func TestAProbeThatTheWebhookDidNotNameIsExplained(t *testing.T) {
	r := start(t, httpGet("1", ""), nil)
	for _, path := range []string{"/app-health/app/readyz", "/app-health/app/livez/x", "/app-lifecycle/app/prestopz"} {
		resp, body := r.get(path)
		if resp.StatusCode != 404 || !strings.Contains(body, probersVar+" has no probe "+path) || !strings.Contains(body, "declare the port") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

// An application that leads probes and scrapes back to the agent is told so; they do not go on without end.
func TestARequestThatComesBackEnds(t *testing.T) {
	var mu sync.Mutex
	count, back := 0, ""
	port := application(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		count++
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, back, nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header = r.Header // as a proxy passes it on
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		w.WriteHeader(resp.StatusCode)
	})
	r := start(t, httpGet(port, ""), nil)
	for _, path := range []string{livez, stats} {
		mu.Lock()
		count, back = 0, r.url+path
		mu.Unlock()
		if resp, _ := r.get(livez); resp.StatusCode != http.StatusLoopDetected {
			t.Errorf("%s: %s", path, resp.Status)
		}
		mu.Lock()
		if count != 1 {
			t.Errorf("%s: the application was asked %d times", path, count)
		}
		mu.Unlock()
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestALifecycleHandlerIsCalled(t *testing.T) {
	called := make(chan string, 1)
	port := application(t, func(_ http.ResponseWriter, r *http.Request) { called <- r.URL.Path })
	r := start(t, probing("/app-lifecycle/app/prestopz", `{"httpGet":{"path":"stop","port":`+port+`}}`), nil)
	if resp, body := r.get("/app-lifecycle/app/prestopz"); resp.StatusCode != 200 || <-called != "/stop" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// A handler may take longer than the listener's deadline for other answers.
func TestTheListenersDeadlineDoesNotEndALongProbe(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	port := application(t, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		select {
		case <-release:
		case <-r.Context().Done():
			t.Error("the probe ended")
		}
	})
	cfg, err := FromEnv(probing("/app-lifecycle/app/prestopz", `{"httpGet":{"port":`+port+`}}`).get, 15020)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	New(*cfg, Parts{}).Register(mux)
	deadlines := make(chan string, 16)
	server := httptest.NewUnstartedServer(mux)
	server.Listener = recordingListener{server.Listener, deadlines}
	server.Config.WriteTimeout = time.Hour
	server.Start()
	defer server.Close()
	done := make(chan int, 1)
	go func() {
		resp, err := server.Client().Get(server.URL + "/app-lifecycle/app/prestopz")
		if err != nil {
			done <- 0
			return
		}
		_ = resp.Body.Close()
		done <- resp.StatusCode
	}()
	<-begun
	var last []string
	for len(deadlines) > 0 {
		last = append(last, <-deadlines)
	}
	close(release)
	if code := <-done; code != 200 {
		t.Errorf("the answer is %d", code)
	}
	if n := len(last); n < 2 || last[n-1] != "none" || last[n-2] == "none" {
		t.Errorf("while the probe runs, the deadline of its answer was set to %q", last)
	}
}

// recordingListener records the deadlines of its connections.
type recordingListener struct {
	net.Listener
	deadlines chan<- string
}

func (l recordingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return recordingConn{conn, l.deadlines}, err
}

type recordingConn struct {
	net.Conn
	deadlines chan<- string
}

func (c recordingConn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() {
		c.deadlines <- "none"
	} else {
		c.deadlines <- "a time"
	}
	return c.Conn.SetWriteDeadline(t)
}

// An application that passes on to the agent what the agent asks, and drops the headers, does not do so without end.
func TestProbesThatAnApplicationRepeatsEnd(t *testing.T) {
	var mu sync.Mutex
	count, back := 0, ""
	port := application(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		count++
		address := back
		mu.Unlock()
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Error(err)
			return
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		w.WriteHeader(resp.StatusCode)
	})
	const handler = "/app-lifecycle/app/prestopz"
	probers := fmt.Sprintf(`{"%s":{"httpGet":{"path":"/","port":%s}}}`, handler, port)
	r := start(t, environ{probersVar: probers, addressVar: "127.0.0.1"}, nil)
	mu.Lock()
	back = r.url + handler
	mu.Unlock()
	if resp, _ := r.get(handler); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the answer is %s", resp.Status)
	}
	mu.Lock()
	defer mu.Unlock()
	if count != maxProbesOfOne {
		t.Errorf("the application was asked %d times, want %d", count, maxProbesOfOne)
	}
}

// A pod whose application passes a probe on to another pod's agent is no loop.
func TestARequestOfAnotherAgentIsAnswered(t *testing.T) {
	r := start(t, httpGet(application(t, func(w http.ResponseWriter, _ *http.Request) {}), ""), nil)
	if resp, _ := r.get(livez, ownHeader, "another"); resp.StatusCode != http.StatusOK {
		t.Errorf("the answer is %s", resp.Status)
	}
}
