package etcd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// The holdfast-mesh under test and that of the last release are a fleet with one store, and each reads what the other has
// written: documents and Secrets in etcd, the records of replicas, and the copy of the documents in a state directory, from which
// a server starts while etcd is away.
func TestVersionsShareAStore(t *testing.T) {
	testbed.Long(t)
	released, _, err := testbed.Released(envoytest.Root(t), "holdfast-mesh")
	if err != nil {
		t.Skip(err)
	}
	for name, programs := range map[string][2]string{"upgrade": {released, meshBinary(t)}, "downgrade": {meshBinary(t), released}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testVersionsShareAStore(t, programs[0], programs[1])
		})
	}
}

func testVersionsShareAStore(t *testing.T, from, to string) {
	f := &fleet{store: newStore(t)}
	f.client = f.open(etcd.Options{})
	f.port, f.v1, f.v2 = f.FreePort(), f.Backend("v1"), f.Backend("v2")
	key := f.file("secret.key", strings.Repeat("k", 32))
	document := func(backend string) string {
		_, port, err := net.SplitHostPort(backend)
		f.Check(err)
		return f.file("documents.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %s}}]
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: shop}
stringData: {token: PRIVATE}
`, served, f.port, port))
	}
	does := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", program, args, err, out)
		}
		return string(out)
	}
	store := []string{"--etcd", f.url(), "--secret-key-file", key}
	apply := func(program, backend string) string {
		t.Helper()
		return does(program, append([]string{"apply", "-f", document(backend)}, store...)...)
	}
	if out := apply(from, f.v1); strings.Count(out, "created") != 2 {
		t.Fatalf("applied: %s", out)
	}
	if out := apply(to, f.v1); strings.Count(out, "unchanged") != 2 {
		t.Errorf("the other version takes the same documents for others: %s", out)
	}
	one := f.serverOf(from, "one", append(store, "--state-dir", f.Path("state-one"))...)
	two := f.serverOf(to, "two", append(store, "--state-dir", f.Path("state-two"))...)
	agent := f.StartAgent("agent", "--upstream", one.xds, "--upstream", two.xds, "--upstream-plaintext")
	agent.Envoy("envoy", "delta", as("web-1"))
	f.answers("v1")
	for _, program := range []string{from, to} {
		for _, s := range []*server{one, two} {
			commands := map[string]string{"replicas": "SERVING", "proxies": "web-1", "get ServiceEntry shop/web -o yaml": served}
			if s == one {
				commands[fmt.Sprintf("explain --proxy web-1 %s:%d", served, f.port)] = "127.0.0.1"
			}
			for command, want := range commands {
				f.Eventually(func() error { // replicas tell each other of their proxies now and then
					out, err := exec.Command(program, append(strings.Fields(command), "--admin", s.admin)...).CombinedOutput()
					if err != nil || !strings.Contains(string(out), want) || command == "replicas" && strings.Count(string(out), want) != 2 {
						return fmt.Errorf("%s %s at %s: %w\n%s", program, command, s.name, err, out)
					}
					return nil
				})
			}
		}
	}
	apply(to, f.v2)
	f.answers("v2")
	apply(from, f.v1)
	f.answers("v1")

	// Without etcd, each starts from what the other has kept.
	stop := f.load()
	f.stop()
	for _, s := range []*server{one, two} {
		s.args[0] = map[string]string{from: to, to: from}[s.args[0]]
		s.restart()
	}
	stop()
	f.DirectEnvoy("new", "sotw", two.xds, as("web-2"))
	f.answers("v1")
	for _, s := range []*server{one, two} {
		if entries, err := os.ReadDir(f.Path("state-" + s.name)); err != nil || strings.Contains(fmt.Sprint(entries), "damaged") {
			t.Errorf("the state of %s: %v, %v", s.name, entries, err)
		}
	}
	f.store.start("data")
	apply(to, f.v2)
	f.answers("v2")
}

// serverOf starts a version of holdfast-mesh, and waits until it serves.
func (f *fleet) serverOf(program, name string, flags ...string) *server {
	f.Helper()
	s := f.prepared(name, flags...)
	s.args[0] = program
	s.start()
	return s
}
