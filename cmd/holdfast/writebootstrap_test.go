package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

// runCommand is a command line of `holdfast run` that needs no control plane and listens nowhere but on its socket.
func runCommand(dir string, args ...string) []string {
	return append([]string{"run", "--upstream", "file:" + dir, "--health", "", "--admin", "", "--socket", filepath.Join(dir, "s", "xds.sock")}, args...)
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRunWritesTheBootstrapThatTheCommandBootstrapWrites(t *testing.T) {
	dir := t.TempDir()
	labels := write(t, "labels", "app=\"web\"\n")
	environ := []string{"POD_NAME=web-0", "POD_NAMESPACE=shop", "POD_IP=10.0.0.1", "HOLDFAST_READY_LISTEN=:15021", `HOLDFAST_NODE_METADATA={"a": [1, "x"]}`}
	config := write(t, "holdfast.yaml", "pod-labels: "+labels+"\nstats-tag: ['pod:=web-0']\nruntime: {a: 1}\n")
	flags := []string{"--config", config, "--envoy-admin", "unix:/run/admin.sock", "--heap-limit", "64Mi", "--xds-protocol", "sotw"}
	want, got := filepath.Join(dir, "want.yaml"), filepath.Join(dir, "got.yaml")
	alone := call(t, environ, append([]string{"bootstrap", "--out", want, "--socket", filepath.Join(dir, "s", "xds.sock")}, flags...)...)
	if alone.code != 0 {
		t.Fatalf("%+v", alone)
	}
	if ran := call(t, environ, append(runCommand(dir, "--write-bootstrap", "--out", got, "--out-mode", "0600"), flags...)...); ran.code != 0 || !strings.Contains(ran.errors, "Envoy's bootstrap is written") {
		t.Fatalf("%+v", ran)
	}
	if want, got := content(t, want), content(t, got); got != want || !strings.Contains(got, `cluster: "web.shop"`) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if info, err := os.Stat(got); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// The kubelet restarts the container in place, or, after a restart of the sandbox, with another address.
func TestEveryStartWritesTheBootstrapAgain(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "envoy.yaml")
	start := func(ip string) string {
		t.Helper()
		environ := []string{"POD_NAME=web-0", "POD_NAMESPACE=shop", "POD_IP=" + ip, "HOLDFAST_WRITE_BOOTSTRAP=true", "HOLDFAST_BOOTSTRAP=" + file, "HOLDFAST_NODE_CLUSTER=web"}
		if ran := call(t, environ, runCommand(dir)...); ran.code != 0 {
			t.Fatalf("%+v", ran)
		}
		return content(t, file)
	}
	first := start("10.0.0.1")
	if err := os.WriteFile(file, []byte("node: {id: stale, cluster: stale}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := start("10.0.0.1"); again != first {
		t.Errorf("the same pod: %s\nbefore: %s", again, first)
	}
	if moved := start("10.0.0.2"); moved != strings.ReplaceAll(first, "10.0.0.1", "10.0.0.2") {
		t.Errorf("another address: %s", moved)
	}
}

// standIn is a program that says it is Envoy, and that writes its arguments and the bootstrap that it is given.
func standIn(t *testing.T, dir string) (binary, seen string) {
	t.Helper()
	binary, seen = filepath.Join(dir, "envoy"), filepath.Join(dir, "seen")
	script := `#!/bin/sh
if [ "$1" = --version ]; then echo x > '` + seen + `.asked'; echo "envoy  version: 0123/1.40.0/Clean/RELEASE/BoringSSL"; exit 0; fi
for arg; do if [ "$last" = -c ] || [ "$last" = --config-path ]; then cat "$arg" > '` + seen + `.bootstrap'; fi; last=$arg; done
echo "$@" > '` + seen + `'
`
	if err := os.WriteFile(binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return binary, seen
}

// An agent that may not serve leaves the file to the one that does: that one's Envoy starts with it again.
func TestASecondAgentLeavesTheBootstrapAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "envoy.yaml")
	socket := downstream.SocketConfig{Path: filepath.Join(dir, "s", "xds.sock")}
	first, err := downstream.Listen(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := runCommand(dir, "--write-bootstrap", "--out", file, "--node-id", "second", "--node-cluster", "c")
	if ran := call(t, nil, second...); ran.code != 1 || !strings.Contains(ran.errors, "another holdfast serves this path") || content(t, file) != "first" {
		t.Errorf("%+v\n%s", ran, content(t, file))
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if ran := call(t, nil, second...); ran.code != 0 || !strings.Contains(content(t, file), "second") {
		t.Errorf("%+v\n%s", ran, content(t, file))
	}
}

func TestTheChildStartsWithTheWrittenBootstrap(t *testing.T) {
	dir := t.TempDir()
	binary, seen := standIn(t, dir)
	file := filepath.Join(dir, "envoy.yaml")
	ran := ask(t, runCommand(dir, "--write-bootstrap", "--out", file, "--node-id", "web-1", "--node-cluster", "web", "--start-after", "0s",
		"--envoy-concurrency", "3", "--envoy-log-level", "error", "--", binary, "-l", "debug")...)
	if ran.code != 0 {
		t.Fatalf("%+v", ran)
	}
	if got := content(t, seen); !strings.HasPrefix(got, "-l debug -c "+file+" --concurrency 3 ") || strings.Contains(got, "--log-level") {
		t.Errorf("arguments %s", got)
	}
	if got := content(t, seen+".bootstrap"); got != content(t, file) || !strings.Contains(got, `id: "web-1"`) {
		t.Errorf("bootstrap %s", got)
	}
}

func TestTheArgumentsOfTheChildWin(t *testing.T) {
	o := ownBootstrap{flags: &bootstrapFlags{}}
	o.flags.args.Bootstrap, o.flags.args.Concurrency, o.flags.args.LogLevel, o.flags.args.DrainTime = "/b.yaml", 2, "info", 5e9
	for line, want := range map[string]string{
		"envoy":                                        "envoy -c /b.yaml --concurrency 2 --drain-time-s 5 --log-level info",
		"envoy --config-path=/b.yaml -l off":           "envoy --config-path=/b.yaml -l off --concurrency 2 --drain-time-s 5",
		"envoy -c /b.yaml --concurrency=4":             "envoy -c /b.yaml --concurrency=4 --drain-time-s 5 --log-level info",
		"envoy --drain-time-s 1 --log-level warn -c x": "envoy --drain-time-s 1 --log-level warn -c x --concurrency 2",
	} {
		if got := strings.Join(o.arguments(strings.Fields(line)), " "); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", line, got, want)
		}
	}
	if got := o.arguments(nil); got != nil {
		t.Errorf("no child: %q", got)
	}
}

// Envoy must not start with what an earlier start has left.
func TestNoEnvoyStartsIfTheBootstrapIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	binary, seen := standIn(t, dir)
	inFile := filepath.Join(write(t, "file", ""), "envoy.yaml")
	stale := write(t, "stale.yaml", "node: {id: stale, cluster: stale}\n")
	for _, tc := range []struct {
		name, out string
		args      []string
		code      int
		want      string
	}{
		{"a directory that is a file", inFile, nil, cli.ExitFailed, "holdfast: write " + inFile + ": open "},
		{"a directory that cannot be made", "/proc/nope/envoy.yaml", nil, cli.ExitFailed, "holdfast: write /proc/nope/envoy.yaml: mkdir /proc/nope"},
		{"what is waited for does not come", stale, []string{"--wait-for", "file=/nope", "--wait-timeout", "1ms"}, cli.ExitFailed, "file=/nope: "},
		{"an overlay that does not fit", stale, []string{"--overlay", write(t, "o.yaml", "nope: 1\n")}, cli.ExitUsage, "unknown field \"nope\""},
		{"an Envoy that does not accept it", stale, []string{"--validate", "--envoy-binary", "false"}, cli.ExitFailed, "holdfast: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before, _ := os.ReadFile(tc.out)
			args := append([]string{"--write-bootstrap", "--out", tc.out, "--node-id", "i", "--node-cluster", "c"}, tc.args...)
			ran := ask(t, append(runCommand(dir, args...), "--", binary)...)
			if ran.code != tc.code || !strings.Contains(ran.errors, tc.want) {
				t.Errorf("%+v, want %d, %q", ran, tc.code, tc.want)
			}
			for _, file := range []string{seen, seen + ".asked"} {
				if _, err := os.Stat(file); err == nil {
					t.Errorf("Envoy was run: %s", file)
				}
			}
			if after, _ := os.ReadFile(tc.out); string(after) != string(before) {
				t.Errorf("the file has changed: %s", after)
			}
		})
	}
}

