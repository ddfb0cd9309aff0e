package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/manualtest"
)

var update = flag.Bool("update", false, "write the manual pages in docs/man")

// The manual pages in docs/man are what the commands say of themselves.
func TestTheManualPagesAreThoseOfTheCommands(t *testing.T) {
	manualtest.Check(t, newRoot(process{stdout: io.Discard, stderr: io.Discard}), 20, *update)
}

func TestReadme_listsTheCommands(t *testing.T) {
	manualtest.CheckReadme(t, newRoot(process{stdout: io.Discard, stderr: io.Discard}))
}

// docs/run.md names flags of the agent, or of the commands that it names, and says that each flag of the agent has a variable.
func TestRunPage_namesFlagsThatThereAre(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(envoytest.Root(t), "docs", "run.md"))
	if err != nil {
		t.Fatal(err)
	}
	root := newRoot(process{stdout: io.Discard, stderr: io.Discard})
	there := make(map[string]bool)
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			there["--"+f.Name] = true
			if c.Name() == "run" && cli.OnCommandLineOnly(f) && f.Name != "help" && f.Name != configFlag {
				t.Errorf("run --%s has no variable", f.Name)
			}
		})
	}
	named := regexp.MustCompile(`--[a-z][a-z-]*`).FindAllString(string(text), -1)
	if len(named) < 25 {
		t.Errorf("only %d flags are named", len(named))
	}
	for _, name := range named {
		if !there[name] {
			t.Errorf("docs/run.md names %s, which no command has", name)
		}
	}
}
