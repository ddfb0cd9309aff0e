package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Set, the test binary is the program, or a program that does not end by itself.
const beProgram = "TEST_BE_HOLDFAST"

func TestMain(m *testing.M) {
	switch os.Getenv(beProgram) {
	case "main":
		main()
	case "stuck":
		ctx, cancel := context.WithCancel(context.Background())
		hurry := make(chan struct{})
		if len(os.Args) > 1 { // it can be hurried
			go func() {
				<-hurry
				_, _ = os.Stderr.WriteString("hurried\n")
			}()
		}
		stopOnSignal(cancel, hurry, time.Minute)
		_, _ = os.Stderr.WriteString("running\n")
		<-ctx.Done()
		_, _ = os.Stderr.WriteString("ending\n")
		time.Sleep(time.Minute)
	default:
		os.Exit(m.Run())
	}
}

// ran is what a command line came to.
type ran struct {
	code        int
	out, errors string
}

func call(t *testing.T, environ []string, args ...string) ran {
	t.Helper()
	var out, errors strings.Builder
	// Whatever would run for long ends at once.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code := execute(ctx, process{stdout: &out, stderr: &errors, environ: environ}, args)
	return ran{code, out.String(), errors.String()}
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