func TestTheAdminOfAnOverlayIsTheOneThatIsDrained(t *testing.T) {
	dir := t.TempDir()
	overlay := write(t, "admin.merge.yaml", "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15999}}}\n")
	f := &runFlags{}
	c := newCommand("run", "", "", "")
	f.add(c)
	f.written.add(c, process{stdout: &strings.Builder{}, stderr: &strings.Builder{}})
	c.finish(process{}, map[string]bool{})
	file := filepath.Join(dir, "envoy.yaml")
	if err := c.ParseFlags([]string{"--write-bootstrap", "--out", file, "--overlay", overlay, "--envoy-admin", "127.0.0.1:15001", "--node-id", "i", "--node-cluster", "c"}); err != nil {
		t.Fatal(err)
	}
	var log logFlags
	f.cfg.Log = log.logger(&strings.Builder{}, nil)
	if _, err := f.writeBootstrap(t.Context(), nil, c); err != nil {
		t.Fatal(err)
	}
	if err := f.completeEnvoy(nil, f.bootstrap, containerLimits(f.cfg.Log)); err != nil || f.cfg.Envoy.Admin != "127.0.0.1:15999" || f.cfg.Node.GetId() != "i" {
		t.Errorf("%v, admin %s, node %v", err, f.cfg.Envoy.Admin, f.cfg.Node)
	}
}

