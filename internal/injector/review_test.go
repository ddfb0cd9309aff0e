package injector

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

const plainPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"web-"},"spec":{"containers":[{"name":"web","image":"web:1"}]}}`

// reviewOf is the body of a request for a pod.
func reviewOf(namespace, pod string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"version":"v1","kind":"Pod"},"resource":{"version":"v1","resource":"pods"},"namespace":%q,"operation":"CREATE","object":%s}}`, namespace, pod)
}

func testReviewer(t *testing.T, deny bool) (*reviewer, *Injector) {
	t.Helper()
	i := &Injector{metrics: newMetrics("test")}
	i.settings.Store(must[*Settings](t)(ParseSettings([]byte("upstream: xds.example:443\n"))))
	return &reviewer{settings: &i.settings, namespace: "holdfast", deny: deny, log: slog.New(slog.NewTextHandler(io.Discard, nil))}, i
}

func answered(t *testing.T, r *reviewer, body string) (*admissionv1.AdmissionResponse, string) {
	t.Helper()
	text, result, err := r.answer([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(text, &review); err != nil {
		t.Fatal(err)
	}
	if review.Request != nil || review.Response == nil || review.Response.UID != "u" || review.Kind != "AdmissionReview" || review.APIVersion != "admission.k8s.io/v1" {
		t.Fatalf("no response to the request: %s", text)
	}
	return review.Response, result
}

func patched(t *testing.T, pod string, patch []byte) (made corev1.Pod, text []byte) {
	t.Helper()
	text, err := must[jsonpatch.Patch](t)(jsonpatch.DecodePatch(patch)).Apply([]byte(pod))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &made); err != nil {
		t.Fatal(err)
	}
	return made, text
}

func TestAPodIsInjected(t *testing.T) {
	r, _ := testReviewer(t, false)
	response, result := answered(t, r, reviewOf("shop", plainPod))
	if !response.Allowed || result != resultInjected || len(response.Warnings) > 0 || *response.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Fatalf("%s: %+v", result, response)
	}
	pod, text := patched(t, plainPod, response.Patch)
	if got := len(pod.Spec.InitContainers); got != 3 {
		t.Fatalf("%d init containers", got)
	}
	// A second webhook, or a second review, adds nothing.
	response, result = answered(t, r, reviewOf("shop", string(text)))
	if !response.Allowed || result != resultAlready || response.Patch != nil {
		t.Errorf("%s: %+v", result, response)
	}
}

func TestWhatIsReviewed(t *testing.T) {
	const rejected = `{"metadata":{"name":"web"},"spec":{"hostNetwork":true,"containers":[{"name":"web"}]}}`
	for name, row := range map[string]struct {
		body          string
		allow, denied string // results
	}{
		"a label says no":               {reviewOf("shop", strings.Replace(plainPod, `"generateName"`, `"labels":{"holdfast.dev/inject":"false"},"generateName"`, 1)), resultLeft, resultLeft},
		"an annotation says no":         {reviewOf("shop", strings.Replace(plainPod, `"generateName"`, `"annotations":{"holdfast.dev/inject":"false"},"generateName"`, 1)), resultLeft, resultLeft},
		"another namespace":             {reviewOf("kube-system", plainPod), resultSkipped, resultSkipped},
		"its own namespace":             {reviewOf("holdfast", plainPod), resultSkipped, resultSkipped},
		"an update":                     {strings.Replace(reviewOf("shop", plainPod), "CREATE", "UPDATE", 1), resultSkipped, resultSkipped},
		"another resource":              {strings.Replace(reviewOf("shop", plainPod), `"pods"`, `"services"`, 1), resultSkipped, resultSkipped},
		"the node's network":            {reviewOf("shop", rejected), resultRejected, resultDenied},
		"an unknown annotation":         {reviewOf("shop", strings.Replace(plainPod, `"generateName"`, `"annotations":{"holdfast.dev/shap":"a"},"generateName"`, 1)), resultRejected, resultDenied},
		"a status of somebody else":     {reviewOf("shop", strings.Replace(plainPod, `"generateName"`, `"annotations":{"holdfast.dev/status":"words"},"generateName"`, 1)), resultRejected, resultDenied},
		"no object":                     {reviewOf("shop", "null"), resultRejected, resultDenied},
		"a pod with an unknown setting": {reviewOf("shop", strings.Replace(plainPod, `"generateName"`, `"annotations":{"holdfast.dev/shape":"a"},"generateName"`, 1)), resultRejected, resultDenied},
	} {
		for _, deny := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, deny %v", name, deny), func(t *testing.T) {
				r, _ := testReviewer(t, deny)
				response, result := answered(t, r, row.body)
				want := row.allow
				if deny {
					want = row.denied
				}
				if result != want || response.Allowed != (want != resultDenied) || response.Patch != nil {
					t.Fatalf("%s, want %s: %+v", result, want, response)
				}
				if (len(response.Warnings) > 0) != (want == resultRejected) || (response.Result != nil) != (want == resultDenied) {
					t.Errorf("%+v", response)
				}
			})
		}
	}
}

