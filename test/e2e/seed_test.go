package e2e

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// seedKeys makes a key to sign seeds with, as the documentation says.
func (w *world) seedKeys() (private, public string) {
	w.Helper()
	private, public = w.path("seed.key"), w.path("seed.pub")
	for _, args := range [][]string{
		{"genpkey", "-algorithm", "ed25519", "-out", private},
		{"pkey", "-in", private, "-pubout", "-out", public},
	} {
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			w.Fatalf("openssl %q: %v\n%s", args, err, out)
		}
	}
	return private, public
}

// newPod ends the pod, and starts one with another name that has nothing stored.
func (w *world) newPod(id string, flags ...string) {
	w.Helper()
	w.envoy.Kill()
	w.agent.Kill()
	w.check(os.RemoveAll(w.path("state")))
	w.startAgent(append([]string{"--node-id", id}, flags...)...)
	w.edit = func(b *bootstrapv3.Bootstrap) { b.Node.Id = id }
	w.envoy = w.startEnvoy()
}

// seed returns what the status says of the seed that is served; nil for nothing.
func (w *world) seed() *admin.Seed {
	w.Helper()
	return w.group().Seed
}

// published waits until the agent has published a seed with everything: the first one has what was accepted until then,
// which may be less.
func (w *world) published(file string) {
	w.Helper()
	whole := regexp.MustCompile(`msg="seed published" .*place=` + regexp.QuoteMeta(file) + ` resources=6 `)
	w.check(testbed.Eventually(limit, func() error {
		if !whole.MatchString(w.log()) {
			return errors.New("no seed with all resources is published")
		}
		return nil
	}))
}

// An agent publishes a seed. While the control plane is away, a pod that never ran before serves it, and when it is
// back, Envoy gets the difference only (envoy#21644).
func TestANewPodServesASeedDuringAnOutage(t *testing.T) {
	inAllForms(t, func(w *world) {
		private, public := w.seedKeys()
		file := w.path("web.seed")
		w.start("--state-dir", w.path("state"), "--seed-publish", file, "--seed-publish-every", "1s", "--seed-key", private)
		w.published(file)
		w.says([]string{"status"}, "Seed in "+file)
		from := []string{"--seed", file, "--seed-trust", public}

		w.cp.Stop()
		w.newPod("pod-2", from...)
		w.serves("v1")
		w.neverWaited()
		s := w.seed()
		if s == nil || !s.Used || s.Role != "e2e" || s.Resources != 6 || !strings.HasPrefix(s.SignedBy, "SHA256:") {
			w.Fatalf("the status says of the seed %+v", s)
		}
		w.says([]string{"status"}, `served from the seed of the role "e2e"`, "signed by "+s.SignedBy)
		w.says([]string{"events"}, "a seed is served")
		w.says([]string{"wait", "--timeout", "1s"}) // it is ready
		if code, out := run(w.T, "rehearse", "--admin", "unix:"+w.path("admin.sock")); !strings.Contains(out, "A new pod would be served the seed "+file+` of the role "e2e"`) {
			w.Errorf("exit code %d:\n%s", code, out)
		}

		before := w.value("cluster_manager.cluster_modified") + w.value("cluster_manager.cluster_removed") + w.value("listener_manager.listener_modified")
		w.cp.Set(xdstest.Route("ingress", "c2"))
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.restartControlPlane()
		w.serves("v2")
		w.check(traffic.Stop())
		w.check(testbed.Eventually(limit, func() error {
			if s := w.seed(); s != nil {
				return fmt.Errorf("the status says of the seed %+v", s)
			}
			return nil
		}))
		if after := w.value("cluster_manager.cluster_modified") + w.value("cluster_manager.cluster_removed") + w.value("listener_manager.listener_modified"); after != before {
			w.Errorf("%d clusters and listeners changed, and the control plane changed a route only", after-before)
		}
		// What the control plane had removed meanwhile goes.
		w.cp.Stop()
		w.cp.Remove(xds.ClusterType, "c1")
		w.cp.Remove(xds.EndpointType, "c1")
		w.newPod("pod-3", from...)
		w.serves("v1")
		w.restartControlPlane()
		w.serves("v2")
		w.stat("cluster_manager.cluster_removed", 1)
		w.neverWaited()
	})
}

