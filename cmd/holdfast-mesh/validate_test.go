package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/cli"
)

// asCommand says that the test binary is holdfast-mesh.
const asCommand = "TEST_AS_HOLDFAST_MESH"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestSignalsEndValidate(t *testing.T) {
	// The problems are more than a pipe holds, so that validate waits for its reader.
	file := filepath.Join(t.TempDir(), "f.yaml")
	var documents strings.Builder
	for i := range 3000 {
		_, _ = fmt.Fprintf(&documents, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d%d}\nspec: {host: '', unknown: 1}\n---\n", i)
	}
	if err := os.WriteFile(file, []byte(documents.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			c := exec.Command(self, "validate", file)
			c.Env = append(os.Environ(), asCommand+"=1")
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReaderSize(out, 16).ReadString('\n'); err != nil {
				t.Errorf("no problem is printed: %v", err)
			}
			if err := c.Process.Signal(sig); err != nil {
				t.Error(err)
			}
			kill := time.AfterFunc(30*time.Second, func() { _ = c.Process.Kill() })
			defer kill.Stop()
			state, err := c.Process.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if status := state.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != sig {
				t.Errorf("it ended with %v, want the signal", state)
			}
		})
	}
}

// validated runs validate on a text of standard input.
func validated(t *testing.T, text string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRoot(&out, &errs)
	root.SetIn(strings.NewReader(text))
	root.SetArgs(append([]string{"validate"}, args...))
	code = cli.Exit(&errs, "holdfast-mesh", root.ExecuteContext(t.Context()))
	return code, out.String(), errs.String()
}

func TestValidate_ReadsStandardInputAndSaysItForPrograms(t *testing.T) {
	const route = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: vs, namespace: shop%s}\nspec:\n  hosts: [web.test]\n  http: [{route: [{destination: {host: web.test}}]}]\n"
	warned, suppressed := fmt.Sprintf(route, ""), fmt.Sprintf(route, ", annotations: {holdfast.dev/suppress: HM0201}")
	file := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(file, []byte(warned), 0o600); err != nil {
		t.Fatal(err)
	}
	const told = "holdfast-mesh: warnings that are suppressed: 1 (--show-suppressed shows them)\n"
	const message = `standard input:6: VirtualService shop/vs: spec.http[0].route[0].destination.host: warning: there is no service "web.test" [HM0201]`
	for name, tc := range map[string]struct {
		text, args     string
		code           int
		stdout, stderr string
	}{
		"warnings":              {warned, "-f -", 0, message + "\n", ""},
		"an argument":           {warned, "-", 0, message + "\n", ""},
		"a file":                {"", "-f " + file, 0, strings.Replace(message, "standard input", file, 1) + "\n", ""},
		"strict":                {warned, "-f - --strict", 1, message + "\n", ""},
		"suppressed":            {suppressed, "-f - --strict", 0, "", told},
		"suppressed and shown":  {suppressed, "-f - --strict --show-suppressed", 0, message + " (suppressed)\n", told},
		"suppressed by a flag":  {warned, "-f - --strict --suppress HM0201=VirtualService/shop/*", 0, "", told},
		"suppressed elsewhere":  {warned, "-f - --strict --suppress HM0201=VirtualService/other/*", 1, message + "\n", ""},
		"nothing, for programs": {suppressed, "-f - -o json", 0, "[]\n", told},
		"no such code":          {warned, "-f - --suppress HM9999", 2, "", "holdfast-mesh: --suppress \"HM9999\": \"HM9999\" is no code of a warning\n"},
		"no such format":        {warned, "-f - -o xml", 2, "", "holdfast-mesh: --output: \"xml\": want text or json\n"},
		"nothing to check":      {"", "", 2, "", "holdfast-mesh: no directory or file to check (- is standard input), and no --etcd\n"},
		"an error, for programs": {strings.Replace(warned, "[{", "[{timeout: -1s, ", 1), "-f - -o json", 1, `[
  {
    "code": "HM0001",
    "severity": "error",
    "file": "standard input",
    "line": 6,
    "kind": "networking.istio.io/VirtualService",
    "namespace": "shop",
    "name": "vs",
    "field": "spec.http[0].timeout",
    "message": "must be a duration of at least 1ms, and is -1s"
  }
]
`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := validated(t, tc.text, strings.Fields(tc.args)...)
			if code != tc.code || stdout != tc.stdout || stderr != tc.stderr {
				t.Errorf("%d, want %d\n%s\nwant\n%s\n%s\nwant\n%s", code, tc.code, stdout, tc.stdout, stderr, tc.stderr)
			}
		})
	}
}