func TestWhatIsNoReview(t *testing.T) {
	r, i := testReviewer(t, false)
	h := handleReviews(r, i.metrics)
	ask := func(method, kind, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, "/inject", strings.NewReader(body))
		req.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	const isJSON = "application/json"
	for _, row := range []struct {
		name, method, kind, body string
		code                     int
	}{
		{"a review", "POST", isJSON, reviewOf("shop", plainPod), 200},
		{"GET", "GET", isJSON, "", 405},
		{"a form", "POST", "text/plain", reviewOf("shop", plainPod), 415},
		{"words", "POST", isJSON, "words", 400},
		{"nothing", "POST", isJSON, "{}", 400},
		{"the version before", "POST", isJSON, strings.Replace(reviewOf("shop", plainPod), "admission.k8s.io/v1", "admission.k8s.io/v1beta1", 1), 400},
		{"too much", "POST", isJSON, strings.Repeat(" ", maxReview+1), 413},
		{"rubbish", "POST", isJSON, `{"x":[` + strings.Repeat("0,", 1<<20) + `0]}`, 400},
	} {
		if got := ask(row.method, row.kind, row.body); got.Code != row.code {
			t.Errorf("%s: %d %s, want %d", row.name, got.Code, got.Body, row.code)
		}
	}
	for result, want := range map[string]float64{resultInvalid: 7, resultInjected: 1} {
		if got := testutil.ToFloat64(i.metrics.reviews.WithLabelValues(result)); got != want {
			t.Errorf("%s: %v", result, got)
		}
	}
}

// Clients that send the head of a request and never its body hold up nobody else.
func TestSlowClientsHoldUpNobody(t *testing.T) {
	r, i := testReviewer(t, false)
	h := handleReviews(r, i.metrics)
	ask := func(body io.Reader) *httptest.ResponseRecorder {
		req := httptest.NewRequest("POST", "/inject", body)
		req.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	synctest.Test(t, func(t *testing.T) {
		var writers []*io.PipeWriter
		for range 3 * maxConcurrent {
			body, w := io.Pipe()
			writers = append(writers, w)
			go ask(body)
		}
		synctest.Wait() // all of them wait for their bodies
		if got := ask(strings.NewReader(reviewOf("shop", plainPod))); got.Code != 200 {
			t.Errorf("%d %s", got.Code, got.Body)
		}
		for _, w := range writers {
			_ = w.Close()
		}
	})
}

func TestBodiesAreBoundedTogether(t *testing.T) {
	b := newBudget(100, 80)
	first, release, err := b.read("a", strings.NewReader(strings.Repeat("a", 60)))
	if err != nil || len(first) != 60 {
		t.Fatalf("%q %v", first, err)
	}
	_, busy, err := b.read("b", strings.NewReader(strings.Repeat("b", 60)))
	if !errors.Is(err, errBusy) {
		t.Errorf("beyond the budget: %v", err)
	}
	busy()
	_, busy, err = b.read("a", strings.NewReader(strings.Repeat("a", 30)))
	if !errors.Is(err, errBusy) {
		t.Errorf("beyond the part of an address: %v", err)
	}
	busy()
	_, other, err := b.read("b", strings.NewReader(strings.Repeat("b", 40)))
	if err != nil {
		t.Errorf("what an address left to others: %v", err)
	}
	other()
	release()
	broken, after, err := b.read("a", io.MultiReader(strings.NewReader("c"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%q %v", broken, err)
	}
	after()
	if b.sum != 0 || len(b.held) != 0 {
		t.Errorf("%d bytes of %v are held when all is released", b.sum, b.held)
	}
}

func TestTheFileOfSettingsIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		_, i := testReviewer(t, false)
		var log bytes.Buffer
		i.cfg = Config{Settings: file, Log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		write("upstream: a:1\n")
		go i.reread(ctx, []byte("upstream: a:1\n"))
		time.Sleep(rereadInterval / 4)
		steps := []struct {
			text, upstream string
			valid          float64
		}{{"upstream: b:1\n", "b:1", 1}, {"upstrem: c:1\n", "b:1", 0}, {"upstream: b:1\n", "b:1", 1}, {"upstream: c:1\n", "c:1", 1}}
		for _, step := range steps {
			write(step.text)
			time.Sleep(2*rereadInterval + rereadInterval/2) // never at the moment at which the file is read
			if got := i.settings.Load().Of("").Upstreams[0]; got != step.upstream || testutil.ToFloat64(i.metrics.settingsOK) != step.valid {
				t.Errorf("%s: upstream %s", step.text, got)
			}
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2*rereadInterval + rereadInterval/2)
		if got := i.settings.Load().Of("").Upstreams[0]; got != "c:1" || testutil.ToFloat64(i.metrics.settingsOK) != 0 {
			t.Errorf("without a file: %s", got)
		}
		cancel()
		synctest.Wait()
		if got := strings.Count(log.String(), "not valid"); got != 2 {
			t.Errorf("%d lines on invalid settings:\n%s", got, log.String())
		}
	})
}

// whenReady is a log that closes a channel when the injector says that it is ready.
type whenReady struct {
	slog.Handler
	ready chan struct{}
}

func (w whenReady) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "ready: ") {
		close(w.ready)
	}
	return nil
}

