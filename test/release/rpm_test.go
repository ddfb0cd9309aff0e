package release

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The packages are installed into a root by --root. It is a Debian, so --nodeps: /usr/sbin/useradd is there, but rpm has not
// installed it.
func TestTheRPMsAreInstalledUpgradedAndErased(t *testing.T) {
	dir := debian(t)
	rpm := func(args ...string) string {
		return run(t, "rpm", append([]string{"--root", dir}, args...)...)
	}
	older := []string{filepath.Join(distBefore(t), "holdfast-0.1.0-rc.1-1.x86_64.rpm"), filepath.Join(distBefore(t), "holdfast-mesh-0.1.0-rc.1-1.x86_64.rpm")}
	newer := []string{filepath.Join(dist(t), "holdfast-0.1.0-1.x86_64.rpm"), filepath.Join(dist(t), "holdfast-mesh-0.1.0-1.x86_64.rpm")}
	run(t, "rpm", append([]string{"--checksig", "--nosignature"}, append(older, newer...)...)...)
	rpm(append([]string{"--nodeps", "--noplugins", "--install"}, older...)...)
	if out := rpm("--query", "--all", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH} %{LICENSE}\n"); !strings.Contains(out, "holdfast 0.1.0~rc.1-1 x86_64 Apache-2.0\n") || !strings.Contains(out, "holdfast-mesh 0.1.0~rc.1-1 x86_64") {
		t.Errorf("installed: %s", out)
	}
	if out := run(t, "chroot", dir, "stat", "-c", "%U:%G %a", "/var/lib/holdfast"); out != "holdfast:holdfast 700\n" {
		t.Errorf("state: %s", out)
	}
	write(t, filepath.Join(dir, "etc/holdfast/holdfast.yaml"), settings)
	write(t, filepath.Join(dir, "var/lib/holdfast/kept"), "state")
	rpm(append([]string{"--nodeps", "--noplugins", "--upgrade"}, newer...)...)
	if out := run(t, "chroot", dir, "holdfast", "version"); !strings.Contains(out, version) || strings.Contains(out, "rc.1") {
		t.Errorf("version: %s", out)
	}
	if got := read(t, dir, "etc/holdfast/holdfast.yaml"); got != settings {
		t.Errorf("the file of settings is %s", got)
	}
	if out, err := exec.Command("rpm", append([]string{"--root", dir, "--nodeps", "--noplugins", "--upgrade"}, older...)...).CombinedOutput(); err == nil || !strings.Contains(string(out), "newer than") {
		t.Errorf("the older version was installed over the newer: %v\n%s", err, out)
	}
	rpm("--verify", "--nodeps", "--nofiles", "holdfast")
	rpm("--nodeps", "--noplugins", "--erase", "holdfast", "holdfast-mesh")
	if _, err := os.Stat(filepath.Join(dir, "usr/bin/holdfast")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program is left: %v", err)
	}
	if read(t, dir, "var/lib/holdfast/kept") != "state" || read(t, dir, "etc/holdfast/holdfast.yaml.rpmsave") != settings {
		t.Error("state or settings are gone")
	}
}
