// Package reading asks a real Envoy how it reads a file, for tests: files in Envoy's format must mean to holdfast what they mean to
// Envoy. Unknown fields are errors for both, as in a bootstrap: Envoy passes over them in files of resources unless it is told not to.
package reading

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

const clusterType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ours reads a file as holdfast does.
func (r *Reader) ours(text []byte, into proto.Message) error {
	format := yamlproto.EnvoyYAML
	if filepath.Ext(r.path) == ".json" {
		format = yamlproto.EnvoyJSON
	}
	documents, err := yamlproto.Read(text, format)
	switch {
	case err != nil:
		return err
	case len(documents) != 1:
		return fmt.Errorf("%d documents", len(documents))
	}
	return documents[0].Unmarshal(into)
}

// Indent returns the lines of a mapping in YAML as those of a message of a type, for Agree.
func Indent(typeURL, mapping string) string {
	const space = "        "
	var b strings.Builder
	b.WriteString(space + `"@type": ` + typeURL + "\n")
	for line := range strings.Lines(mapping) {
		if strings.TrimRight(line, " \n") == "---" {
			continue
		}
		b.WriteString(space + line)
	}
	return b.String()
}

// redacted is what Envoy shows in place of a secret, as a text and as bytes.
var redacted = []string{"[redacted]", base64.StdEncoding.EncodeToString([]byte("[redacted]"))}

