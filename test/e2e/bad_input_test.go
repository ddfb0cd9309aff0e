package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// run runs holdfast to its end and returns its exit code and what it said.
func run(t T, args ...string) (code int, out string) {
	t.Helper()
	return runProgram(t, holdfast(t), nil, args...)
}

// runWith is run with further variables of the environment.
func runWith(t T, env []string, args ...string) (code int, out string) {
	t.Helper()
	return runProgram(t, holdfast(t), env, args...)
}

// runProgram runs a holdfast of any version as runWith does.
func runProgram(t T, program string, env []string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	// Variables of the tests look like settings, of which the command would warn.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "HOLDFAST_") })
	cmd.Env = append(cmd.Env, env...)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return code, string(b)
}

// short returns a directory whose path leaves room for a Unix socket.
func short(t T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestWhatIsWrongWithTheSettingsIsSaidInOneLine(t *testing.T) {
	dir := short(t)
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	agent := func(args ...string) []string {
		return append([]string{"run", "--health", "", "--admin", "", "--socket", filepath.Join(dir, "xds.sock")}, args...)
	}
	missing := filepath.Join(dir, "missing")
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"an unknown flag":       {agent("--upstreem", "a:1"), 2, "unknown flag: --upstreem, did you mean --upstream?"},
		"an unknown key":        {agent("--config", file("key.yaml", "upstreem: a:1\n")), 2, `unknown key "upstreem", did you mean upstream?`},
		"no file of settings":   {agent("--config", missing), 2, "--config: open " + missing},
		"a file that is broken": {agent("--config", file("broken.yaml", "upstream: [a:1\n")), 2, "broken.yaml: "},
		"a directory as a file": {agent("--config", dir), 2, "--config: " + dir + ": it is a directory: name a regular file"},
		"a bad address":         {agent("--upstream", "nonsense"), 2, `upstream "nonsense": want host:port`},
		"a bad port":            {agent("--upstream", "xds.test:70000"), 2, `port "70000" is not a number from 1 to 65535`},
		"a missing bootstrap":   {agent("--upstream", "a:1", "--bootstrap", missing+".yaml"), 2, "open " + missing},
		"a socket in a file":    {agent("--upstream", "a:1", "--socket", file("file", "")+"/xds.sock"), 1, "file"},
		"a long socket path":    {agent("--upstream", "a:1", "--socket", filepath.Join(dir, strings.Repeat("x", 107))), 2, "at most 107"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := run(t, tc.args...)
			if code != tc.code || !strings.Contains(out, tc.want) {
				t.Errorf("exit %d, want %d and %q:\n%s", code, tc.code, tc.want, out)
			}
			if tc.code == 2 && (strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "holdfast: ")) {
				t.Errorf("not one line:\n%s", out)
			}
		})
	}
}

func TestASecondAgentOnTheSocketIsRefused(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start()
	code, out := run(t, "run", "--upstream", w.cpAddr, "--upstream-plaintext", "--socket", w.path("xds.sock"), "--admin", "", "--health", "")
	if code != 1 || !strings.Contains(out, "another holdfast serves this path") || !strings.Contains(out, "choose another path") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	code, out = run(t, "run", "--upstream", w.cpAddr, "--upstream-plaintext", "--socket", w.path("other.sock"), "--admin", "unix:"+w.path("admin.sock"), "--health", "")
	if code != 1 || !strings.Contains(out, "--admin: socket "+w.path("admin.sock")+": another holdfast serves this path") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	w.cp.Set(xdstest.Route("ingress", "c2")) // the first one goes on
	w.serves("v2")
}

// startAgentWith starts holdfast with one of its arguments replaced.
func (w *world) startAgentWith(old, replacement string, extra ...string) {
	w.Helper()
	w.startAgent(extra...)
	w.check(w.agent.Stop(limit))
	at := slices.Index(w.agentArgs, old)
	w.agentArgs[at] = replacement
	w.runAgent()
}

// Files that TLS needs are read at every attempt: a missing one is
// no reason to end, but to say so.
func TestStatusNamesAMissingCA(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	ca := w.path("missing.pem")
	w.startAgentWith("--upstream-plaintext", "--upstream-ca="+ca)
	w.check(w.agent.Wait(limit, func() error {
		_, out := run(t, "status", "--admin", "unix:"+w.path("admin.sock"))
		if want := "--upstream-ca: open " + ca + ": no such file or directory"; !strings.Contains(out, want) || !strings.Contains(out, "NOT READY") {
			return fmt.Errorf("status without %q:\n%s", want, out)
		}
		return nil
	}))
}

