package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/reaper"
)

// expect makes one attempt, whose error must have a text; "" for none.
func expect(t *testing.T, c Check, want string) {
	t.Helper()
	err := c.probe(t.Context(), nil)
	if got := fmt.Sprint(err); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(got, want)) {
		t.Errorf("%s: error %v, want %q", c, err, want)
	}
}

func parse(t *testing.T, text string) Check {
	t.Helper()
	c, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answers serves statuses, redirects and what it was asked.
func answers(asked *http.Request) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		*asked = *r
		switch r.URL.Path {
		case "/ok":
		case "/to-ok":
			http.Redirect(w, r, "/ok", http.StatusFound)
		case "/to-503":
			http.Redirect(w, r, "/503", http.StatusFound)
		case "/elsewhere":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/399":
			w.WriteHeader(399)
		case "/big-header":
			w.Header().Set("X", strings.Repeat("x", MaxHeader+1))
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

func TestHTTPSucceedsWithAStatusBelow400(t *testing.T) {
	var asked http.Request
	plain, secure := httptest.NewServer(answers(&asked)), httptest.NewTLSServer(answers(&asked))
	defer plain.Close()
	defer secure.Close()
	for _, server := range []*httptest.Server{plain, secure} {
		for path, want := range map[string]string{
			"/ok": "", "/to-ok": "", "/elsewhere": "", "/399": "", "/400": "the answer has the status 503", "/to-503": "the answer has the status 503",
			"/loop": "more than 10 redirects", "/big-header": "header",
		} {
			expect(t, parse(t, server.URL+path), want)
		}
	}
	if got := asked.Header.Get("User-Agent"); got != userAgent {
		t.Errorf("user agent %q", got)
	}
	plain.Close()
	expect(t, parse(t, plain.URL+"/ok"), "refused")
}

func TestTCPSucceedsWithAConnection(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, "tcp://"+lis.Addr().String())
	expect(t, c, "")
	_ = lis.Close()
	expect(t, c, "refused")
}

func TestGRPCAsksTheHealthService(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	with, without := grpc.NewServer(), grpc.NewServer()
	states := health.NewServer()
	healthpb.RegisterHealthServer(with, states)
	states.SetServingStatus("down", healthpb.HealthCheckResponse_NOT_SERVING)
	go func() { _ = with.Serve(lis) }()
	defer with.Stop()
	at := "grpc://" + lis.Addr().String()
	expect(t, parse(t, at), "")
	expect(t, parse(t, at+"/down"), `the service "down" is NOT_SERVING`)
	expect(t, parse(t, at+"/none"), "unknown service")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = without.Serve(other) }()
	defer without.Stop()
	expect(t, parse(t, "grpc://"+other.Addr().String()), "does not have the health service")
}

func TestACommandSucceedsWithExitCode0(t *testing.T) {
	t.Setenv("HOLDFAST_UPSTREAM_HEADER", "x-token=secret")
	expect(t, parse(t, "exec:true"), "")
	expect(t, parse(t, "exec:false"), "false: exit status 1")
	expect(t, parse(t, `exec:sh -c "echo it is down >&2; exit 3"`), "sh: exit status 3: it is down")
	expect(t, parse(t, `exec:sh -c 'test -z "$HOLDFAST_UPSTREAM_HEADER"'`), "")
	expect(t, parse(t, "exec:/none/such"), "no such file")
	expect(t, parse(t, `exec:sh -c 'yes | head -c 100000; exit 1'`), "exit status 1: y")
}

// A command that does not end is ended with its children, and so are children that one leaves behind.
func TestACommandAndItsChildrenEndWithTheAttempt(t *testing.T) {
	for _, tc := range []struct{ name, end, want string }{{"it hangs", "wait", "signal: killed"}, {"it exits", "exit 0", ""}} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			c := Exec([]string{"sh", "-c", "sleep 1000 & echo $! >" + file + "; " + tc.end})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() { result <- c.probe(ctx, reaper.New()) }()
			var pid int
			for pid == 0 { // until the child runs
				text, _ := os.ReadFile(file)
				_, _ = fmt.Sscan(string(text), &pid)
			}
			if tc.want != "" {
				cancel()
			}
			if err := <-result; fmt.Sprint(err) != "<nil>" && !strings.Contains(err.Error(), tc.want) || err == nil && tc.want != "" {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) && !zombie(pid) {
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// A command that leaves its process group, where its children's signals do not reach it, ends with the attempt, too.
func TestACommandThatLeavesItsProcessGroupEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left")
	t.Setenv("LEAVE_INTO", fmt.Sprint(syscall.Getpgrp()))
	t.Setenv("LEFT", file)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- Exec([]string{os.Args[0]}).probe(ctx, reaper.New()) }()
	for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-result; err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("error %v", err)
	}
}