// What is stored comes before a seed, and what the seed cannot be used for is said.
func TestASeedIsTheLastResort(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	private, public := w.seedKeys()
	file := w.path("web.seed")
	w.start("--state-dir", w.path("state"))
	exports := func(args ...string) {
		t.Helper()
		if code, out := run(t, append([]string{"export", "--seed", file, "--admin", "unix:" + w.path("admin.sock")}, args...)...); code != 0 || !strings.Contains(out, "RDS: 1") {
			t.Fatalf("exit code %d:\n%s", code, out)
		}
	}
	exports("--seed-key", private)
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.serves("v2")
	w.says([]string{"dump", "--type", "RDS"}, `"accepted"`)
	w.cp.Stop()
	w.envoy.Kill()
	w.agent.Kill()
	w.startAgent("--state-dir", w.path("state"), "--seed", file, "--seed-trust", public)
	w.envoy = w.startEnvoy()
	w.serves("v2")
	if s := w.seed(); s != nil {
		t.Errorf("the seed is used, and the state is there: %+v", s)
	}

	// From the state directory alone.
	w.agent.Kill()
	w.envoy.Kill()
	if code, out := run(t, "export", "--seed", file, "--seed-key", private, "--state-dir", w.path("state"), "--node-id", "e2e", "--node-cluster", "e2e"); code != 0 || !strings.Contains(out, `seed of the role "e2e"`) {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	w.newPod("pod-2", "--seed", file, "--seed-trust", public)
	w.serves("v2")

	good, err := os.ReadFile(file)
	w.check(err)
	other := w.path("other.pub")
	if out, err := exec.Command("sh", "-c", "openssl genpkey -algorithm ed25519 | openssl pkey -pubout -out "+other).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, tc := range map[string]struct {
		data  []byte
		flags []string
		want  string
	}{
		"of another role":        {good, []string{"--seed-trust", public, "--seed-role", "api"}, `it is of the role "e2e", and this agent has "api"`},
		"signed by somebody":     {good, []string{"--seed-trust", other}, "it is signed with a key that is not in --seed-trust"},
		"too old":                {good, []string{"--seed-trust", public, "--seed-max-age", "1ms"}, "older than --seed-max-age 1ms"},
		"not there":              {nil, []string{"--seed-trust", public}, "no such file"},
		"cut":                    {good[:len(good)/2], []string{"--seed-trust", public}, "it was changed or damaged"},
		"another file":           {[]byte("resources: []\n"), []string{"--seed-trust", public}, "it is no seed"},
		"empty":                  {[]byte{}, []string{"--seed-trust", public}, "nothing was published yet"},
		"of a user, not trusted": {good, nil, "only a local file that belongs to root"},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(file)
			if tc.data != nil {
				w.check(os.WriteFile(file, tc.data, 0o644))
				w.check(os.Chown(file, 12345, 12345))
			}
			w.newPod("pod-3", append([]string{"--seed", file}, tc.flags...)...)
			w.says([]string{"status"}, "the seed cannot be used: seed "+file+": ", tc.want)
			if code, out := run(t, "rehearse", "--admin", "unix:"+w.path("admin.sock")); code != 1 || !strings.Contains(out, tc.want) {
				t.Errorf("exit code %d:\n%s", code, out)
			}
			if code, out := run(t, "wait", "--timeout", "100ms", "--admin", "unix:"+w.path("admin.sock")); code != 1 || !strings.Contains(out, tc.want) {
				t.Errorf("exit code %d:\n%s", code, out)
			}
		})
	}
	// A file of root needs no signature, as in the volume of a ConfigMap.
	_ = os.Remove(file) // it has another owner
	w.check(os.WriteFile(file, good, 0o644))
	w.newPod("pod-4", "--seed", file)
	if os.Geteuid() == 0 {
		w.serves("v2")
	} else {
		w.says([]string{"status"}, "only a local file that belongs to root")
	}
	// It is tried again until it can be used.
	w.check(os.WriteFile(file, good, 0o644))
	w.newPod("pod-5", "--seed", w.path("later.seed"), "--seed-trust", public)
	w.says([]string{"status"}, "the seed cannot be used")
	w.check(os.Rename(file, w.path("later.seed")))
	w.serves("v2")
}

