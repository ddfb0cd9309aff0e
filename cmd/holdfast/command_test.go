package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

func TestExitCodesAndErrors(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []string {
		return append([]string{"run", "--health", "", "--admin", "", "--socket", filepath.Join(dir, "xds.sock")}, args...)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string // on standard error; "" for nothing
	}{
		{"no command", nil, 2, "no command: `holdfast help` lists them"},
		{"an unknown command", []string{"rnu"}, 2, `unknown command "rnu", did you mean run? (`},
		{"help for an unknown command", []string{"help", "dmup"}, 2, `unknown command "dmup", did you mean dump? (`},
		{"an unknown flag", run("--upstrem", "x"), 2, "unknown flag: --upstrem, did you mean --upstream? (`holdfast run --help` lists the flags)"},
		{"a bad value", run("--log-level", "loud"), 2, `--log-level: "loud": want debug, info, warn or error`},
		{"an argument", run("extra"), 2, "unexpected argument \"extra\": `holdfast run` takes flags only"},
		{"a completion for no shell", []string{"completion"}, 2, "completion: name a shell: bash, "},
		{"a completion for an unknown shell", []string{"completion", "tcsh"}, 2, `completion: unknown shell "tcsh": want one of bash, `},
		{"a completion", []string{"completion", "bash"}, 0, ""},
		{"undrain, and nobody answers", []string{"undrain", "--admin", "unix:" + filepath.Join(dir, "none.sock")}, 1, "canceled"},
		{"no upstream", run(), 2, "--upstream is missing"},
		{"a bad upstream", run("--upstream", "nonsense"), 2, `upstream "nonsense": want host:port`},
		{"an upstream twice", run("--upstream", "a:1", "--upstream", "a:1"), 2, "--upstream a:1 is given twice"},
		{"TLS that contradicts itself", run("--upstream", "a:1", "--upstream-plaintext", "--upstream-ca", "x"), 2, "--upstream-ca has no meaning with --upstream-plaintext"},
		{"half a client certificate", run("--upstream", "a:1", "--upstream-cert", "x"), 2, "--upstream-cert and --upstream-key go together"},
		{"a socket path that is taken", run("--upstream", "a:1", "--socket", taken), 1, "there is a file at this path, not a socket"},
		{"a socket path that is too long", run("--upstream", "a:1", "--socket", "/"+strings.Repeat("x", 107)), 2, "at most 107"},
		{"no directory", []string{"controlplane"}, 2, "--dir is missing"},
		{"no nodes", []string{"controlplane", "--dir", dir, "--max-nodes", "0"}, 2, "--max-nodes: 0: want a positive number"},
		{"half a certificate", []string{"controlplane", "--dir", dir, "--tls-cert", "x"}, 2, "--tls-cert and --tls-key go together"},
		{"a bad listen address", []string{"controlplane", "--dir", dir, "--listen", "nope"}, 2, `--listen "nope": want host:port or unix:PATH`},
		{"an address of another machine", []string{"controlplane", "--dir", dir, "--listen", "192.0.2.1:18000"}, 1, "--listen: listen tcp 192.0.2.1:18000: "},
		{"no state to export", []string{"export", "--out", "x"}, 2, "--state-dir is missing"},
		{"an export to nowhere", []string{"export", "--state-dir", dir}, 2, "--out is missing"},
		{"an export of nobody's", []string{"export", "--state-dir", dir, "--out", filepath.Join(dir, "x")}, 2, "the node is missing"},
		{"an export of nothing", []string{"export", "--state-dir", dir, "--out", filepath.Join(dir, "x"), "--node-id", "a", "--node-cluster", "b"}, 1, "it contains no state of an Envoy"},
		{"a key that is not there", []string{"run", "--upstream", "a:1", "--state-dir", dir, "--state-key-file", filepath.Join(dir, "none")}, 2, "--state-key-file:"},
		{"a key for no state", []string{"run", "--upstream", "a:1", "--state-key-file", "k"}, 2, "need --state-dir"},
		{"a wildcard of secrets", []string{"run", "--upstream", "a:1", "--envoy-wildcard", "SDS"}, 2, "SDS has no wildcard"},
		{"a TTL policy of no type", []string{"run", "--upstream", "a:1", "--ttl-policy", "FOO=hold"}, 2, "is not a type"},
		{"no TTL policy", []string{"run", "--upstream", "a:1", "--ttl-policy", "CDS=keep"}, 2, "want expire or hold"},
		{"too many percent", []string{"run", "--upstream", "a:1", "--max-removal-percent", "101"}, 2, "want 0 to 100"},
		{"a negative age", []string{"run", "--upstream", "a:1", "--max-stale", "-1s"}, 2, "--max-stale"},
		{"no output", []string{"bootstrap", "--node-id", "a", "--node-cluster", "b"}, 2, "--out is missing: name the file"},
		{"an unknown extension", []string{"bootstrap", "--out", "x.txt", "--node-id", "a", "--node-cluster", "b"}, 2, `extension ".txt" is none of`},
		{"no node", []string{"bootstrap", "--out", "-"}, 2, "--node-id is required"},
		{"an unwritable file", []string{"bootstrap", "--out", "/proc/none/x.yaml", "--node-id", "a", "--node-cluster", "b"}, 1, "no such file or directory"},
		{"nobody answers", []string{"status", "--admin", "unix:" + filepath.Join(dir, "none.sock")}, 1, "canceled"},
		{"no admin address", []string{"status", "--admin", ""}, 2, "--admin is empty"},
		{"a bad admin address", []string{"dump", "--admin", "x"}, 2, `--admin: "x": want unix:PATH or host:port`},
		{"an unknown type", []string{"dump", "--type", "XYZ"}, 2, `unknown type "XYZ": want CDS, EDS`},
		{"version", []string{"version"}, 0, ""},
		{"help", []string{"help"}, 0, ""},
		{"help of a command", []string{"help", "run"}, 0, ""},
		{"--help", []string{"run", "--help"}, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := call(t, nil, tc.args...)
			if got.code != tc.code || !strings.Contains(got.errors, tc.want) || (tc.want == "") != (got.errors == "") {
				t.Errorf("exit %d, standard error %q\nwant %d, %s", got.code, got.errors, tc.code, tc.want)
			}
			if tc.code == 2 && (strings.Count(got.errors, "\n") != 1 || !strings.HasPrefix(got.errors, "holdfast: ") || got.out != "") {
				t.Errorf("not one line: %q, and %q", got.errors, got.out)
			}
		})
	}
}

