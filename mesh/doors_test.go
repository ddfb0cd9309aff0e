package mesh

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// What is not for everybody is refused where everybody can ask, and served where somebody proves who he is, or where it was asked for.
func TestConfig_AddressesThatOthersReachNeedProof(t *testing.T) {
	const local, outside, opened = "127.0.0.1:1", ":1", "--allow-unauthenticated"
	for _, tc := range []struct {
		name string
		cfg  Config
		err  string // begins so; "" for none
	}{
		{"nothing", Config{}, ""},
		{"all on loopback", Config{Listen: local, TLSListen: "[::1]:2", Admin: "localhost:3"}, ""},
		{"health for everybody", Config{Admin: local, Health: ":2"}, ""},
		{"a Unix socket", Config{Admin: "unix:/run/holdfast-mesh/admin.sock"}, ""},
		{"a Unix socket without a path", Config{Admin: "unix:"}, `--admin "unix:"`},
		{"a Unix socket with a long path", Config{Admin: "unix:/" + strings.Repeat("x", 107)}, `--admin "unix:/x`},
		{"the admin for everybody", Config{Admin: outside}, "--admin :1: whoever reaches it"},
		{"on all addresses by number", Config{Admin: "0.0.0.0:1"}, "--admin 0.0.0.0:1: whoever"},
		{"on all IPv6 addresses", Config{Admin: "[::]:1"}, "--admin [::]:1: whoever"},
		{"on the address of a name", Config{Admin: "node.example:1"}, "--admin node.example:1: whoever"},
		{"asked for", Config{Admin: outside, TLSListen: outside, Listen: outside, AllowUnauthenticated: true}, ""},
		{"with certificates", Config{Admin: outside, AdminClientCA: "ca.pem", TLSCert: "a", TLSKey: "b"}, ""},
		{"with certificates, and none of the server", Config{Admin: outside, AdminClientCA: "ca.pem"}, "--admin-client-ca makes --admin speak TLS"},
		{"certificates at a Unix socket", Config{Admin: "unix:/x", AdminClientCA: "ca.pem", TLSCert: "a"}, "--admin-client-ca is for"},
		{"names without certificates", Config{Admin: local, AdminAllow: []string{"a"}}, "--admin-allow names"},
		{"an empty name", Config{Admin: local, AdminClientCA: "ca.pem", TLSCert: "a", AdminAllow: []string{""}}, "--admin-allow: it is empty"},
		{"TLS without proof", Config{TLSListen: outside}, "--tls-listen :1: whoever"},
		{"TLS with certificates", Config{TLSListen: outside, TLSClientCA: "ca.pem"}, ""},
		{"TLS with the mesh's authority", Config{TLSListen: outside, CA: "dev"}, ""},
		{"plaintext with proof elsewhere", Config{Listen: outside, TLSListen: outside, TLSClientCA: "ca.pem"}, "--listen :1 is plaintext"},
		{"twice the same address", Config{Admin: local, Health: local}, "--admin and --health are both"},
		{"a negative size", Config{MaxDiff: -1}, "--max-diff-bytes -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.cfg.checkDoors()
			switch {
			case tc.err == "" && err != nil, tc.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.err)):
				t.Errorf("%v, want %q", err, tc.err)
			case err != nil && strings.Contains(err.Error(), "whoever") && !strings.Contains(err.Error(), opened):
				t.Errorf("%v does not name %s", err, opened)
			}
		})
	}
}