// A control plane may send anything: the NACK says what is wrong, what is good of
// the response arrives, and what Envoy has stays (protocol.md 7.3).
func TestGarbageFromTheControlPlaneIsRefusedAndTheRestArrives(t *testing.T) {
	long := strings.Repeat("x", xds.MaxNameBytes+1)
	body := func(name string) *discoveryv3.Resource {
		return xdstest.Wrap(xdstest.StaticCluster(name, "127.0.0.1:1"), "raw")
	}
	inAllForms(t, func(w *world) {
		w.start()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		active := w.value("cluster_manager.active_clusters")
		nonce := w.sendRaw(xds.ClusterType,
			body("first"),
			&discoveryv3.Resource{Version: "raw", Resource: xdstest.Pack(&clusterv3.Cluster{AltStatName: "nameless"})},
			body("twice"), &discoveryv3.Resource{Name: "twice", Version: "raw", Resource: xdstest.Pack(&clusterv3.Cluster{Name: "twice", AltStatName: "another"})},
			&discoveryv3.Resource{Name: "wrong", Version: "raw", Resource: xdstest.Pack(xdstest.Route("wrong", "c1"))},
			&discoveryv3.Resource{Name: "broken", Version: "raw", Resource: &anypb.Any{TypeUrl: xds.ClusterType, Value: []byte{0x0a, 0x7f, 'x'}}},
			&discoveryv3.Resource{Name: long, Version: "raw", Resource: xdstest.Pack(&clusterv3.Cluster{Name: long})},
			body("last"),
		)
		nack := w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Nonce == nonce })
		for _, reason := range []string{
			"CDS resource: resource has no name",
			`CDS "twice": 2 times in one response`,
			fmt.Sprintf("resource of type %q in a response of type %q", xds.RouteType, xds.ClusterType),
			"malformed protobuf at byte ",
			"resource name of 8193 bytes: at most 8192 are accepted",
		} {
			if !strings.Contains(nack.Error.GetMessage(), reason) {
				t.Errorf("the NACK says %q, want %q", nack.Error.GetMessage(), reason)
			}
		}
		served := 2
		if w.above == xdstest.SotW {
			served++ // the first of those that occur twice
		}
		w.stat("cluster_manager.active_clusters", active+served)
		// A type that nobody asked for has no subscription to NACK it on.
		const unknown = "type.googleapis.com/example.Unknown"
		w.sendRaw(unknown, &discoveryv3.Resource{Name: "u", Resource: xdstest.Unknown(unknown, "u")})
		w.sendRaw("", body("untyped"))
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		w.check(traffic.Stop())
		if _, ever := w.cp.Streams(); ever != 1 {
			t.Errorf("%d streams: garbage ended one", ever)
		}
		if n := w.value("cluster_manager.cds.update_rejected"); n != 0 {
			t.Errorf("Envoy refused %d responses: garbage reached it", n)
		}
		w.neverRemoved()
		w.check(w.agent.Alive())
	})
}

// sendRaw sends resources in a response of the wire form above, and returns its
// nonce.
func (w *world) sendRaw(typeURL string, resources ...*discoveryv3.Resource) string {
	w.Helper()
	nonce := w.cp.Nonce()
	var response proto.Message
	if w.above == xdstest.Delta {
		response = &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, Resources: resources}
	} else {
		sotw := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: "raw-" + nonce}
		for _, r := range resources {
			sotw.Resources = append(sotw.Resources, r.GetResource())
		}
		response = sotw
	}
	if n := w.cp.SendRaw(0, response); n != 1 {
		w.Fatalf("sent to %d streams, want 1", n)
	}
	return nonce
}

func TestAnOversizedMessageLeavesEnvoyServing(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--upstream-max-message-bytes", "200000")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		large := xdstest.StaticCluster("large", "127.0.0.1:1")
		large.AltStatName = strings.Repeat("x", 300_000)
		w.cp.Set(large)
		w.check(w.agent.Wait(limit, func() error {
			_, out := run(t, "status", "--admin", "unix:"+w.path("admin.sock"))
			if want := "received message larger than max"; !strings.Contains(out, want) {
				return fmt.Errorf("status without %q:\n%s", want, out)
			}
			return nil
		}))
		w.cp.Remove(xds.ClusterType, "large")
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		w.check(traffic.Stop())
		w.neverRemoved()
	})
}

