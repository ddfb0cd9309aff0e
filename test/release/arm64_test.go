package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

const emulator = "qemu-aarch64-static"

// emulated is a script that runs a program of the archive for arm64.
func emulated(t *testing.T, command string) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), command)
	write(t, script, "#!/bin/sh\nexec "+emulator+" '"+filepath.Join(unpacked(t, distARM(t), "linux-arm64"), command)+"' \"$@\"\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

func TestProgramsForARM64SayTheirVersion(t *testing.T) {
	for _, command := range []string{"holdfast", "holdfast-mesh"} {
		if out := run(t, emulated(t, command), "version"); !strings.Contains(out, version) {
			t.Errorf("%s version: %s", command, out)
		}
	}
}

// goTest runs tests of the main module.
func goTest(t *testing.T, env []string, args ...string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"test", "-count=1", "-timeout", "20m"}, args...)...)
	cmd.Dir = envoytest.Root(t)
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "no tests to run") {
		t.Errorf("go test %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// An emulated agent beside a real Envoy: the configuration arrives, the control plane stops, and Envoy, restarted, serves.
func TestAnAgentForARM64KeepsEnvoyConfigured(t *testing.T) {
	tests := "^TestARestartedEnvoyIsServedWithoutTheControlPlane$"
	if !testing.Short() {
		tests = "^(TestARestartedEnvoyIsServedWithoutTheControlPlane|TestAKilledAgentLosesNothing|TestWhatChangedDuringAnOutageArrivesAfterIt)$"
	}
	goTest(t, []string{"HOLDFAST_BIN=" + emulated(t, "holdfast"), "ENVOY=" + envoytest.Binary(t)}, "-run", tests, "./test/e2e")
}

// Unit tests of packages that depend on the architecture most: formats on disk, sums, atomics.
func TestUnitsOnARM64(t *testing.T) {
	packages := []string{"./upstream/session", "./agent/cache"}
	if !testing.Short() {
		packages = append(packages, "./agent/cache/...", "./upstream/...", "./downstream/session/...", "./internal/xds/...", "./mesh/push/...")
	}
	goTest(t, []string{"GOARCH=arm64"}, append([]string{"-trimpath", "-exec", emulator}, packages...)...) // -trimpath: the dependencies are compiled already
	if !testing.Short() {
		// Without those that start themselves as another process, which the kernel does not emulate unless the machine is set up for it.
		const others = "^(TestAFullDiskIsSurvivedAndLeft|TestADiskThatTakesNoWritesIsReadAndSurvived|TestAWriterThatIsKilledLosesNothingThatItReported|TestASecondProcessIsLockedOutUntilTheFirstIsDead|TestADirectoryThatIsNotOursIsRefused)$"
		goTest(t, []string{"GOARCH=arm64"}, "-trimpath", "-exec", emulator, "-skip", others, "./agent/store/...")
	}
}
