package istio

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

const (
	stats   = "/stats/prometheus"
	envoyIs = "# TYPE envoy_rq counter\nenvoy_rq{x=\"1\",} 1\n"
	appText = "# TYPE app_total counter\napp_total 7\n# TYPE go_goroutines gauge\ngo_goroutines 3\n"
	appOpen = "# TYPE app counter\napp_total 7 # {trace_id=\"t\"} 1\n# TYPE go_goroutines gauge\ngo_goroutines 3\n# EOF\n"

	prometheusAccepts = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5," +
		"text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

// own returns metrics like those of the agent.
func own() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "holdfast_groups", Help: "Groups."}, func() float64 { return 1 }))
	return r
}

// envoyWith returns an Envoy that answers with a text.
func envoyWith(text string) func(context.Context, string) (*http.Response, error) {
	return func(context.Context, string) (*http.Response, error) {
		return answer(200, "text/plain", strings.NewReader(text)), nil
	}
}

func answer(code int, contentType string, body io.Reader) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(body)}
}

func annotated(port string) environ {
	return environ{annotationsVar: `{"scrape":"true","port":"` + port + `"}`}
}

// checkOpenMetrics fails unless a text is one exposition of OpenMetrics, as far as several parts can spoil
// one: each line is metadata or a sample, the metadata precedes its samples and is there once, and # EOF is
// the end.
func checkOpenMetrics(t *testing.T, text string) {
	t.Helper()
	body, ended := strings.CutSuffix(text, "# EOF\n")
	if !ended {
		t.Fatalf("it does not end with # EOF:\n%s", text)
	}
	typed, sampled := make(map[string]bool), make(map[string]bool)
	for line := range strings.Lines(body) {
		words := strings.Fields(line)
		if words[0] == "#" {
			if len(words) < 3 || words[1] != "HELP" && words[1] != "TYPE" && words[1] != "UNIT" {
				t.Errorf("a line is neither metadata nor a sample: %q", line)
			} else if words[1] == "TYPE" && (typed[words[2]] || sampled[words[2]]) {
				t.Errorf("the type of %s comes twice, or late", words[2])
			} else if words[1] == "TYPE" {
				typed[words[2]] = true
				if words[3] == "counter" && strings.HasSuffix(words[2], "_total") || words[3] == "untyped" {
					t.Errorf("a line is of the text format: %q", line)
				}
			}
			continue
		}
		s, ok := parseSample(nil, []byte(strings.TrimSuffix(line, "\n")), true)
		if !ok {
			t.Errorf("a line is not a sample: %q", line)
		}
		n, _ := scanName(s.series)
		sampled[string(s.series[:n])] = true
	}
}

// Whatever the client accepts and the application answers with, the answer is one exposition in one format.
func TestTheAnswerIsOneExposition(t *testing.T) {
	for _, tc := range []struct {
		name, accept string
		open         bool // the application knows OpenMetrics, and sends only that
		contentType  string
		asked        string // the application is asked for this
	}{
		{"Prometheus, and an application with OpenMetrics", prometheusAccepts, true, "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
			"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"},
		{"Prometheus, and an application with text", prometheusAccepts, false, "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8", ""},
		{"an old Prometheus", "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", true, "application/openmetrics-text; version=0.0.1; charset=utf-8", ""},
		{"a client of text, and an application with text", "text/plain", false, "text/plain; version=0.0.4; charset=utf-8", "text/plain;version=0.0.4,*/*;q=0.1"},
		{"a client of text, and an application with OpenMetrics", "text/plain", true, "text/plain; version=0.0.4; charset=utf-8", ""},
		{"a client that does not say", "", true, "text/plain; version=0.0.4; charset=utf-8", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var asked http.Header
			port := application(t, func(w http.ResponseWriter, r *http.Request) {
				asked = r.Header
				if tc.open {
					w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0")
					_, _ = io.WriteString(w, appOpen)
					return
				}
				_, _ = io.WriteString(w, appText)
			})
			r := start(t, annotated(port), func(p *Parts) { p.Envoy, p.Own = envoyWith(envoyIs), own() })
			resp, body := r.get(stats, "Accept", tc.accept, "User-Agent", "Prometheus/3.0", timeoutHeader, "20")
			if got := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || got != tc.contentType {
				t.Errorf("%d, in %q", resp.StatusCode, got)
			}
			if got := asked.Get("Accept"); tc.asked != "" && got != tc.asked {
				t.Errorf("the application was asked for %q", got)
			}
			if asked.Get("User-Agent") != "Prometheus/3.0" || asked.Get(timeoutHeader) != "19.5" || asked.Get("Accept-Encoding") != "" {
				t.Errorf("the application was asked with %v", asked)
			}
			for _, want := range []string{"envoy_rq{x=\"1\"} 1\n", "app_total 7", "\ngo_goroutines 3\n", "\nholdfast_go_goroutines ", "\nholdfast_groups 1\n"} {
				if strings.Count(body, want) != 1 {
					t.Errorf("%q is there %d times in\n%s", want, strings.Count(body, want), body)
				}
			}
			if strings.HasPrefix(tc.contentType, "text/") {
				if counts := parse(t, body); counts["app_total"] != 1 || strings.Contains(body, "# EOF") || strings.Contains(body, "trace_id") {
					t.Errorf("parts are in another format:\n%s", body)
				}
				return
			}
			checkOpenMetrics(t, body)
			if tc.open != strings.Contains(body, "app_total 7 # {trace_id=\"t\"} 1\n") {
				t.Errorf("the exemplar is missing:\n%s", body)
			}
		})
	}
}