// TestMain lets this binary be a command that leaves its process group and hangs.
func TestMain(m *testing.M) {
	if group, err := strconv.Atoi(os.Getenv("LEAVE_INTO")); err == nil {
		if err := syscall.Setpgid(0, group); err != nil {
			os.Exit(1)
		}
		_ = os.WriteFile(os.Getenv("LEFT"), nil, 0o600)
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

// While a command does not end although it was killed, no other one is started, and the attempts fail.
func TestNoOtherCommandIsStartedWhileOneDoesNotEnd(t *testing.T) {
	left := make(chan struct{})
	c := &command{args: []string{"true"}, left: left}
	if err := c.run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "does not end, although SIGKILL was sent to it") {
		t.Errorf("error %v", err)
	}
	close(left)
	if err := c.run(t.Context(), nil); err != nil {
		t.Errorf("once it has ended: %v", err)
	}
}

// zombie reports whether a process has ended and was not waited for: who inherits it is not this process.
func zombie(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(state, "Z")
}

func TestWhatIsProbedIsReadFromText(t *testing.T) {
	for _, tc := range []struct{ text, shown, err string }{
		{"http://127.0.0.1:8080/healthz?full=1", "http://127.0.0.1:8080/healthz?full=1", ""},
		{"https://u:secret@[::1]:8443", "https://u:xxxxx@[::1]:8443", ""},
		{"tcp://127.0.0.1:5432", "tcp://127.0.0.1:5432", ""},
		{"tcp://localhost:5432/", "tcp://localhost:5432", ""},
		{"grpc://127.0.0.1:9000", "grpc://127.0.0.1:9000", ""},
		{"grpc://127.0.0.1:9000/a.B", "grpc://127.0.0.1:9000/a.B", ""},
		{"exec:check --token secret", "exec:check", ""},
		{"", "", `"": want http://HOST:PORT/PATH`},
		{"127.0.0.1:80", "", "want http://HOST:PORT/PATH"},
		{"ftp://127.0.0.1:80", "", "want http://HOST:PORT/PATH"},
		{"http:///x", "", "want http://HOST:PORT/PATH"},
		{"http://:80/", "", "the host is missing"},
		{"http://127.0.0.1:0/", "", "the port is 0: want a number from 1 to 65535"},
		{"https://[::1]:99999", "", "the port is 99999: want a number from 1 to 65535"},
		{"tcp://127.0.0.1", "", "want tcp://HOST:PORT"},
		{"tcp://:80", "", "want tcp://HOST:PORT"},
		{"grpc://127.0.0.1:0", "", "want grpc://HOST:PORT"},
		{"grpc://127.0.0.1:70000", "", "want"},
		{"tcp://127.0.0.1:80/path", "", "want http://HOST:PORT/PATH"},
		{"exec:", "", "the command is missing"},
		{"exec:sh -c 'a", "", "the quote ' is not closed"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			c, err := Parse(tc.text)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if c.String() != tc.shown {
				t.Errorf("shown as %q, want %q", c, tc.shown)
			}
		})
	}
}

func TestACommandLineIsSplitAtSpacesOutsideOfQuotes(t *testing.T) {
	for line, want := range map[string]string{
		"a  b": `["a" "b"]`, `a 'b c' "d 'e'"`: `["a" "b c" "d 'e'"]`, `a ""`: `["a" ""]`, `x'y z'`: `["xy z"]`, " ": "[]",
	} {
		if got, err := split(line); fmt.Sprintf("%q", got) != want || err != nil {
			t.Errorf("%s: %q %v, want %s", line, got, err, want)
		}
	}
}

