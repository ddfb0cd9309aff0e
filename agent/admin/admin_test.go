package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is a State that says what a test wants.
type agent struct {
	live      error
	ready     []Condition
	started   bool
	status    Status
	resources []Resource
}

func (a *agent) Live() error        { return a.live }
func (a *agent) Ready() []Condition { return a.ready }
func (a *agent) Started() bool      { return a.started }
func (a *agent) Status() Status     { return a.status }

func (a *agent) Resources(f Filter) iter.Seq[Resource] {
	return func(yield func(Resource) bool) {
		for _, r := range a.resources {
			if f.Admits(r.Type, r.Name) && !yield(r) {
				return
			}
		}
	}
}

func server(t *testing.T, cfg Config) *Server {
	t.Helper()
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics("v1")
	}
	return New(cfg)
}

// ask asks as the agent's own user.
func ask(h http.Handler, method, target string) *httptest.ResponseRecorder {
	return askAs(h, true, method, target)
}

func askAs(h http.Handler, owner bool, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "http://127.0.0.1"+target, nil)
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ownerKey{}, owner)))
	return w
}

const planted = "PLANTED-PRIVATE-KEY"

func secret(t *testing.T) *anypb.Any {
	t.Helper()
	a, err := anypb.New(&tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: planted}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestHealthSaysWhatHolds(t *testing.T) {
	bad := []Condition{
		{Name: "socket", OK: true},
		{Name: "upstream", Reason: "no control plane has answered yet"},
		{Name: "state", Reason: "nothing is known of CDS"},
	}
	for _, tc := range []struct {
		name, path string
		state      agent
		code       int
		want       string
	}{
		{"alive", "/livez", agent{}, 200, "ok\n"},
		{"not alive", "/livez", agent{live: errors.New("the cache is stuck")}, 503, "the cache is stuck\n"},
		{"ready", "/readyz", agent{ready: bad[:1]}, 200, "ok\n"},
		{"not ready", "/readyz", agent{ready: bad}, 503, "upstream: no control plane has answered yet\nstate: nothing is known of CDS\n"},
		{"started", "/startupz", agent{started: true}, 200, "ok\n"},
		{"starting", "/startupz", agent{}, 503, "starting\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := server(t, Config{State: &tc.state})
			for _, h := range []http.Handler{s.health(), s.full(true), s.full(false)} {
				if got := ask(h, "GET", tc.path); got.Code != tc.code || got.Body.String() != tc.want {
					t.Errorf("%d %q, want %d %q", got.Code, got.Body, tc.code, tc.want)
				}
			}
		})
	}
}