// newDoors returns a control plane of a directory without documents.
func newDoors(t *testing.T, change func(*Config)) *Environment {
	t.Helper()
	cfg := Config{Dir: t.TempDir(), Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}
	change(&cfg)
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// asked returns the answer to a request.
func asked(handler http.Handler, method, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	handler.ServeHTTP(w, r)
	return w
}

func TestAdmin_AConfigurationThatIsTooLargeIsNotRead(t *testing.T) {
	e := newDoors(t, func(cfg *Config) { cfg.MaxDiff = 100 })
	body := func(size int) string {
		return fmt.Sprintf(`{"files": {"a.yaml": "#%s"}}`, strings.Repeat("x", size-len(`{"files": {"a.yaml": "#"}}`)))
	}
	if a := asked(e.adminHandler(), "POST", "/diff", body(101)); a.Code != http.StatusRequestEntityTooLarge || !strings.Contains(a.Body.String(), "more than 100 bytes") {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	if a := asked(e.adminHandler(), "POST", "/diff", body(100)); a.Code != http.StatusNotFound { // no proxy is connected
		t.Errorf("%d %s", a.Code, a.Body)
	}
	if n := testutil.ToFloat64(e.doors.refused.WithLabelValues(refusedSize)); n != 1 {
		t.Errorf("%v refused", n)
	}
}

// A question waits while as many are answered as may be, and is refused after a time. It waits for no longer than its client, and probes
// and scrapers wait for nobody.
func TestAdmin_AsManyQuestionsAreAnsweredAtOnceAsThereArePlaces(t *testing.T) {
	e := newDoors(t, func(*Config) {})
	synctest.Test(t, func(t *testing.T) {
		places, end := make(chan struct{}, 2), make(chan struct{})
		handler := e.one(places, func(http.ResponseWriter, *http.Request) { <-end })
		codes := make(chan int, 4)
		ask := func(ctx context.Context) {
			w := httptest.NewRecorder()
			handler(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			codes <- w.Code
		}
		for range 3 {
			go ask(t.Context())
		}
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		go ask(gone)
		synctest.Wait()
		leave()
		if code := <-codes; code != http.StatusServiceUnavailable {
			t.Errorf("%d to one that has left", code)
		}
		began := time.Now()
		if code := <-codes; code != http.StatusServiceUnavailable || time.Since(began) != placeTimeout {
			t.Errorf("%d after %s", code, time.Since(began))
		}
		go ask(t.Context())
		synctest.Wait()
		close(end)
		for range 3 {
			if code := <-codes; code != http.StatusOK {
				t.Errorf("%d", code)
			}
		}
		if len(places) != 0 {
			t.Errorf("%d places are still taken", len(places))
		}
	})
	if n := testutil.ToFloat64(e.doors.refused.WithLabelValues(refusedBusy)); n != 2 {
		t.Errorf("%v refused", n)
	}
	for range cap(e.doors.questions) {
		e.doors.questions <- struct{}{}
	}
	e.doors.diffs <- struct{}{}
	for _, path := range []string{"/metrics", "/ready"} {
		if a := asked(e.adminHandler(), "GET", path, ""); a.Code != http.StatusOK && a.Code != http.StatusServiceUnavailable || strings.Contains(a.Body.String(), "other requests") {
			t.Errorf("%s: %d %s", path, a.Code, a.Body)
		}
	}
}

// A certificate of the right authority may be of the wrong person, and may expire while its connection is open.
func TestAdmin_ACertificateIsOfSomebodyAtATime(t *testing.T) {
	expires := time.Unix(1_000_000, 0)
	parse := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	operator := &x509.Certificate{NotAfter: expires, URIs: []*url.URL{parse("spiffe://cluster.local/ns/ops/sa/operator")}}
	machine := &x509.Certificate{NotAfter: expires, DNSNames: []string{"ops.example"}}
	nobody := &x509.Certificate{NotAfter: expires}
	for _, tc := range []struct {
		name  string
		allow []string
		cert  *x509.Certificate
		after time.Duration // its end
		want  int
	}{
		{"anybody", nil, nobody, 0, 200},
		{"expired", nil, operator, time.Second, 403},
		{"by its SPIFFE ID", []string{"a", "spiffe://cluster.local/ns/ops/sa/operator"}, operator, 0, 200},
		{"by its DNS name", []string{"ops.example"}, machine, 0, 200},
		{"another DNS name", []string{"ops.example.org", "ps.example"}, machine, 0, 403},
		{"another case", []string{"SPIFFE://cluster.local/ns/ops/sa/operator"}, operator, 0, 403},
		{"nobody", []string{"ops.example"}, nobody, 0, 403},
		{"by name, and expired", []string{"ops.example"}, machine, time.Second, 403},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newDoors(t, func(*Config) {})
			e.cfg.AdminAllow = tc.allow
			e.doors.now = func() time.Time { return expires.Add(tc.after) }
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/documents", nil)
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{tc.cert}}
			e.identified(e.adminHandler()).ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if n := testutil.ToFloat64(e.doors.refused.WithLabelValues(refusedIdentity)); (n == 1) != (tc.want == 403) {
				t.Errorf("%v refused", n)
			}
		})
	}
}

// An authority of which each workload has a certificate says of nobody that he is an operator. The mesh's own is known, and may become
// another one, while the server runs.
func TestAdmin_TheAuthorityOfWorkloadsNeedsNames(t *testing.T) {
	w := pemOf(t, "workloads")
	cfg := Config{Dir: t.TempDir(), TLSListen: ":0", TLSCert: w.file, TLSKey: w.key, TLSClientCA: w.file, Admin: ":0", AdminClientCA: w.file}
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "--admin-allow") {
		t.Errorf("%v", err)
	}
	cfg.AdminAllow = []string{"spiffe://cluster.local/ns/ops/sa/operator"}
	if _, err := New(cfg); err != nil {
		t.Error(err)
	}
	operators := pemOf(t, "operators")
	cfg.AdminAllow, cfg.AdminClientCA = nil, operators.file
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.doors.now = func() time.Time { return operators.cert.NotBefore }
	conn := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{NotAfter: operators.cert.NotAfter}}, VerifiedChains: [][]*x509.Certificate{{operators.cert}}}
	if why := e.stranger(conn); why != "" {
		t.Error(why)
	}
	text, err := os.ReadFile(operators.file)
	if err == nil {
		err = os.WriteFile(w.file, append([]byte("# rotated\n"), text...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if why := e.stranger(conn); !strings.Contains(why, "--admin-allow") {
		t.Errorf("%q", why)
	}
	if err := os.Remove(w.file); err != nil {
		t.Fatal(err)
	}
	if why := e.stranger(conn); !strings.Contains(why, "cannot be told") { // who cannot be told from a workload may not
		t.Errorf("%q", why)
	}
	cfg.TLSClientCA, cfg.AllowUnauthenticated = "", true
	cfg.TLSCert, cfg.TLSKey, cfg.AdminClientCA = operators.file, operators.key, filepath.Join(t.TempDir(), "missing.pem")
	if _, err := New(cfg); err == nil || !strings.HasPrefix(err.Error(), "--admin-client-ca: ") {
		t.Errorf("%v", err)
	}
}

// issued is a certificate that has signed itself, in files.
type issued struct {
	cert      *x509.Certificate
	file, key string
}

func pemOf(t *testing.T, name string) issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	i := issued{file: filepath.Join(t.TempDir(), name+".pem"), key: filepath.Join(t.TempDir(), name+".key")}
	if i.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{i.file: {Type: "CERTIFICATE", Bytes: der}, i.key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return i
}
