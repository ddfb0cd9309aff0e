package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asCommand says that the test binary is holdfast-mesh.
const asCommand = "HOLDFAST_MESH_TEST_COMMAND"

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