func TestWithoutAnApplicationTheAnswerIsText(t *testing.T) {
	r := start(t, environ{}, func(p *Parts) { p.Envoy, p.Own = envoyWith(envoyIs), own() })
	resp, body := r.get(stats, "Accept", prometheusAccepts)
	if got := resp.Header.Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("it is in %q", got)
	}
	if counts := parse(t, body); counts["envoy_rq"] != 1 || counts["holdfast_groups"] != 1 {
		t.Errorf("%v", counts)
	}
	r.counted("envoy ok 1", "holdfast ok 1")
}

// counted fails unless the results of the parts are these.
func (r *rig) counted(want ...string) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for result, n := range maps.All(r.results) {
		got = append(got, fmt.Sprintf("%s %d", result, n))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.Errorf("counted %q, want %q", got, want)
	}
}

func TestEnvoyIsScrapedAtItsPortIfItsAdminInterfaceIsNotKnown(t *testing.T) {
	var asked *http.Request
	port := application(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r
		_, _ = io.WriteString(w, envoyIs)
	})
	r := start(t, environ{statsPortVar: port}, func(p *Parts) { p.Envoy = nil })
	if _, body := r.get(stats+"?usedonly&filter=rq", "Accept", prometheusAccepts); !strings.Contains(body, "envoy_rq") {
		t.Errorf("the answer is %s", body)
	}
	if asked.URL.String() != "/stats/prometheus?usedonly&filter=rq" || asked.Header.Get("Accept") != textType {
		t.Errorf("it was asked for %s with %v", asked.URL, asked.Header)
	}
}

func TestSeveralApplicationsAreMerged(t *testing.T) {
	serve := func(text string) string {
		return application(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "# TYPE a gauge\n"+text+r.URL.Path+"\"} 1\n")
		})
	}
	env := environ{annotationsVar: fmt.Sprintf(`{"targets":[{"port":"%s"},{"port":"%s","path":"/x"},{"port":"%s"}]}`, serve(`a{p="1`), serve(`a{p="2`), closedPort(t))}
	r := start(t, env, nil)
	_, body := r.get(stats)
	if counts := parse(t, body); counts["a"] != 2 || !strings.Contains(body, `a{p="1/metrics"} 1`) || !strings.Contains(body, `a{p="2/x"} 1`) {
		t.Errorf("%v in\n%s", counts, body)
	}
	r.counted("application ok 2", "application unreachable 1", "envoy unreachable 1", "holdfast ok 1")
}

// A part that fails costs only itself, and the metric says which one it was.
func TestAPartThatFailsCostsOnlyItself(t *testing.T) {
	for _, tc := range []struct {
		name   string
		app    http.HandlerFunc
		result string
	}{
		{"another status", http.NotFound, resultStatus},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, resultMalformed},
		{"protobuf", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited")
		}, resultMalformed},
		{"an encoding that was not requested", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") }, resultMalformed},
		{"OpenMetrics without an end", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/openmetrics-text")
			_, _ = io.WriteString(w, "app_total 7\n")
		}, resultMalformed},
		{"a connection that breaks", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "app_total 7\napp_b")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, resultUnreachable},
		{"a redirect to another host", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/metrics", http.StatusFound)
		}, resultUnreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			r := start(t, annotated(application(t, tc.app)), func(p *Parts) {
				p.Envoy, p.Own = envoyWith(envoyIs), own()
				p.Log = slog.New(slog.NewTextHandler(&log, nil))
			})
			for range 2 {
				_, body := r.get(stats, "Accept", prometheusAccepts)
				if checkOpenMetrics(t, body); !strings.Contains(body, "envoy_rq") || !strings.Contains(body, "holdfast_groups 1") || strings.Contains(body, "app_b") {
					t.Errorf("the answer is\n%s", body)
				}
			}
			r.counted("application "+tc.result+" 2", "envoy ok 2", "holdfast ok 2")
			if n := strings.Count(log.String(), "metrics cannot be merged"); n != 1 {
				t.Errorf("the log says %d times that it fails:\n%s", n, &log)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// stalled is the body of an answer that begins with a text and then comes no further until ctx ends.
func stalled(ctx context.Context, begin string) io.Reader {
	return io.MultiReader(strings.NewReader(begin), readerFunc(func([]byte) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}))
}