func TestTheReadinessProbeOfAProxyConfigIsRead(t *testing.T) {
	var asked http.Request
	server := httptest.NewServer(answers(&asked))
	defer server.Close()
	u, _ := url.Parse(server.URL)
	addr := netip.MustParseAddrPort(u.Host)
	port := uint32(addr.Port())
	httpGet := func(get *networking.HTTPHealthCheckConfig) *networking.ReadinessProbe {
		return &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_HttpGet{HttpGet: get}}
	}
	read := func(p *networking.ReadinessProbe, from string) (Config, error) {
		source, _ := netip.ParseAddr(from)
		return FromIstio(p, "127.0.0.1", source)
	}

	cfg, err := read(httpGet(&networking.HTTPHealthCheckConfig{Path: "ok", Port: port, HttpHeaders: []*networking.HTTPHeader{{Name: "x-a", Value: "b"}, {Name: "Host", Value: "example.com"}}}), "127.0.0.6")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(cfg.InitialDelay, cfg.Timeout, cfg.Period, cfg.Successes, cfg.Failures); got != "0s 1s 10s 1 1" {
		t.Errorf("defaults %s", got)
	}
	expect(t, cfg.Check, "")
	if asked.Header.Get("X-A") != "b" || asked.Host != "example.com" || !strings.HasPrefix(asked.RemoteAddr, "127.0.0.6:") {
		t.Errorf("asked %v of %s by %s", asked.Header, asked.Host, asked.RemoteAddr)
	}
	p := httpGet(&networking.HTTPHealthCheckConfig{Path: "/503", Port: port, Host: "localhost", Scheme: "HTTP"})
	p.InitialDelaySeconds, p.TimeoutSeconds, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold = 2, 3, 4, 5, 6
	if cfg, err = read(p, "127.0.0.6"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(cfg.InitialDelay, cfg.Timeout, cfg.Period, cfg.Successes, cfg.Failures); got != "2s 3s 4s 5 6" {
		t.Errorf("settings %s", got)
	}
	expect(t, cfg.Check, "the answer has the status 503")
	if strings.HasPrefix(asked.RemoteAddr, "127.0.0.6:") {
		t.Error("a probe of another host comes from the address for the default one")
	}

	for _, tc := range []struct {
		name  string
		probe *networking.ReadinessProbe
		shown string
		err   string
	}{
		{"tcp", &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_TcpSocket{TcpSocket: &networking.TCPHealthCheckConfig{Port: 5432}}}, "tcp://127.0.0.1:5432", ""},
		{"tcp with a host", &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_TcpSocket{TcpSocket: &networking.TCPHealthCheckConfig{Host: "::1", Port: 5432}}}, "tcp://[::1]:5432", ""},
		{"grpc", &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_Grpc{Grpc: &networking.GrpcHealthCheckConfig{Port: 9000, Service: "s"}}}, "grpc://127.0.0.1:9000/s", ""},
		{"exec", &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_Exec{Exec: &networking.ExecHealthCheckConfig{Command: []string{"a", "b"}}}}, "exec:a", ""},
		{"https", httpGet(&networking.HTTPHealthCheckConfig{Port: 8443, Scheme: "HTTPS", Host: "h"}), "https://h:8443/", ""},
		{"no path that can be parsed", httpGet(&networking.HTTPHealthCheckConfig{Port: 80, Path: "/%zz"}), "http://127.0.0.1:80/%25zz", ""},
		{"no method", &networking.ReadinessProbe{}, "", "it has no method"},
		{"no port", httpGet(&networking.HTTPHealthCheckConfig{}), "", "httpGet.port is 0"},
		{"no such port", &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_Grpc{Grpc: &networking.GrpcHealthCheckConfig{Port: 1 << 20}}}, "", "grpc.port is 1048576"},
		{"no port of tcp", &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_TcpSocket{TcpSocket: &networking.TCPHealthCheckConfig{}}}, "", "tcpSocket.port is 0"},
		{"no scheme", httpGet(&networking.HTTPHealthCheckConfig{Port: 80, Scheme: "ftp"}), "", `httpGet.scheme is "ftp"`},
		{"no command", &networking.ReadinessProbe{HealthCheckMethod: &networking.ReadinessProbe_Exec{Exec: &networking.ExecHealthCheckConfig{}}}, "", "exec.command is missing"},
		{"a negative period", &networking.ReadinessProbe{PeriodSeconds: -1}, "", "periodSeconds is -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, err := read(tc.probe, "")
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if cfg.Check.String() != tc.shown {
				t.Errorf("shown as %q, want %q", cfg.Check, tc.shown)
			}
		})
	}
}