// fileServer takes PUT and serves what it took, to those who have the token.
type fileServer struct {
	mu   sync.Mutex
	data []byte
	at   time.Time
	puts int
}

func (s *fileServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Header.Get("Authorization") != "Bearer sesame":
		http.Error(rw, "who are you?", http.StatusForbidden)
	case r.Method == http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		s.data, s.at, s.puts = data, time.Now(), s.puts+1
	case s.data == nil:
		http.NotFound(rw, r)
	default:
		rw.Header().Set("Last-Modified", s.at.UTC().Format(http.TimeFormat))
		_, _ = rw.Write(s.data)
	}
}

func (s *fileServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

// secondAgent starts another agent of the role, without an Envoy.
func (w *world) secondAgent(flags ...string) *testbed.Process {
	w.Helper()
	p, err := testbed.Start("second", w.path("second.log"), append([]string{holdfast(w.T), "run",
		"--upstream", w.cpAddr, "--upstream-plaintext", "--socket", w.path("second.sock"), "--admin", "unix:" + w.path("second-admin.sock"),
		"--health", "", "--node-id", "e2e-second", "--node-cluster", "e2e"}, flags...)...)
	w.check(err)
	w.Cleanup(p.Kill)
	return p
}

// Two agents of a role publish to a file server over HTTPS, and a new pod reads from there.
func TestASeedOnAFileServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, xdstest.SotW, xdstest.Delta)
	private, public := w.seedKeys()
	files := &fileServer{}
	server := httptest.NewTLSServer(files)
	t.Cleanup(server.Close)
	ca, token := w.path("ca.pem"), w.path("token")
	w.check(os.WriteFile(token, []byte("sesame\n"), 0o600))
	w.check(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	url := server.URL + "/seeds/web"
	access := []string{"--seed-ca", ca, "--seed-token-file", token}
	w.start(append([]string{"--seed-publish", url, "--seed-publish-every", "1h", "--seed-key", private}, access...)...)
	w.check(testbed.Eventually(limit, func() error {
		if n := files.count(); n != 1 {
			return fmt.Errorf("published %d times", n)
		}
		return nil
	}))
	// A second agent sees that it is young.
	second := w.secondAgent(append([]string{"--seed-publish", url, "--seed-publish-every", "1h", "--seed-key", private}, access...)...)
	w.check(testbed.Eventually(limit, func() error {
		var status admin.Status
		_, out := run(t, "status", "-o", "json", "--admin", "unix:"+w.path("second-admin.sock"))
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return err
		}
		if p := status.Publishing; p == nil || p.There.IsZero() || p.Error != "" {
			return fmt.Errorf("it knows %+v", p)
		}
		return nil
	}))
	if n := files.count(); n != 1 {
		t.Errorf("published %d times", n)
	}
	w.check(second.Stop(limit))

	w.cp.Stop()
	w.newPod("pod-2", append([]string{"--seed", url, "--seed-trust", public}, access...)...)
	w.serves("v1")
	w.check(os.WriteFile(token, []byte("wrong\n"), 0o600))
	w.newPod("pod-3", append([]string{"--seed", url, "--seed-trust", public}, access...)...)
	w.says([]string{"status"}, "the server answered 403 Forbidden", "who are you?")
	w.check(os.WriteFile(token, []byte("sesame\n"), 0o600))
	w.serves("v1")
}
