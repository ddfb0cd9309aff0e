package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

func TestExitCodes(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, bad := file("good.yaml", "upstream: xds.example:443\n"), file("bad.yaml", "upstrem: xds.example:443\n")
	kubeconfig := file("kubeconfig", "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n")
	serve := []string{"serve", "--namespace=holdfast", "--kubeconfig=" + kubeconfig, "--settings"}
	for _, row := range []struct {
		name string
		args []string
		code int
		said string
	}{
		{"version", []string{"version"}, cli.ExitOK, "holdfast-injector "},
		{"no command", nil, cli.ExitUsage, "no command"},
		{"an unknown flag", []string{"serve", "--setings=a"}, cli.ExitUsage, "unknown flag: --setings, did you mean --settings? (`holdfast-injector serve --help` lists the flags)"},
		{"valid settings", []string{"check", good}, cli.ExitOK, "valid"},
		{"settings that are not", []string{"check", bad}, cli.ExitFailed, "bad.yaml: yaml: unmarshal errors:\n  line 1: field upstrem not found"},
		{"no namespace", []string{"serve", "--settings", good}, cli.ExitUsage, "--namespace is missing"},
		{"no cluster", []string{"serve", "--settings", good, "--namespace=holdfast"}, cli.ExitFailed, "--kubeconfig"},
		{"no settings", serve[:3], cli.ExitUsage, "--settings is missing"},
		{"another word", append(serve, good, "--on-reject=ignore"), cli.ExitUsage, "want allow or deny"},
		{"no level", append(serve, good, "--log-level=loud"), cli.ExitUsage, "--log-level"},
		{"no format", append(serve, good, "--log-format=xml"), cli.ExitUsage, "--log-format"},
		{"wrong settings", append(serve, bad), cli.ExitFailed, "field upstrem not found"},
		{"no file", append(serve, filepath.Join(dir, "none")), cli.ExitFailed, "--settings"},
		{"no address", append(serve, good, "--listen=127.0.0.1:99999"), cli.ExitFailed, "--listen"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			if code := execute(t.Context(), &out, &out, row.args); code != row.code || !strings.Contains(out.String(), row.said) {
				t.Errorf("%d, want %d:\n%s", code, row.code, out.String())
			}
		})
	}
}

func TestTheDocumentationHasEveryFlag(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(envoytest.Root(t), "docs", "injector.md"))
	if err != nil {
		t.Fatal(err)
	}
	flags := 0
	newServe(io.Discard).Flags().VisitAll(func(f *pflag.Flag) {
		flags++
		if !strings.Contains(string(text), "`--"+f.Name+"`") {
			t.Errorf("docs/injector.md lacks --%s", f.Name)
		}
		if f.DefValue != "" && !strings.HasSuffix(f.Name, "-lifetime") && !strings.Contains(string(text), "`"+f.DefValue+"`") {
			t.Errorf("docs/injector.md lacks the default of --%s, %s", f.Name, f.DefValue)
		}
	})
	if flags < 14 {
		t.Errorf("%d flags", flags)
	}
}
