package release

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/testbed/tutorial"
)

// The commands of docs/getting-started.md for a machine are run there one after the other, and print what the page says.
func TestTheFirstStepsOnAMachinePrintWhatThePageSays(t *testing.T) {
	blocks, err := tutorial.Read(filepath.Join(envoytest.Root(t), "docs", "getting-started.md"), "## On a machine with systemd")
	if err != nil {
		t.Fatal(err)
	}
	if len(blocks) < 12 || !strings.Contains(blocks[0].Commands, "apt install -y ./holdfast_"+strings.TrimPrefix(version, "v")) {
		t.Fatalf("the page has %d blocks, and the first is %q", len(blocks), blocks[0].Commands)
	}
	dir := debian(t)
	install(t, dir, debs(t)[2:]...)
	run(t, "install", "-m", "0755", envoytest.Binary(t), filepath.Join(dir, "usr/local/bin/envoy"))
	// The machine has no network, from which apt would get what the packages recommend.
	write(t, filepath.Join(dir, "etc/apt/apt.conf.d/recommends"), `APT::Install-Recommends "false";`)
	m := start(t, dir)
	for _, b := range blocks {
		once := func() error {
			got, err := m.try("bash", "-c", b.Commands)
			switch {
			case err != nil:
				return fmt.Errorf("the commands\n%send with %w and print\n%s", b.Commands, err, got)
			case b.Prints && !tutorial.Matches(got, b.Want), !b.Prints && got != "":
				return fmt.Errorf("the commands\n%sprint\n%swant\n%s", b.Commands, got, b.Want)
			}
			return nil
		}
		if b.Again {
			m.eventually(once)
		} else if err := once(); err != nil {
			m.Fatalf("%v\n%s", err, m.journal())
		}
	}
	if left := m.does("find", "/etc", "/var/lib", "/usr", "(", "-path", "/var/lib/dpkg", "-o", "-path", "/var/lib/apt", ")", "-prune", "-o", "-name", "*holdfast*", "-print"); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
	if left := m.processes("holdfast", "envoy", "holdfast-mesh"); left != "" {
		t.Errorf("still running: %s", left)
	}
}