// The whole injector on loopback, with a cluster in memory: reviews over HTTP/1.1 and HTTP/2, probes, metrics, the end.
func TestAnInjectorServes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte("upstream: xds.example:443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	free := func() string {
		lis := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
		defer func() { _ = lis.Close() }()
		return lis.Addr().String()
	}
	ready := make(chan struct{})
	i := must[*Injector](t)(New(Config{
		Listen: free(), Admin: free(), Settings: file, Namespace: "holdfast", Service: "holdfast-injector", Secret: "ca", WebhookConfiguration: "c",
		CALifetime: 300 * time.Hour, CertLifetime: 24 * time.Hour, API: &rest.Config{Host: "https://127.0.0.1:1"}, Version: "test",
		Log: slog.New(whenReady{slog.NewTextHandler(io.Discard, nil), ready}),
	}))
	i.sync.cluster = newMemory()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	t.Cleanup(cancel)
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + i.cfg.Admin + path)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	memory := i.sync.cluster.(*memory)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(memory.bundle())
	for _, http2 := range []bool{false, true} {
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: http2, TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "holdfast-injector.holdfast.svc"}}}
		resp, err := client.Post("https://"+i.cfg.Listen+"/inject?timeout=10s", "application/json", strings.NewReader(reviewOf("shop", plainPod)))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(body), `"patchType":"JSONPatch"`) || (resp.ProtoMajor == 2) != http2 {
			t.Errorf("%s %d %s", resp.Proto, resp.StatusCode, body)
		}
		client.CloseIdleConnections()
	}
	code, metrics := get("/metrics")
	if code != 200 || !strings.Contains(metrics, `holdfast_injector_reviews_total{result="injected"} 2`) || strings.Contains(metrics, "certificate_expiry_timestamp_seconds 0") {
		t.Errorf("%d %s", code, metrics)
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if code, why := get(path); code != 200 {
			t.Error(path, code, why)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWrongFlagsAreErrors(t *testing.T) {
	good := Config{Listen: ":0", Admin: ":0", Settings: "f", Namespace: "holdfast", Service: "holdfast-injector", Secret: "ca", WebhookConfiguration: "c", CALifetime: 300 * time.Hour, CertLifetime: time.Hour}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(c *Config){
		"--namespace":             func(c *Config) { c.Namespace = "A" },
		"--service":               func(c *Config) { c.Service = "a.b" },
		"--secret":                func(c *Config) { c.Secret = "" },
		"--webhook-configuration": func(c *Config) { c.WebhookConfiguration = "" },
		"--listen":                func(c *Config) { c.Listen = "15017" },
		"--admin":                 func(c *Config) { c.Admin = "" },
		"--settings":              func(c *Config) { c.Settings = "" },
		"--cert-lifetime":         func(c *Config) { c.CertLifetime = time.Second },
		"--ca-lifetime 3h":        func(c *Config) { c.CALifetime = 3 * time.Hour },
		"--ca-lifetime 87":        func(c *Config) { c.CALifetime *= 2920 },
		"--drain-time":            func(c *Config) { c.DrainTime = -1 },
	} {
		c := good
		change(&c)
		if err := c.check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