func TestReadyzVerboseListsEveryCondition(t *testing.T) {
	s := server(t, Config{State: &agent{ready: []Condition{{Name: "socket", OK: true}, {Name: "upstream", Reason: "away"}}}})
	got := ask(s.health(), "GET", "/readyz?verbose")
	var answer struct {
		Ready      bool
		Conditions []Condition
	}
	if err := json.Unmarshal(got.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	want := []Condition{{Name: "socket", OK: true}, {Name: "upstream", Reason: "away"}}
	if len(answer.Conditions) == 2 {
		if answer.Conditions[1].Since.IsZero() {
			t.Error("it is not said since when the condition does not hold")
		}
		answer.Conditions[1].Since = time.Time{}
	}
	if got.Code != 503 || answer.Ready || !slices.Equal(answer.Conditions, want) {
		t.Errorf("%d %+v", got.Code, answer)
	}
}

func TestEachSurfaceServesItsPathsAndNoOthers(t *testing.T) {
	s := server(t, Config{State: &agent{}, Quit: func() {}, LogLevel: new(slog.LevelVar), Changes: &changes{}, Histories: &changes{}, Events: events.New("")})
	surfaces := []struct {
		name string
		mux  http.Handler
	}{{"health", s.health()}, {"TCP", s.full(false)}, {"Unix", s.full(true)}}
	for _, tc := range []struct {
		method, path      string
		health, tcp, unix int
	}{
		{"GET", "/livez", 200, 200, 200},
		{"HEAD", "/livez", 200, 200, 200},
		{"GET", "/metrics", 200, 200, 200},
		{"GET", "/", 404, 200, 200},
		{"GET", "/status.json", 404, 200, 200},
		{"GET", "/dump", 404, 200, 200},
		{"GET", "/dump?type=EDS", 404, 200, 200},
		{"GET", "/dump?type=Nonsense", 404, 400, 400},
		{"GET", "/dump?names=x", 404, 400, 400},
		{"GET", "/explain", 404, 200, 200},
		{"GET", "/explain?x=y", 404, 400, 400},
		{"POST", "/loglevel?level=debug", 404, 404, 200},
		{"GET", "/loglevel", 404, 404, 405},
		{"GET", "/rehearsal", 404, 200, 200},
		{"GET", "/events", 404, 200, 200},
		{"GET", "/events?since=yesterday", 404, 400, 400},
		{"GET", "/events?kind=x", 404, 400, 400},
		{"GET", "/history", 404, 200, 200},
		{"GET", "/history?type=CDS&name=c&since=1h&node=n", 404, 200, 200},
		{"GET", "/history?type=XDS", 404, 400, 400},
		{"GET", "/history?x=y", 404, 400, 400},
		{"GET", "/content?resource=CDS/c&which=held", 404, 200, 200},
		{"GET", "/content?resource=CDS/c&which=unknown", 404, 404, 404},
		{"GET", "/content?resource=CDS", 404, 400, 400},
		{"GET", "/content?name=c", 404, 400, 400},
		{"POST", "/freeze?reason=why&type=CDS&for=2h&ack=true", 404, 404, 200},
		{"POST", "/freeze?type=XDS", 404, 404, 400},
		{"POST", "/freeze?reason=a%0Ab", 404, 404, 400},
		{"POST", "/freeze?for=soon", 404, 404, 400},
		{"POST", "/freeze?ack=perhaps", 404, 404, 400},
		{"POST", "/freeze?x=y", 404, 404, 400},
		{"POST", "/freeze?reason=again", 404, 404, 409},
		{"GET", "/freeze", 404, 404, 405},
		{"POST", "/rollback?to=10m&resource=CDS/c&partial=true&dry_run=true", 404, 404, 200},
		{"POST", "/rollback?version=1&resource=CDS/c", 404, 404, 200},
		{"POST", "/rollback?version=1", 404, 404, 400},
		{"POST", "/rollback?version=1&resource=CDS/c&to=1h", 404, 404, 400},
		{"POST", "/rollback?to=2100-01-01T00:00:00Z", 404, 404, 400},
		{"POST", "/rollback?to=later", 404, 404, 400},
		{"POST", "/rollback?resource=CDS", 404, 404, 400},
		{"POST", "/rollback?x=y", 404, 404, 400},
		{"GET", "/debug/pprof/", 404, 404, 404},
		{"GET", "/livez/x", 404, 404, 404},
		{"POST", "/livez", 405, 405, 405},
		{"DELETE", "/metrics", 405, 405, 405},
		{"POST", "/dump", 404, 405, 405},
		{"POST", "/drain", 404, 404, 404},
		{"POST", "/hot-restart", 404, 404, 404},
		{"POST", "/quit", 404, 404, 200},
		{"GET", "/quit", 404, 404, 405},
	} {
		for i, want := range []int{tc.health, tc.tcp, tc.unix} {
			if got := ask(surfaces[i].mux, tc.method, tc.path).Code; got != want {
				t.Errorf("%s: %s %s: %d, want %d", surfaces[i].name, tc.method, tc.path, got, want)
			}
		}
	}
}

func TestQuitCallsBackAfterItAnswered(t *testing.T) {
	var asked atomic.Int32
	s := server(t, Config{State: &agent{}, Quit: func() { asked.Add(1) }})
	if got := ask(s.full(true), "POST", "/quit"); got.Code != 200 || asked.Load() != 1 {
		t.Errorf("%d, asked %d times", got.Code, asked.Load())
	}
}

func TestTheLevelOfTheLogIsChanged(t *testing.T) {
	var out strings.Builder
	level := new(slog.LevelVar)
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
	h := server(t, Config{State: &agent{}, Log: log, LogLevel: level}).full(true)
	for _, tc := range []struct {
		to     string
		code   int
		answer string
		is     slog.Level
	}{
		{"error", 200, "the log level is error, and was info\n", slog.LevelError},
		{"debug", 200, "the log level is debug, and was error\n", slog.LevelDebug},
		{"", 400, "level \"\": want one of debug, info, warn, error\n", slog.LevelDebug},
		{"warn+1", 400, "level \"warn+1\": want one of debug, info, warn, error\n", slog.LevelDebug},
	} {
		if got := ask(h, "POST", "/loglevel?level="+url.QueryEscape(tc.to)); got.Code != tc.code || got.Body.String() != tc.answer || level.Level() != tc.is {
			t.Errorf("to %q: %d %q, and the level is %s", tc.to, got.Code, got.Body, level.Level())
		}
	}
	if got := strings.Count(out.String(), "log level changed"); got != 2 {
		t.Errorf("%d changes are in the log:\n%s", got, out.String())
	}
	if got := askAs(h, false, "POST", "/loglevel?level=debug"); got.Code == 200 {
		t.Error("a reader changes the level")
	}
}

func TestADumpIsRedactedAndFiltered(t *testing.T) {
	body := secret(t)
	state := &agent{resources: []Resource{
		{Group: "n", Type: xds.ClusterType, Name: "c", Version: "1", Standing: xds.Nacked, Reason: "no such thing", GoodVersion: "0"},
		{Group: "n", Type: xds.SecretType, Name: "s", Version: "2", UpstreamVersion: "u2", Standing: xds.Acked, Body: body, Good: body,
			Deadline: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
		{Group: "n", Type: "type.googleapis.com/acme.New", Name: "x", Version: "3", Body: &anypb.Any{TypeUrl: "type.googleapis.com/acme.New", Value: []byte(planted)}},
	}}
	mux := server(t, Config{State: state}).full(false)
	names := func(target string) []string {
		got := ask(mux, "GET", target)
		var answer struct {
			Resources []struct {
				Name string
				Size int
			}
		}
		if err := json.Unmarshal(got.Body.Bytes(), &answer); err != nil {
			t.Fatalf("%s: %v\n%s", target, err, got.Body)
		}
		if strings.Contains(got.Body.String(), planted) {
			t.Errorf("%s shows the key", target)
		}
		var names []string
		for _, r := range answer.Resources {
			names = append(names, r.Name)
		}
		return names
	}
	for target, want := range map[string][]string{
		"/dump":                      {"c", "s", "x"},
		"/dump?type=sds":             {"s"},
		"/dump?type=acme.New":        {"x"},
		"/dump?type=RDS":             nil,
		"/dump?name=c":               {"c"},
		"/dump?type=CDS&name=s":      nil,
		"/dump?type=" + body.TypeUrl: {"s"},
	} {
		if got := names(target); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
	const one = `{
  "resources": [
    {
      "group": "n",
      "type": "CDS",
      "type_url": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
      "name": "c",
      "version": "1",
      "standing": "rejected",
      "reason": "no such thing",
      "good_version": "0",
      "size": 0
    }
  ]
}
`
	if got := ask(mux, "GET", "/dump?name=c").Body.String(); got != one {
		t.Errorf("got %s", got)
	}
	if !proto.Equal(body, secret(t)) {
		t.Error("the body was changed")
	}
}

func TestBadAddressesAreRefused(t *testing.T) {
	for _, tc := range []struct{ admin, health, want string }{
		{"unix:", "", `--admin: "unix:" has no path after "unix:"`},
		{"unix:/" + strings.Repeat("x", 107), "", "the path has 108 bytes, and a Unix socket's at most 107"},
		{"/run/admin.sock", "", `--admin: "/run/admin.sock": want unix:PATH or host:port`},
		{"localhost:http", "", `port "http" is not a number from 0 to 65535`},
		{"", "localhost:70000", `--health: "localhost:70000": port "70000" is not a number from 0 to 65535`},
		{"", "unix:/x", `--health: "unix:/x": want host:port`},
	} {
		err := server(t, Config{State: &agent{}, Addr: tc.admin, Health: tc.health}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q, %q: error %v, want %s", tc.admin, tc.health, err, tc.want)
		}
	}
}

// running starts a server and returns the addresses of its listeners, by surface,
// and what ends it.
func running(t *testing.T, cfg Config, surfaces int) (addrs map[string]net.Addr, stop func() error) {
	t.Helper()
	s := server(t, cfg)
	type listener struct {
		what string
		addr net.Addr
	}
	listening := make(chan listener, surfaces)
	s.listening = func(what string, addr net.Addr) { listening <- listener{what, addr} }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	addrs = make(map[string]net.Addr)
	for range surfaces {
		select {
		case l := <-listening:
			addrs[l.what] = l.addr
		case err := <-ended:
			t.Fatalf("ended: %v", err)
		}
	}
	return addrs, func() error { cancel(); return <-ended }
}

func TestASocketIsServedAndGoneAfterwards(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "admin.sock")
	state := &agent{
		ready:     []Condition{{Name: "socket", OK: true}},
		status:    Status{Version: "v1", Started: time.Now().Add(-time.Hour)},
		resources: []Resource{{Type: xds.SecretType, Name: "s", Body: secret(t)}},
	}
	addrs, stop := running(t, Config{State: state, Addr: "unix:" + path, Health: "127.0.0.1:0"}, 2)
	socket, err := os.Lstat(path)
	if err != nil || socket.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", socket, err)
	}
	if dir, err := os.Stat(filepath.Dir(path)); err != nil || dir.Mode().Perm()&0o007 != 0 {
		t.Errorf("directory %v, %v", dir, err)
	}
	client := Client{Addr: "unix:" + path}
	if got, err := client.Status(t.Context()); err != nil || got.Version != "v1" || got.Now.IsZero() || len(got.Conditions) != 1 {
		t.Errorf("status %+v, %v", got, err)
	}
	var dump strings.Builder
	if err := client.Dump(t.Context(), &dump, "SDS", "s"); err != nil || !strings.Contains(dump.String(), "[redacted]") {
		t.Errorf("dump %s, %v", dump.String(), err)
	}
	if err := client.Dump(t.Context(), io.Discard, "XYZ", ""); err == nil || !strings.Contains(err.Error(), `unknown type "XYZ": want CDS, EDS`) {
		t.Errorf("dump of an unknown type: %v", err)
	}
	resp, err := http.Get("http://" + addrs["health"].String() + "/readyz")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("health: %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()

	second := server(t, Config{State: state, Addr: "unix:" + path})
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another holdfast serves this path") {
		t.Errorf("a second one: %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	_, err = client.Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no agent answers on unix:"+path+": is `holdfast run` running") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	_, stop := running(t, Config{State: &agent{}, Addr: "unix:" + path}, 1)
	if _, err := (Client{Addr: "unix:" + path}).Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestATakenPortEndsRunAndFreesTheSocket(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	path := filepath.Join(t.TempDir(), "admin.sock")
	s := server(t, Config{State: &agent{}, Addr: "unix:" + path, Health: taken.Addr().String()})
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--health: ") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestWithoutListenersRunWaits(t *testing.T) {
	_, stop := running(t, Config{State: &agent{}}, 0)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestWhatAnswersButIsNoHoldfastIsNamed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer other.Close()
	_, err := (Client{Addr: other.Listener.Addr().String()}).Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is not the admin interface of a holdfast") {
		t.Errorf("error %v", err)
	}
}

// A page of another site, whose name was made to lead here, reads nothing; the kubelet
// and Prometheus may use names (--health has nothing to hide).
func TestTheAdminAddressDoesNotAnswerPagesOfOthers(t *testing.T) {
	s := server(t, Config{State: &agent{started: true}, Addr: "node1.example:15000"})
	for _, tc := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:15000", "", 200},
		{"node1.example:15000", "", 200},
		{"evil.example", "", 403},
		{"127.0.0.1:15000", "http://evil.example", 403},
	} {
		for i, h := range []http.Handler{s.full(false), s.health()} {
			want := []int{tc.want, 200}[i]
			r := httptest.NewRequest("GET", "/startupz", nil)
			r.Host = tc.host
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%+v: %d, want %d", tc, w.Code, want)
			}
		}
	}
}

// A condition counts from when it ceased to hold, and not from the first question.
func TestAConditionCountsFromWhenItCeasedToHold(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		state := &late{agent: agent{ready: []Condition{{Name: "socket", OK: true}}}, at: time.Now().Add(5 * time.Second)}
		s := server(t, Config{State: state})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		if c := s.conditions()[0]; c.Since.Sub(state.at) < 0 || c.Since.Sub(state.at) > lookInterval {
			t.Errorf("since %v, and it ceased to hold at %v", c.Since, state.at)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// late is a state whose first condition ceases to hold at a time.
type late struct {
	agent
	at time.Time
}

func (l *late) Ready() []Condition {
	if time.Now().Before(l.at) {
		return l.ready
	}
	return []Condition{{Name: "socket", Reason: "it was deleted"}}
}