// A part that hangs, before or within its answer, is given up a little before the client gives up, and all
// others are complete, however slow each of them is.
func TestAPartThatHangsIsGivenUpInTime(t *testing.T) {
	large := strings.Repeat("app_large{x=\"0123456789\"} 1\n", 20_000) // more than a pipe holds
	for _, tc := range []struct {
		name       string
		timeout    string
		envoy, app func(context.Context) (*http.Response, error)
		took       time.Duration
		want       []string // in the answer
		counted    []string
	}{
		{
			"an application that does not answer", "20", envoyAnswers(envoyIs),
			func(ctx context.Context) (*http.Response, error) {
				<-ctx.Done()
				return nil, &url.Error{Err: ctx.Err()}
			},
			19500 * time.Millisecond, []string{"envoy_rq"}, []string{"application timeout 1", "envoy ok 1"},
		}, {
			"an application that stops within a line", "", envoyAnswers(envoyIs),
			func(ctx context.Context) (*http.Response, error) {
				return answer(200, "", stalled(ctx, "app_a 1\napp_b")), nil
			},
			9500 * time.Millisecond, []string{"envoy_rq", "app_a 1\n"}, []string{"application timeout 1", "envoy ok 1"},
		}, {
			"an Envoy that does not answer", "1",
			func(ctx context.Context) (*http.Response, error) { <-ctx.Done(); return nil, ctx.Err() }, envoyAnswers(large),
			900 * time.Millisecond, []string{large}, []string{"application ok 1", "envoy timeout 1"},
		}, {
			"an Envoy with more than is read ahead", "10", envoyAnswers(strings.Repeat("envoy_x 1\n", 3*readAhead*block/10)), envoyAnswers(large),
			0, []string{large, strings.Repeat("envoy_x 1\n", 3*readAhead*block/10)}, []string{"application ok 1", "envoy ok 1"},
		}, {
			"an Envoy that stops, and an application that came later", "1000",
			func(ctx context.Context) (*http.Response, error) {
				return answer(200, "", stalled(ctx, "envoy_rq 1\n"+strings.Repeat("envoy_x 1\n", 10_000))), nil
			},
			func(context.Context) (*http.Response, error) {
				time.Sleep(time.Second)
				return answer(200, "", strings.NewReader(large)), nil
			},
			59500 * time.Millisecond, []string{"envoy_rq 1\n", large}, []string{"application ok 1", "envoy timeout 1"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := &rig{T: t, results: make(map[string]int)}
				parts := r.parts()
				parts.Envoy = func(ctx context.Context, _ string) (*http.Response, error) { return tc.envoy(ctx) }
				cfg, err := FromEnv(annotated("8080").get, 15020)
				if err != nil {
					t.Fatal(err)
				}
				s := New(*cfg, parts)
				s.scrapes.Transport = roundTripper(func(r *http.Request) (*http.Response, error) { return tc.app(r.Context()) })
				w, req, began := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", stats, nil), time.Now()
				req.Header.Set(timeoutHeader, tc.timeout)
				s.merged(w, req)
				if took := time.Since(began); took != tc.took {
					t.Errorf("it took %s, want %s", took, tc.took)
				}
				parse(t, w.Body.String())
				for _, want := range tc.want {
					if !strings.Contains(w.Body.String(), want) {
						t.Errorf("%.40q is missing", want)
					}
				}
				r.counted(append(tc.counted, "holdfast ok 1")...)
			})
		})
	}
}

func envoyAnswers(text string) func(context.Context) (*http.Response, error) {
	return func(context.Context) (*http.Response, error) { return answer(200, "", strings.NewReader(text)), nil }
}

// A scrape whose client has gone ends at once, and is no failure of a part.
func TestAScrapeEndsWithItsClient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &rig{T: t, results: make(map[string]int)}
		parts := r.parts()
		parts.Envoy = func(ctx context.Context, _ string) (*http.Response, error) {
			return answer(200, "", stalled(ctx, "a 1\n")), nil
		}
		s := New(Config{}, parts)
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.merged(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", stats, nil))
		}()
		synctest.Wait()
		began := time.Now()
		leave()
		<-ended
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %s", took)
		}
		r.counted()
	})
}