func TestTheVersionIsShown(t *testing.T) {
	if got := call(t, nil, "version").out; !strings.HasPrefix(got, "holdfast dev\ngo       go1.") || !strings.Contains(got, "go-control-plane") {
		t.Errorf("got %q", got)
	}
	var v map[string]string
	if err := json.Unmarshal([]byte(call(t, nil, "version", "-o", "json").out), &v); err != nil || v["version"] != "dev" || v["go"] == "" || v["envoy_api"] == "" {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestBootstrapWritesWhatItIsTold(t *testing.T) {
	args := []string{"bootstrap", "--node-id", "web-1", "--node-cluster", "web", "--node-metadata", "a=1", "--node-metadata", "b:=[true]",
		"--xds-protocol", "sotw", "--socket", "/s/xds.sock", "--envoy-admin", "unix:/s/admin.sock"}
	shown := call(t, nil, append(args, "--out", "-")...)
	if shown.code != 0 || shown.errors != "" {
		t.Fatalf("%+v", shown)
	}
	for _, want := range []string{`id: "web-1"`, `a: "1"`, "- true", `api_type: "GRPC"`, `path: "/s/xds.sock"`, `path: "/s/admin.sock"`} {
		if !strings.Contains(shown.out, want) {
			t.Errorf("no %s in\n%s", want, shown.out)
		}
	}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if got := call(t, nil, append(args, "--out", file)...); got.code != 0 || got.out != "" || got.errors != "" {
		t.Fatalf("%+v", got)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != shown.out {
		t.Errorf("the file differs from what is shown: %v", err)
	}
	asJSON := filepath.Join(t.TempDir(), "envoy.json")
	if got := call(t, []string{"HOLDFAST_OUT=" + asJSON}, args...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if b, err := os.ReadFile(asJSON); err != nil || !json.Valid(b) {
		t.Errorf("no JSON: %v", err)
	}
}

func TestHelpExplainsEveryFlag(t *testing.T) {
	p := process{stdout: &strings.Builder{}, stderr: &strings.Builder{}}
	for _, c := range []*command{newBootstrap(p), newRun(p), newControlPlane(p), newStatus(), newDump(), newExport(), newVersion()} {
		help := call(t, nil, c.Name(), "--help").out
		if !strings.Contains(help, "Examples\n  ") || !strings.Contains(help, "Exit codes\n") || !strings.Contains(help, "--config FILE") {
			t.Errorf("%s: examples, exit codes or --config are missing:\n%s", c.Name(), help)
		}
		c.visitFlags(func(f *pflag.Flag) {
			if !strings.Contains(help, "--"+f.Name+" ") || !strings.Contains(help, "["+envName(f.Name)) || len(f.Usage) < 10 {
				t.Errorf("%s: --%s is not explained", c.Name(), f.Name)
			}
		})
	}
	root := call(t, nil, "help").out
	if root != call(t, nil, "--help").out || !strings.Contains(root, "\n  controlplane  serve xDS") {
		t.Errorf("got %s", root)
	}
}

// privateWords are words of ours, or of older versions of the help, for which xDS or plain English has others.
var privateWords = regexp.MustCompile(`(?i)\b(anew|refuse[sd]?|verdict|who comes|at the latest|shall|told|tells?|says?|said|whoever|wherever|is there|are there|in the clear|beside|Anys)\b`)

func TestHelpIsNarrowAndInPlainWords(t *testing.T) {
	commands := []string{""}
	for _, c := range newRoot(process{}).Commands() {
		commands = append(commands, c.Name())
	}
	for _, command := range commands {
		help := call(t, nil, strings.Fields("help "+command)...)
		if help.code != 0 {
			t.Errorf("%s: %+v", command, help)
		}
		if strings.Contains(help.out, "SotW") && !strings.Contains(help.out, "state of the world (SotW)") {
			t.Errorf("%s: SotW is not spelled out", command)
		}
		for line := range strings.Lines(help.out) {
			if width := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); width > 100 || strings.HasSuffix(line, " \n") || strings.Contains(line, "`FILE`") {
				t.Errorf("%s: a line of %d columns: %q", command, width, line)
			}
			if word := privateWords.FindString(line); word != "" {
				t.Errorf("%s: %q in %q", command, word, line)
			}
		}
	}
}
