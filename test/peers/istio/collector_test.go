package istio

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	collogsv1 "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	coltracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// recordTime is how long a record may take: access log services and tracers collect for a second. absentTime is after
// which there is none.
const (
	recordTime = 5 * time.Second
	absentTime = 1500 * time.Millisecond
)

// collectors record what Envoys send of access logs and of traces: zipkin and datadog speak HTTP, and so does otlphttp; otlp,
// als and skywalking speak gRPC. Below a directory are the access logs that Envoys write to files.
type collectors struct {
	logs string
	*received
}

// received has the records of each collector, a line of JSON or what was found in it for each.
type received struct {
	sync.Mutex
	lines map[string][]string
}

func (r *received) add(name, line string) {
	r.Lock()
	defer r.Unlock()
	r.lines[name] = append(r.lines[name], line)
}

// addMessage adds a message as JSON, after what came beside it.
func (r *received) addMessage(name, beside string, m proto.Message) {
	text, _ := protojson.Marshal(m)
	var b bytes.Buffer
	_ = json.Compact(&b, text)
	r.add(name, beside+b.String())
}

// logsBeside returns the directory of access logs for that of certificates.
func logsBeside(certs string) string { return filepath.Join(certs, "logs") }

// traces reports whether the mesh configuration enables tracing: istiod does by default, and holdfast-mesh does not.
func (g *group) traces(t *testing.T) bool {
	t.Helper()
	var mesh struct {
		EnableTracing bool `json:"enableTracing"`
	}
	check(t, yaml.Unmarshal(g.Mesh, &mesh))
	return mesh.EnableTracing
}

// startCollectors starts the collectors.
func (w *world) startCollectors(t *testing.T, logs string) {
	t.Helper()
	w.collectors = collectors{logs, &received{lines: make(map[string][]string)}}
	for _, name := range []string{"zipkin", "datadog", "otlphttp"} {
		lis := w.listen(t, name)
		srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { w.collectHTTP(name, r) })}
		go func() { _ = srv.Serve(lis) }()
		t.Cleanup(func() { _ = srv.Close() })
	}
	for _, name := range []string{"otlp", "als", "skywalking"} {
		lis := w.listen(t, name)
		srv := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(s)
			w.add(name, method)
			return nil
		}))
		coltracev1.RegisterTraceServiceServer(srv, traceCollector{received: w.received, name: name})
		collogsv1.RegisterLogsServiceServer(srv, logCollector{received: w.received, name: name})
		accesslogv3.RegisterAccessLogServiceServer(srv, alsCollector{w.received, name})
		go func() { _ = srv.Serve(lis) }()
		t.Cleanup(srv.Stop)
	}
}

// collectHTTP records a request with spans: each of Zipkin's, all of OTLP together, and of Datadog the readable texts.
func (w *world) collectHTTP(name string, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	head := fmt.Sprintf("%s %s %s ", r.Method, r.URL.Path, r.Header.Get("X-Collector"))
	var spans []any
	switch {
	case name == "zipkin" && json.Unmarshal(body, &spans) == nil:
		for _, span := range spans {
			text, _ := json.Marshal(span)
			w.add(name, head+string(text))
		}
	case name == "otlphttp":
		var m coltracev1.ExportTraceServiceRequest
		if proto.Unmarshal(body, &m) == nil {
			w.addMessage(name, head, &m)
		}
	case name == "datadog":
		w.add(name, head+strings.Join(readable.FindAllString(string(body), -1), " "))
	}
}

// readable are texts in a binary format.
var readable = regexp.MustCompile(`[ -~]{3,}`)

type traceCollector struct {
	coltracev1.UnimplementedTraceServiceServer
	*received
	name string
}

func (c traceCollector) Export(ctx context.Context, m *coltracev1.ExportTraceServiceRequest) (*coltracev1.ExportTraceServiceResponse, error) {
	c.addMessage(c.name, besideOf(ctx), m)
	return &coltracev1.ExportTraceServiceResponse{}, nil
}

type logCollector struct {
	collogsv1.UnimplementedLogsServiceServer
	*received
	name string
}

func (c logCollector) Export(ctx context.Context, m *collogsv1.ExportLogsServiceRequest) (*collogsv1.ExportLogsServiceResponse, error) {
	c.addMessage(c.name, besideOf(ctx), m)
	return &collogsv1.ExportLogsServiceResponse{}, nil
}

type alsCollector struct {
	*received
	name string
}

func (c alsCollector) StreamAccessLogs(s accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	log := ""
	for {
		m, err := s.Recv()
		if err != nil {
			return nil
		}
		if m.GetIdentifier() != nil {
			log = m.GetIdentifier().GetLogName()
		}
		for _, e := range m.GetHttpLogs().GetLogEntry() {
			c.addMessage(c.name, "http "+log+" ", e)
		}
		for _, e := range m.GetTcpLogs().GetLogEntry() {
			c.addMessage(c.name, "tcp "+log+" ", e)
		}
	}
}

// forget forgets all records, and deletes the access logs.
func (c collectors) forget(t *testing.T) {
	t.Helper()
	check(t, os.RemoveAll(c.logs))
	check(t, os.MkdirAll(c.logs, 0o700))
	c.Lock()
	defer c.Unlock()
	clear(c.lines)
}

// matching counts the records that match, of an access log (log:FILE) or of a collector (got:NAME).
func (c collectors) matching(kind, name string, pattern *regexp.Regexp) (n int, all []string) {
	c.Lock()
	all = slices.Clone(c.lines[name])
	c.Unlock()
	if kind == "log" {
		b, _ := os.ReadFile(filepath.Join(c.logs, name))
		all = strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	}
	for _, line := range all {
		if pattern.MatchString(line) {
			n++
		}
	}
	return n, all
}

// expect waits for what must be recorded, and for what must not be. It returns how many lines of access logs match each
// expectation, and the expectations that are not met.
func (c collectors) expect(records []string) (counted, unmet []string) {
	for _, text := range records {
		at := strings.IndexAny(text, "~!")
		if at < 0 {
			return nil, []string{fmt.Sprintf("%q is no expectation: want KIND:NAME~REGEX or KIND:NAME!REGEX", text)}
		}
		kind, name, _ := strings.Cut(text[:at], ":")
		pattern, err := regexp.Compile(text[at+1:])
		if err != nil {
			return nil, []string{err.Error()}
		}
		n, all := 0, []string(nil)
		if text[at] == '~' {
			_ = eventually(recordTime, func() error {
				if n, all = c.matching(kind, name, pattern); n == 0 {
					return io.ErrNoProgress
				}
				return nil
			})
		} else {
			time.Sleep(absentTime)
			n, all = c.matching(kind, name, pattern)
		}
		if kind == "log" { // a tracer may send several spans at once
			counted = append(counted, fmt.Sprintf("%d records match %s", n, text))
		}
		if (n > 0) != (text[at] == '~') {
			unmet = append(unmet, fmt.Sprintf("%d records match %s, of:\n    %s", n, text, strings.Join(last(all, 5), "\n    ")))
		}
	}
	return counted, unmet
}

func last(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }

// besideOf returns what comes beside a message over gRPC: the header x-collector.
func besideOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get("x-collector"), ",") + " "
}