func TestFlagsOfBootstrapCountOnlyWithWriteBootstrap(t *testing.T) {
	dir := t.TempDir()
	// Of another command: neither the variable nor the key matters, not even what is wrong with it.
	wrong, config := []string{"HOLDFAST_HEAP_LIMIT=x"}, write(t, "holdfast.yaml", "wait-timeout: never\n")
	if ran := call(t, wrong, runCommand(dir, "--config", config)...); ran.code != 0 {
		t.Errorf("ignored: %+v", ran)
	}
	with := []string{"--write-bootstrap", "--out", filepath.Join(dir, "envoy.yaml"), "--node-id", "i", "--node-cluster", "c"}
	if ran := call(t, wrong, runCommand(dir, with...)...); ran.code != cli.ExitUsage || !strings.Contains(ran.errors, "HOLDFAST_HEAP_LIMIT: ") {
		t.Errorf("a variable: %+v", ran)
	}
	if ran := call(t, nil, runCommand(dir, append(with, "--config", config)...)...); ran.code != cli.ExitUsage || !strings.Contains(ran.errors, "holdfast.yaml: wait-timeout: ") {
		t.Errorf("a key: %+v", ran)
	}
	if entries, err := os.ReadDir(dir); err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "envoy.yaml" }) {
		t.Errorf("something was written: %v, %v", entries, err)
	}
}

// Otherwise one of the two values would be lost without a word.
func TestAFlagOfBothCommandsIsOfOneKind(t *testing.T) {
	p := process{stdout: &strings.Builder{}, stderr: &strings.Builder{}}
	own, borrowed := make(map[string]*pflag.Flag), 0
	newRun(p).visitFlags(func(f *pflag.Flag) { own[f.Name] = f })
	newBootstrap(p).visitFlags(func(f *pflag.Flag) {
		both := own[f.Name]
		if both == nil {
			borrowed++
			return
		}
		if both.Value.Type() != f.Value.Type() || fmt.Sprintf("%T", both.Value) == "main.pair" && both.DefValue != f.DefValue {
			t.Errorf("--%s is %s by default %q for run, and %s by default %q for bootstrap", f.Name, both.Value.Type(), both.DefValue, f.Value.Type(), f.DefValue)
		}
		delete(own, f.Name)
	})
	for _, name := range []string{"socket", "envoy-admin", "node-id", "node-cluster", "node-locality", "node-metadata"} {
		if own[name] != nil {
			t.Errorf("--%s is not shared", name)
		}
	}
	if borrowed < 40 {
		t.Errorf("only %d flags are borrowed", borrowed)
	}
}

func TestAFlagOfBothCommandsSetsBoth(t *testing.T) {
	type values struct {
		on, borrowed bool
		list         []string
		pairs        map[string]any
	}
	command := func(name string, v *values) (*command, *pflag.FlagSet) {
		c := newCommand(name, "", "", "")
		flags := c.section("flags")
		flags.BoolVar(&v.on, "on", false, "")
		flags.Var(texts(&v.list), "list", "")
		flags.Var(metadata(&v.pairs), "pairs", "")
		return c, flags
	}
	var a, b values
	own, flags := command("own", &a)
	flags.Bool("with", false, "")
	other, flags := command("other", &b)
	flags.BoolVar(&b.borrowed, "borrowed", false, "")
	own.borrow(other, "with")
	own.finish(process{environ: []string{"HOLDFAST_LIST=x,y", `HOLDFAST_PAIRS={"a": [1]}`, "HOLDFAST_BORROWED=true", "HOLDFAST_WITH=true"}}, map[string]bool{})
	own.run = func(context.Context, []string) error { return nil }
	own.SetArgs([]string{"--on"})
	if err := own.Execute(); err != nil {
		t.Fatal(err)
	}
	want := values{on: true, list: []string{"x", "y"}, pairs: map[string]any{"a": []any{int64(1)}}}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("own: %+v", a)
	}
	if want.borrowed = true; !reflect.DeepEqual(b, want) {
		t.Errorf("other: %+v", b)
	}
	if !own.given("on") || own.given("borrowed") || !other.given("borrowed") {
		t.Error("a flag that was set is not given, or one that was not is")
	}
}

func TestBorrowedFlagsAreCompletedAfterWriteBootstrap(t *testing.T) {
	without, with := ask(t, "__complete", "run", "--ready-"), ask(t, "__complete", "run", "--write-bootstrap", "--ready-")
	if strings.Contains(without.out, "--ready-listen") || !strings.Contains(without.out, "--ready-requires") {
		t.Errorf("without: %s", without.out)
	}
	if !strings.Contains(with.out, "--ready-listen") || !strings.Contains(with.out, "--ready-requires") {
		t.Errorf("with: %s", with.out)
	}
	if got := ask(t, "__complete", "run", "--write-bootstrap", "--ip-family", ""); !strings.Contains(got.out, "dual") {
		t.Errorf("values: %s", got.out)
	}
}