// same compares what holdfast has read with what Envoy shows.
func same(ours, theirs any) bool {
	switch theirs := theirs.(type) {
	case string:
		return slices.Contains(redacted, theirs) || ours == theirs
	case map[string]any:
		ours, ok := ours.(map[string]any)
		if !ok || len(ours) != len(theirs) {
			return false
		}
		for key, value := range theirs {
			if mine, has := ours[key]; !has || !same(mine, value) {
				return false
			}
		}
		return true
	case []any:
		ours, ok := ours.([]any)
		if !ok || len(ours) != len(theirs) {
			return false
		}
		for i := range theirs {
			if !same(ours[i], theirs[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(ours, theirs)
}

// Reader is an Envoy that reads clusters from one file, each time that it is replaced.
type Reader struct {
	testing.TB
	admin  *http.Client
	dir    string
	path   string
	before counts
}

// counts are Envoy's counters of the file.
type counts struct{ success, rejected, failure int }

// New starts an Envoy whose file has an extension.
func New(t testing.TB, extension string) *Reader {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast") // short: a socket's path has at most 107 bytes
	must(t, err)
	socket := filepath.Join(dir, "admin.sock")
	r := &Reader{TB: t, dir: dir, path: filepath.Join(dir, "clusters"+extension), admin: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
	must(t, os.WriteFile(r.path, []byte(`{"resources": []}`), 0o600))
	config := filepath.Join(dir, "envoy.yaml")
	must(t, os.WriteFile(config, []byte("node: {id: node, cluster: cluster}\nadmin: {address: {pipe: {path: "+socket+"}}}\ndynamic_resources: {cds_config: {path_config_source: {path: "+r.path+"}}}\n"), 0o600))
	log, err := os.Create(r.log())
	must(t, err)
	cmd := exec.Command(envoytest.Binary(t), "-c", config, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--reject-unknown-dynamic-fields")
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		r.admin.CloseIdleConnections()
		must(t, os.RemoveAll(dir))
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // a foreign process
		if r.before, err = r.counts(); err == nil && r.before.success == 1 {
			return r
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(r.log())
			t.Fatalf("Envoy is not there: %v\n%s", err, text)
		}
	}
}

func (r *Reader) log() string { return filepath.Join(r.dir, "log") }

func (r *Reader) get(path string) ([]byte, error) {
	resp, err := r.admin.Get("http://envoy" + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(resp.Body)
}

func (r *Reader) counts() (c counts, err error) {
	text, err := r.get("/stats?filter=^cluster_manager.cds.update_")
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, _ := strconv.Atoi(value)
		switch name {
		case "cluster_manager.cds.update_success":
			c.success = n
		case "cluster_manager.cds.update_rejected":
			c.rejected = n
		case "cluster_manager.cds.update_failure":
			c.failure = n
		}
	}
	return c, err
}

// Read replaces the file, and returns the cluster that Envoy has then, or why it has not taken the file.
func (r *Reader) Read(text string) (*anypb.Any, error) {
	r.Helper()
	logged, err := os.ReadFile(r.log())
	must(r, err)
	next := r.path + ".next"
	must(r, os.WriteFile(next, []byte(text), 0o600))
	must(r, os.Rename(next, r.path))
	var now counts
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		now, err = r.counts()
		must(r, err)
		if now != r.before {
			break
		}
		if time.Now().After(end) {
			r.Fatalf("Envoy has not read\n%s", text)
		}
	}
	taken := now.success > r.before.success
	r.before = now
	if !taken {
		all, _ := os.ReadFile(r.log())
		return nil, fmt.Errorf("refused by Envoy: %.600s", all[min(len(logged), len(all)):])
	}
	body, err := r.get("/config_dump?resource=dynamic_active_clusters")
	must(r, err)
	if !json.Valid(body) { // it has a value that it cannot show, such as a Duration out of range
		return nil, errNotShown
	}
	var dump struct{ Configs []json.RawMessage }
	must(r, json.Unmarshal(body, &dump))
	if len(dump.Configs) != 1 {
		r.Fatalf("Envoy has %d clusters after\n%s", len(dump.Configs), text)
	}
	var whole anypb.Any
	if err := (protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal(dump.Configs[0], &whole); err != nil {
		r.Fatalf("%v in\n%s", err, dump.Configs[0])
	}
	var is adminv3.ClustersConfigDump_DynamicCluster
	must(r, whole.UnmarshalTo(&is))
	return is.GetCluster(), nil
}

var errNotShown = errors.New("not shown by Envoy")

// tree is a message as JSON, in which Anys can be compared.
func tree(t testing.TB, m proto.Message) (tree any) {
	t.Helper()
	text, err := protojson.MarshalOptions{Resolver: envoytypes.Resolver}.Marshal(m)
	must(t, err)
	must(t, json.Unmarshal(text, &tree))
	return tree
}

// Agree reads a cluster with a message in its metadata as holdfast and as Envoy does. It reports whether both took it, and what they
// say if they differ. sample is the message with its "@type", in the format of the file; for YAML it may have several lines, which
// Indent has made.
func (r *Reader) Agree(name, sample string) (accepted bool, difference string) {
	r.Helper()
	text := fmt.Sprintf(`{"resources": [{"@type": %q, "name": %q, "type": "STATIC", "connect_timeout": "1s", "metadata": {"typed_filter_metadata": {"x": %s}}}]}`, clusterType, name, sample)
	if strings.Contains(sample, "\n") && filepath.Ext(r.path) == ".yaml" {
		text = fmt.Sprintf("resources:\n- \"@type\": %s\n  name: %s\n  type: STATIC\n  connect_timeout: 1s\n  metadata:\n    typed_filter_metadata:\n      x:\n%s", clusterType, name, sample)
	}
	var resp discoveryv3.DiscoveryResponse
	err := r.ours([]byte(text), &resp)
	theirs, refused := r.Read(text)
	switch {
	case refused == errNotShown, refused != nil && isUnknown(refused):
		return false, ""
	case (err == nil) != (refused == nil):
		return false, fmt.Sprintf("holdfast: %v\n%v", err, refused)
	case err != nil:
		return false, ""
	}
	if a, b := tree(r, resp.GetResources()[0]), tree(r, theirs); !same(a, b) {
		return true, fmt.Sprintf("holdfast: %v\nEnvoy:    %v", a, b)
	}
	return true, ""
}

// isUnknown reports whether a type is not in this Envoy: of contrib, left out of the build, or of OpenTelemetry, whose module is newer.
func isUnknown(refused error) bool {
	return strings.Contains(refused.Error(), "message opentelemetry.proto") || strings.Contains(refused.Error(), "unable to find") || strings.Contains(refused.Error(), "Invalid type URL") || strings.Contains(refused.Error(), "could not find @type")
}

// List returns a list of resources in YAML, in block style and without their types, as a response of a type, for Agree.
func List(typeURL, list string) string {
	var b strings.Builder
	b.WriteString("resources:\n")
	for line := range strings.Lines(list) {
		if rest, first := strings.CutPrefix(line, "- "); first {
			line = `- "@type": ` + typeURL + "\n  " + rest
		}
		b.WriteString(line)
	}
	return Indent("type.googleapis.com/envoy.service.discovery.v3.DiscoveryResponse", b.String())
}

// File reads a file with a message in Envoy's format as Agree does.
func File(t testing.TB, typeURL, path string, readers map[string]*Reader) (accepted bool, difference string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	extension := filepath.Ext(path)
	if extension == ".yml" {
		extension = ".yaml"
	}
	if readers[extension] == nil {
		readers[extension] = New(t, extension)
	}
	sample := Indent(typeURL, string(text))
	if extension == ".json" {
		_, rest, _ := strings.Cut(string(text), "{")
		sample = fmt.Sprintf(`{"@type": %q, %s`, typeURL, rest)
		if strings.TrimSpace(rest) == "}" {
			sample = fmt.Sprintf(`{"@type": %q}`, typeURL)
		}
	}
	return readers[extension].Agree(strings.NewReplacer("/", "-", ".", "-").Replace(filepath.Base(path)), sample)
}
