package release

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// settings are a change that an operator makes to the file of the package.
const settings = `
upstream: ["127.0.0.1:15010"]
upstream-plaintext: true
state-dir: /var/lib/holdfast
node-id: web-1
node-cluster: web
node-metadata: ["TYPE=sidecar", "NAMESPACE=demo", "INTERCEPTION_MODE=NONE", 'LABELS:={"app": "web"}']
out: /run/holdfast/envoy.yaml
drain-min: 1s
drain-timeout: 2s
`

// documents are a service whose route answers itself.
const documents = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: hello, namespace: demo}
spec:
  hosts: [hello.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8000, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: 8081}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: hello, namespace: demo}
spec:
  hosts: [hello.internal]
  http: [{directResponse: {status: 200, body: {string: hello}}}]
`

// debs are the packages of both versions.
func debs(t testing.TB) []string {
	t.Helper()
	return []string{
		filepath.Join(distBefore(t), "holdfast_0.1.0-rc.1_amd64.deb"), filepath.Join(distBefore(t), "holdfast-mesh_0.1.0-rc.1_amd64.deb"),
		filepath.Join(dist(t), "holdfast_0.1.0_amd64.deb"), filepath.Join(dist(t), "holdfast-mesh_0.1.0_amd64.deb"),
	}
}

func TestAPreReleaseIsOlderForDpkg(t *testing.T) {
	all := debs(t)
	field := func(file string) string { return strings.TrimSpace(run(t, "dpkg-deb", "--field", file, "Version")) }
	one, two := field(all[0]), field(all[2])
	if one != "0.1.0~rc.1" || two != "0.1.0" {
		t.Errorf("versions %s and %s", one, two)
	}
	run(t, "dpkg", "--compare-versions", one, "lt", two)
}

// A machine with systemd: installed, configured, upgraded under traffic, the control plane lost, removed, purged.
func TestTheDebianPackagesInAMachineWithSystemd(t *testing.T) {
	dir := debian(t)
	install(t, dir, debs(t)...)
	run(t, "install", "-m", "0755", envoytest.Binary(t), filepath.Join(dir, "usr/local/bin/envoy"))
	m := start(t, dir)

	m.does("dpkg", "-i", "/root/holdfast_0.1.0-rc.1_amd64.deb", "/root/holdfast-mesh_0.1.0-rc.1_amd64.deb")
	for _, unit := range []string{"holdfast.service", "holdfast@a.service", "holdfast-envoy.service", "holdfast-mesh.service"} {
		if state, _ := m.try("systemctl", "is-enabled", unit); strings.TrimSpace(state) != "disabled" {
			t.Errorf("%s is %s after the installation", unit, state)
		}
		m.active(unit, "inactive")
	}
	if out := m.does("id", "holdfast") + m.does("id", "holdfast-mesh") + m.does("id", "envoy"); strings.Count(out, "gid=") != 3 {
		t.Errorf("users: %s", out)
	}
	if out := m.does("stat", "-c", "%U:%G %a", "/var/lib/holdfast", "/var/lib/holdfast-mesh"); out != "holdfast:holdfast 700\nholdfast-mesh:holdfast-mesh 700\n" {
		t.Errorf("directories of state: %s", out)
	}
	out, err := m.try("systemd-analyze", "verify", "holdfast.service", "holdfast@a.service", "holdfast-envoy.service", "holdfast-mesh.service")
	if err != nil || strings.Contains(out, "holdfast") {
		t.Errorf("systemd-analyze verify: %v: %s", err, out)
	}

	// Two services and an Envoy.
	write(t, filepath.Join(dir, "etc/holdfast/holdfast.yaml"), settings)
	write(t, filepath.Join(dir, "etc/holdfast-mesh/documents/hello.yaml"), documents)
	m.does("systemctl", "enable", "--now", "holdfast-mesh", "holdfast@a", "holdfast-envoy")
	m.eventually(m.get)
	if out := m.does("holdfast", "status", "--admin", "unix:/run/holdfast/admin.sock"); !strings.Contains(out, "v0.1.0-rc.1") {
		t.Errorf("status: %s", out)
	}

	// The upgrade: the other instance takes over, Envoy stays, and no request fails.
	envoy, mesh := m.property("holdfast-envoy", "MainPID"), m.property("holdfast-mesh", "MainPID")
	stop := m.traffic()
	said := m.does("dpkg", "-i", "/root/holdfast_0.1.0_amd64.deb", "/root/holdfast-mesh_0.1.0_amd64.deb")
	m.active("holdfast@a", "inactive")
	m.active("holdfast@b", "active")
	m.active("holdfast-mesh", "active")
	if n := stop(); n < 5 {
		t.Errorf("only %d requests", n)
	}
	if !strings.Contains(said, "holdfast@b took over from holdfast@a") {
		t.Errorf("the upgrade says %s", said)
	}
	if got := m.property("holdfast-envoy", "MainPID"); got != envoy {
		t.Errorf("Envoy was restarted: %s, %s", envoy, got)
	}
	if got := m.property("holdfast-mesh", "MainPID"); got == mesh {
		t.Error("holdfast-mesh was not restarted")
	}
	if a, b := m.property("holdfast@a", "UnitFileState"), m.property("holdfast@b", "UnitFileState"); a != "disabled" || b != "enabled" {
		t.Errorf("holdfast@a is %s, holdfast@b %s", a, b)
	}
	if out := m.does("holdfast", "status", "--admin", "unix:/run/holdfast/admin.sock"); strings.Contains(out, "rc.1") || !strings.Contains(out, "v0.1.0") {
		t.Errorf("status: %s", out)
	}
	if got := read(t, dir, "etc/holdfast/holdfast.yaml"); got != settings {
		t.Errorf("the file of settings was replaced by\n%s", got)
	}

	// Without a control plane a new agent and a new Envoy serve what there was.
	m.does("systemctl", "stop", "holdfast-mesh")
	m.does("systemctl", "restart", "holdfast@b", "holdfast-envoy")
	m.eventually(m.get)

	// The other shape, Envoy as child, which an upgrade leaves alone. (Installed again, a version is an upgrade for dpkg.)
	m.does("systemctl", "disable", "--now", "holdfast-envoy", "holdfast@b")
	m.does("systemctl", "enable", "--now", "holdfast")
	m.eventually(m.get)
	agent := m.property("holdfast", "MainPID")
	if said := m.does("dpkg", "-i", "/root/holdfast_0.1.0_amd64.deb"); !strings.Contains(said, "systemctl restart holdfast") {
		t.Errorf("the upgrade says %s", said)
	}
	if got := m.property("holdfast", "MainPID"); got != agent {
		t.Error("the agent with Envoy as its child was restarted")
	}

	if m.processes("holdfast", "envoy") == "" {
		t.Error("neither holdfast nor Envoy seems to run")
	}
	m.does("dpkg", "--remove", "holdfast", "holdfast-mesh")
	if out := m.processes("holdfast", "envoy", "holdfast-mesh"); out != "" {
		t.Errorf("still running: %s", out)
	}
	if out := m.does("find", "/etc/systemd/system", "-lname", "*holdfast*"); out != "" {
		t.Errorf("still enabled: %s", out)
	}
	if got := read(t, dir, "etc/holdfast/holdfast.yaml"); got != settings {
		t.Errorf("the file of settings is %s", got)
	}
	if kept, err := os.ReadDir(filepath.Join(dir, "var/lib/holdfast")); err != nil || len(kept) == 0 {
		t.Errorf("the state is %v, %v", kept, err)
	}
	m.does("dpkg", "--purge", "holdfast", "holdfast-mesh")
	for _, name := range []string{"etc/holdfast", "var/lib/holdfast", "var/lib/holdfast-mesh", "etc/holdfast-mesh/holdfast-mesh.env", "usr/bin/holdfast"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("/%s is left: %v", name, err)
		}
	}
	if read(t, dir, "etc/holdfast-mesh/documents/hello.yaml") != documents {
		t.Error("a document of the operator was changed")
	}
}

// A container or an image that is being built has no systemd: no unit is started, and users are made by useradd.
func TestTheDebianPackagesInAChrootWithoutSystemd(t *testing.T) {
	dir := debian(t)
	install(t, dir, debs(t)...)
	for _, name := range []string{"systemctl", "systemd-sysusers", "systemd-tmpfiles"} {
		for _, bin := range []string{"bin", "usr/bin"} {
			if err := os.Remove(filepath.Join(dir, bin, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	in := func(args ...string) string {
		return run(t, "chroot", append([]string{dir, "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}, args...)...)
	}
	in("dpkg", "-i", "/root/holdfast_0.1.0-rc.1_amd64.deb", "/root/holdfast-mesh_0.1.0-rc.1_amd64.deb")
	write(t, filepath.Join(dir, "etc/holdfast/holdfast.yaml"), settings)
	in("dpkg", "-i", "/root/holdfast_0.1.0_amd64.deb", "/root/holdfast-mesh_0.1.0_amd64.deb")
	if got := read(t, dir, "etc/holdfast/holdfast.yaml"); got != settings {
		t.Errorf("the file of settings is %s", got)
	}
	if out := in("stat", "-c", "%U:%G %a", "/var/lib/holdfast"); out != "holdfast:holdfast 700\n" {
		t.Errorf("state: %s", out)
	}
	if out := in("getent", "passwd", "holdfast", "envoy", "holdfast-mesh"); strings.Count(out, "/usr/sbin/nologin") != 3 {
		t.Errorf("users: %s", out)
	}
	if out := in("holdfast", "version"); !strings.Contains(out, version) {
		t.Errorf("version: %s", out)
	}
	// What ExecStartPre of the unit runs, as its user.
	pre := regexp.MustCompile(`(?m)^ExecStartPre=(.*)$`).FindStringSubmatch(read(t, dir, "usr/lib/systemd/system/holdfast.service"))
	in("install", "-d", "-o", "holdfast", "-g", "holdfast", "/run/holdfast")
	in(append([]string{"setpriv", "--reuid=holdfast", "--regid=holdfast", "--clear-groups", "env", "HOLDFAST_CONFIG=/etc/holdfast/holdfast.yaml"}, strings.Fields(pre[1])...)...)
	if text := read(t, dir, "run/holdfast/envoy.yaml"); !strings.Contains(text, "web-1") {
		t.Errorf("the bootstrap is %s", text)
	}
	in("dpkg", "--remove", "holdfast", "holdfast-mesh")
	if _, err := os.Stat(filepath.Join(dir, "var/lib/holdfast")); err != nil {
		t.Errorf("the state is gone: %v", err)
	}
	in("dpkg", "--purge", "holdfast", "holdfast-mesh")
	if out, err := exec.Command("find", dir+"/etc", dir+"/var/lib", dir+"/usr", "-path", dir+"/var/lib/dpkg", "-prune", "-o", "-name", "*holdfast*", "-print").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("left: %v\n%s", err, out)
	}
}