func TestTooManyScrapesAtOnceAreRejected(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := &rig{T: t, results: make(map[string]int)}
		parts, release := r.parts(), make(chan struct{})
		parts.Envoy = func(context.Context, string) (*http.Response, error) { <-release; return nil, errors.New("no") }
		s := New(Config{}, parts)
		scrape := func(client string) int {
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", stats, nil)
			r.RemoteAddr = client
			s.merged(w, r)
			return w.Code
		}
		for range maxOfOne {
			go scrape("192.0.2.1:1")
			synctest.Wait()
		}
		if code := scrape("[::ffff:192.0.2.1]:2"); code != 503 {
			t.Errorf("one more of the same client is answered with %d", code)
		}
		for range maxScrapes - maxOfOne {
			go scrape("192.0.2.2:1")
			synctest.Wait()
		}
		if code := scrape("192.0.2.3:1"); code != 503 {
			t.Errorf("one more is answered with %d", code)
		}
		close(release)
		synctest.Wait()
		if code := scrape("192.0.2.1:1"); code != 200 {
			t.Errorf("after them, one is answered with %d", code)
		}
	})
}

// A client that takes nothing is dropped after some seconds, however long it says that it waits.
func TestAClientThatTakesNothingIsDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		here, there := net.Pipe() // there reads the first byte only
		defer func() { _ = there.Close() }()
		r := &rig{T: t, results: make(map[string]int)}
		parts := r.parts()
		parts.Envoy = envoyWith(strings.Repeat("a_metric_of_envoy 1\n", 10_000))
		mux := http.NewServeMux()
		New(Config{}, parts).Register(mux)
		server := &http.Server{Handler: mux}
		listener := &oneConn{conn: here, closed: make(chan struct{})}
		ended := make(chan struct{})
		go func() { defer close(ended); _ = server.Serve(listener) }()
		if _, err := io.WriteString(there, "GET "+stats+" HTTP/1.1\r\nHost: x\r\n"+timeoutHeader+": 60\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := there.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxStall + time.Second) // virtual
		if n, _ := io.Copy(io.Discard, there); n > 100_000 {
			t.Errorf("it was sent %d bytes after it had taken nothing for %s", n, maxStall+time.Second)
		}
		_ = server.Close()
		<-ended
	})
}

// oneConn is a listener that accepts one connection.
type oneConn struct {
	conn   net.Conn
	once   sync.Once
	closed chan struct{}
	taken  bool
}

func (l *oneConn) Accept() (net.Conn, error) {
	if !l.taken {
		l.taken = true
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func TestTheAnswerIsCompressedOnlyIfTheClientAcceptsIt(t *testing.T) {
	r := start(t, environ{}, func(p *Parts) { p.Envoy = envoyWith(envoyIs) })
	_, plain := r.get(stats)
	for accepts, want := range map[string]bool{
		"": false, "identity": false, "gzip": true, "deflate, GZIP;q=0.5": true, "gzip;q=0": false, "*": true, "*;q=0": false, "gzip;q=0,*": false, "br": false, "zstd, x-gzip": true,
	} {
		resp, body := r.get(stats, "Accept-Encoding", accepts)
		if is := resp.Header.Get("Content-Encoding") == "gzip"; is != want {
			t.Errorf("%q: compressed is %t", accepts, is)
			continue
		}
		if want {
			unzipped, err := gzip.NewReader(strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(unzipped)
			if err != nil {
				t.Error(err)
			}
			body = string(b)
		}
		if body != plain {
			t.Errorf("%q: the answer is %q", accepts, body)
		}
	}
}

func TestTheTimeOfAScrape(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": 9500 * time.Millisecond, "x": 9500 * time.Millisecond, "-1": 9500 * time.Millisecond, "0": 9500 * time.Millisecond, "NaN": 9500 * time.Millisecond,
		"Inf": 9500 * time.Millisecond, "1e300": 59500 * time.Millisecond, "1": 900 * time.Millisecond, "4.5": 4050 * time.Millisecond, "30": 29500 * time.Millisecond,
	} {
		if got := scrapeTimeout(http.Header{timeoutHeader: {header}}); got != want {
			t.Errorf("%q: %s, want %s", header, got, want)
		}
	}
}

// A metric of the agent that cannot be gathered costs no other.
func TestTheAgentsOtherMetricsAreServedIfOneFails(t *testing.T) {
	r := start(t, environ{}, func(p *Parts) {
		broken := prometheus.NewRegistry()
		broken.MustRegister(failing{})
		p.Own = prometheus.Gatherers{own(), broken}
		p.Envoy = envoyWith(envoyIs)
	})
	if _, body := r.get(stats); !strings.Contains(body, "holdfast_groups 1\n") || !strings.Contains(body, "envoy_rq") {
		t.Errorf("the answer is\n%s", body)
	}
	r.counted("envoy ok 1", "holdfast malformed 1")
}

type failing struct{}

func (failing) Describe(ch chan<- *prometheus.Desc) { ch <- prometheus.NewDesc("f", "", nil, nil) }
func (failing) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(prometheus.NewDesc("f", "", nil, nil), errors.New("broken"))
}