func TestABrokenFileIsNamedAndItsLastGoodContentServed(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	dir := w.path("resources")
	w.check(os.Mkdir(dir, 0o700))
	// The route's file is written in YAML of which JSON is a part.
	write := func(text string) {
		route := fmt.Sprintf(`{"@type": %q, "name": "ingress", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": %q}}}]}]}`, xds.RouteType, text)
		w.check(os.WriteFile(filepath.Join(dir, "route.yaml"), []byte(route), 0o600))
	}
	listener, err := proto.Marshal(&discoveryv3.DiscoveryResponse{
		TypeUrl:   xds.ListenerType,
		Resources: []*anypb.Any{xdstest.Pack(xdstest.Listener("ingress", uint32(w.port), "ingress"))},
	})
	w.check(err)
	w.check(os.WriteFile(filepath.Join(dir, "listener.pb"), listener, 0o600))
	write("one")
	w.startAgentWith(w.cpAddr, "file:"+dir)
	w.envoy = w.startEnvoy()
	w.serves("one")
	traffic := testbed.StartTraffic(w.url, requestInterval)
	w.check(os.WriteFile(filepath.Join(dir, "route.yaml"), []byte("\"@type\": "+xds.RouteType+"\nname: ingress\nvirtual_hosts: 7\n"), 0o600))
	w.check(w.agent.Wait(limit, func() error {
		_, out := run(t, "status", "--admin", "unix:"+w.path("admin.sock"))
		if !strings.Contains(out, "file route.yaml: ") || !strings.Contains(out, "virtual_hosts") {
			return fmt.Errorf("status does not name the file and the field:\n%s", out)
		}
		return nil
	}))
	w.serves("one")
	write("two")
	w.serves("two")
	w.check(traffic.Stop())
	w.neverRemoved()
}

func TestSIGTERMEndsTheAgentAtOnceAndRemovesItsSockets(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.check(w.agent.Stop(3 * time.Second)) // nil: exit code 0
		for _, name := range []string{"xds.sock", "admin.sock"} {
			if _, err := os.Lstat(w.path(name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is still there: %v", name, err)
			}
		}
		status, body, err := testbed.Get(w.url)
		if err != nil || status != 200 || body != "v1" {
			t.Errorf("Envoy answers %d %q, %v", status, body, err)
		}
	})
}

// xdsClient connects a scripted client to the agent.
func (w *world) xdsClient() *xdstest.Client {
	w.Helper()
	conn, err := grpc.NewClient("unix:"+w.path("xds.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.check(err)
	c := xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: w.below})
	w.Cleanup(func() { c.Close(); _ = conn.Close() })
	w.check(c.Connect(w.Context()))
	return c
}

// A secret goes through the agent and never into what a person is shown.
func TestStatusAndDumpShowNoSecret(t *testing.T) {
	const marker = "MARKER-OF-A-PRIVATE-KEY" // of 23 bytes, so the last of base64 depends on what follows
	encoded := base64.StdEncoding.EncodeToString([]byte(marker))[:28]
	inAllForms(t, func(w *world) {
		w.cp.Set(xdstest.Secret("identity", []byte("-----BEGIN CERTIFICATE-----"), []byte(marker)))
		w.start()
		c := w.xdsClient()
		c.Subscribe(xds.SecretType, "identity")
		if err := c.Wait(t.Context(), func() bool { return len(c.Names(xds.SecretType)) == 1 }); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(c.Held(xds.SecretType)["identity"].GetResource().GetValue(), []byte(marker)) {
			t.Error("the client did not get the key")
		}
		admin := "unix:" + w.path("admin.sock")
		for _, args := range [][]string{{"dump"}, {"dump", "--type", "SDS"}, {"dump", "--name", "identity"}, {"status"}, {"status", "-o", "json"}} {
			code, out := run(t, append(args, "--admin", admin)...)
			if code != 0 || len(out) == 0 {
				t.Errorf("%v: exit %d: %s", args, code, out)
			}
			if strings.Contains(out, marker) || strings.Contains(out, encoded) {
				t.Errorf("%v shows the key:\n%s", args, out)
			}
			if args[0] == "dump" && (!json.Valid([]byte(out)) || !strings.Contains(out, `"identity"`) || !strings.Contains(out, "[redacted]")) {
				t.Errorf("%v:\n%s", args, out)
			}
		}
		log, err := os.ReadFile(w.agent.Log)
		if err != nil || bytes.Contains(log, []byte(marker)) || bytes.Contains(log, []byte(encoded)) {
			t.Errorf("the log shows the key, or %v", err)
		}
	})
}
