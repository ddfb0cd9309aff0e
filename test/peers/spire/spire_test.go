package spire

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// version is that of SPIRE, the same as SPIRE_VERSION of the Makefile.
const version = "1.13.0"

// domain is the trust domain, and node the identity of the SPIRE agent, which is the parent of all entries.
const (
	domain = "spiffe://example.org"
	node   = domain + "/node"
)

// limit bounds a wait for something that SPIRE does at its next synchronisation (a second later, or when a certificate has
// lived for half its time), or holdfast when it has connected again.
const limit = 60 * time.Second

// mesh is a SPIRE server and a SPIRE agent, with join tokens, a database in a file, and workloads that are known by the
// user they run as.
type mesh struct {
	*rig.Rig
	server, agent *testbed.Process
	// api and socket are where the server is administrated, and the Workload API.
	api, socket string
	// token is what the agent attests itself with at its first start.
	token string
}

// newMesh starts both. caTTL is how long an authority of the server signs.
func newMesh(r *rig.Rig, caTTL time.Duration) *mesh {
	r.Helper()
	m := &mesh{Rig: r, api: r.Path("spire-server.sock"), socket: r.Path("spire-agent.sock")}
	port := r.FreePort()
	m.write("server.conf", fmt.Sprintf(`
server {
  bind_address = "127.0.0.1"
  bind_port = "%d"
  socket_path = %q
  trust_domain = "example.org"
  data_dir = %q
  log_level = "INFO"
  ca_ttl = %q
}
plugins {
  DataStore "sql" { plugin_data { database_type = "sqlite3", connection_string = %q } }
  NodeAttestor "join_token" { plugin_data {} }
  KeyManager "disk" { plugin_data { keys_path = %q } }
}
`, port, m.api, m.Path("server"), caTTL, m.Path("server.sqlite3"), m.Path("server-keys.json")))
	m.write("agent.conf", fmt.Sprintf(`
agent {
  data_dir = %q
  log_level = "INFO"
  server_address = "127.0.0.1"
  server_port = "%d"
  socket_path = %q
  trust_bundle_path = %q
  trust_domain = "example.org"
  experimental { sync_interval = "1s" }
}
plugins {
  NodeAttestor "join_token" { plugin_data {} }
  KeyManager "disk" { plugin_data { directory = %q } }
  WorkloadAttestor "unix" { plugin_data {} }
}
`, m.Path("agent"), port, m.socket, m.Path("bundle.pem"), m.Path("agent")))
	m.Check(os.MkdirAll(m.Path("agent"), 0o700))

	m.startServer()
	m.write("bundle.pem", m.ask("bundle", "show"))
	token := regexp.MustCompile(`Token: (\S+)`).FindStringSubmatch(m.ask("token", "generate", "-spiffeID", node))
	if token == nil {
		m.Fatal("the SPIRE server gives no join token")
	}
	m.token = token[1]
	m.startAgent()
	return m
}

func (m *mesh) write(name, content string) {
	m.Helper()
	m.Check(os.WriteFile(m.Path(name), []byte(content), 0o600))
}

// program returns the path of spire-server or spire-agent, which `make spire` builds.
func (m *mesh) program(name string) string {
	m.Helper()
	path := filepath.Join(os.Getenv("SPIRE"), name)
	if _, err := exec.LookPath(path); err != nil || !filepath.IsAbs(path) {
		m.Fatalf("this test needs SPIRE (%v): run `make peers`, or set SPIRE to the directory that `make spire` names", err)
	}
	return path
}

// startServer starts the server, with what it had in its database, and waits until it can be asked.
func (m *mesh) startServer() {
	m.Helper()
	m.server = m.Start("spire-server", m.program("spire-server"), "run", "-config", m.Path("server.conf"))
	m.Check(m.server.Wait(limit, func() error { return m.healthy("spire-server", m.api) }))
}

// startAgent starts the agent, with what it had in its directory, and waits until the Workload API is served.
func (m *mesh) startAgent() {
	m.Helper()
	m.agent = m.Start("spire-agent", m.program("spire-agent"), "run", "-config", m.Path("agent.conf"), "-joinToken", m.token)
	m.Check(m.agent.Wait(limit, func() error { return m.healthy("spire-agent", m.socket) }))
}

func (m *mesh) healthy(name, socket string) error {
	time.Sleep(100 * time.Millisecond) // asking is a process
	out, err := exec.Command(m.program(name), "healthcheck", "-socketPath", socket).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// ask runs a command of the server.
func (m *mesh) ask(command, verb string, flags ...string) string {
	m.Helper()
	out, err := exec.Command(m.program("spire-server"), append([]string{command, verb, "-socketPath", m.api}, flags...)...).CombinedOutput()
	if err != nil {
		m.Fatalf("spire-server %s %s: %v\n%s", command, verb, err, out)
	}
	return string(out)
}

// register makes an entry for a SPIFFE ID whose SVIDs live for ttl, for every process of this user. It returns the entry.
func (m *mesh) register(id string, ttl time.Duration) (entry string) {
	m.Helper()
	out := m.ask("entry", "create", "-parentID", node, "-spiffeID", id, "-selector", "unix:uid:"+strconv.Itoa(os.Getuid()),
		"-x509SVIDTTL", strconv.Itoa(int(ttl.Seconds())))
	found := regexp.MustCompile(`Entry ID\s*: (\S+)`).FindStringSubmatch(out)
	if found == nil {
		m.Fatalf("no entry was made:\n%s", out)
	}
	return found[1]
}

// unregister deletes an entry.
func (m *mesh) unregister(entry string) {
	m.Helper()
	m.ask("entry", "delete", "-entryID", entry)
}

func TestTheVersionIsThatOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(envoytest.Root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`(?m)^SPIRE_VERSION\s*\?=\s*(\S+)$`).FindSubmatch(makefile)
	if pinned == nil || string(pinned[1]) != version {
		t.Errorf("the Makefile says %q, this package %q", pinned, version)
	}
}
