package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What is wrong is said in one line: what it is, where, and what to do.
func TestBadInputIsExplainedInOneLine(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []string {
		return append([]string{"run", "--upstream", "a:1", "--health", "", "--admin", "", "--socket", filepath.Join(dir, "run", "xds.sock")}, args...)
	}
	config := func(name, content string) []string { return run("--config", file(name+".yaml", content)) }
	socket := filepath.Join(dir, "x.sock")
	for _, tc := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		want    string // the whole line, "DIR" for the directory
	}{
		{"a number that is none", nil, run("--max-streams", "x"), 2, `--max-streams: "x": want a whole number, such as 100`},
		{"a number that is too large", nil, run("--max-streams", "99999999999999999999"), 2, `--max-streams: "99999999999999999999": the number is too large`},
		{"no number in a variable", []string{"HOLDFAST_MAX_STREAMS="}, run(), 2, `HOLDFAST_MAX_STREAMS: "": want a whole number, such as 100`},
		{"no boolean in a variable", []string{"HOLDFAST_PPROF=perhaps"}, run(), 2, `HOLDFAST_PPROF: "perhaps": want true or false`},
		{"no boolean", nil, run("--pprof=perhaps"), 2, `--pprof: "perhaps": want true or false`},
		{"a duration without a unit", nil, run("--drain-min", "5"), 2, `--drain-min: "5": want a duration with its unit, such as 500ms, 5s or 10m`},
		{"a mode in YAML", nil, config("mode", "socket-mode: 0660\n"), 2, "DIR/mode.yaml: socket-mode: put the permissions into quotes, such as '0660': YAML reads them as another number without"},
		{"a duration in YAML", nil, config("duration", "drain-min: 5\n"), 2, "DIR/duration.yaml: drain-min: 5: want a duration with its unit, such as 500ms, 5s or 10m"},
		{"a key twice", nil, config("twice", "admin: ''\nlinger: 1\nadmin: ''\n"), 2, `DIR/twice.yaml: line 3: key "admin" is given twice`},
		{"two keys twice", nil, config("two", "admin: ''\nrest: ''\nadmin: ''\nrest: ''\n"), 2, `DIR/two.yaml: line 3: key "admin" is given twice; line 4: key "rest" is given twice`},
		{"a second document", nil, config("second", "# first\n---\nadmin: ''\n---\nadmin: unix:/x\n"), 2, "DIR/second.yaml: line 4: a second YAML document begins: want one"},
		{"a second document that is empty", nil, config("empty", "admin: ''\n---\n"), 2, "DIR/empty.yaml: line 2: a second YAML document begins: want one"},
		{"settings in a pipe", nil, run("--config", pipe), 2, "--config: DIR/pipe: it is a named pipe: name a regular file"},
		{"endless settings", nil, run("--config", "/dev/zero"), 2, "--config: /dev/zero: it is a device: name a regular file"},
		{"an upstream that is none", nil, run("--upstream", "x"), 2, `upstream "x": want host:port, unix:PATH, dns:///HOST:PORT, http(s)://HOST or file:DIR`},
		{"REST on a socket", nil, run("--rest", "unix:/x/rest.sock"), 2, `--rest: "unix:/x/rest.sock": want host:port, or '' for none; REST is always served on the socket`},
		{"REST on a port alone", nil, run("--rest", "1234"), 2, `--rest: "1234": want host:port, or '' for none; REST is always served on the socket`},
		{"REST on a port that is none", nil, run("--rest", "127.0.0.1:70000"), 2, `--rest: "127.0.0.1:70000": port "70000" is not a number from 0 to 65535`},
		{"one path for both", nil, run("--socket", socket, "--admin", "unix:"+socket), 2, "--admin and --socket are both DIR/x.sock: give each its own path"},
		{"an unknown group", nil, run("--socket-group", "no-such-group"), 2, `--socket: socket DIR/run/xds.sock: --socket-group "no-such-group": unknown group`},
		{"no socket", nil, run("--socket", ""), 2, "--socket is empty: name the path of the socket, such as /run/holdfast/xds.sock"},
		{"a socket path that is too long", nil, run("--socket", "/"+strings.Repeat("x", 107)), 2, "--socket: socket /" + strings.Repeat("x", 107) + ": the path has 108 bytes, and a Unix socket's at most 107: choose a shorter one"},
		{"a takeover without a socket", nil, run("--takeover", "--admin", "127.0.0.1:1"), 2, "--takeover needs --admin unix:PATH, the same as that of the running agent"},
		{"changes by no control plane", nil, []string{"bootstrap", "--print", "--node-id", "i", "--node-cluster", "c", "--upstream-overlay", "try"}, 2, "--upstream-overlay needs --upstream with a control plane that is reached by gRPC, such as --upstream xds.example.com:443"},
		{"changes by a directory", nil, []string{"bootstrap", "--print", "--node-id", "i", "--node-cluster", "c", "--upstream-overlay", "require", "--upstream", "file:/etc/xds"}, 2, "--upstream-overlay needs --upstream with a control plane that is reached by gRPC, such as --upstream xds.example.com:443"},
		{"changes by a control plane with contradicting flags", nil, []string{"bootstrap", "--print", "--node-id", "i", "--node-cluster", "c", "--upstream-overlay", "try", "--upstream", "a:1", "--upstream-cert", "c.pem"}, 2, "--upstream-cert and --upstream-key go together: give both or none"},
		{"changes by chance", nil, []string{"bootstrap", "--print", "--node-id", "i", "--node-cluster", "c", "--upstream-overlay", "yes"}, 2, `--upstream-overlay: "yes": want no, try or require`},
		{"a probe of nothing", nil, run("--upstream", "file:"+dir, "--workload-probe", "localhost"), 2, `--workload-probe: "localhost": want http://HOST:PORT/PATH, https://HOST:PORT/PATH, tcp://HOST:PORT, grpc://HOST:PORT[/SERVICE] or exec:COMMAND`},
		{"a probe without a command", nil, run("--workload-probe", "exec:"), 2, "--workload-probe: exec: the command is missing"},
		{"the period of no probe", nil, run("--workload-probe-period", "5s"), 2, "--workload-probe-period needs --workload-probe"},
		{"a period that is too short", nil, run("--workload-probe", "tcp://h:1", "--workload-probe-period", "1ms"), 2, `--workload-probe-period: 1ms: want at least 1s`},
		{"no failure", nil, run("--workload-probe", "tcp://h:1", "--workload-probe-failures", "0"), 2, `--workload-probe-failures: 0: want a positive number`},
		{"a missing bootstrap", nil, run("--bootstrap", "/nope"), 2, "bootstrap: read node: open /nope: no such file or directory"},
		{"a bootstrap that is a pipe", nil, run("--bootstrap", pipe), 2, "bootstrap: read node: DIR/pipe: it is a named pipe: name a regular file"},
		{"a bootstrap that is a directory", nil, run("--bootstrap", dir), 2, "bootstrap: read node: DIR: it is a directory: name a regular file"},
		{"a flag of bootstrap", nil, run("--out", "/x.yaml"), 2, "unknown flag: --out: it is a flag of `holdfast bootstrap`; this command takes it with --write-bootstrap"},
		{"a switch of bootstrap", nil, run("--validate", "--write-bootstrap=false"), 2, "unknown flag: --validate: it is a flag of `holdfast bootstrap`; this command takes it with --write-bootstrap"},
		{"a flag like one of bootstrap", nil, run("--ready-listn", "x"), 2, "unknown flag: --ready-listn (`holdfast run --help` lists the flags)"},
		{"no place for the bootstrap", nil, run("--write-bootstrap"), 2, "--write-bootstrap: --out is missing: name the file to write, which Envoy will read, such as --out /etc/envoy/envoy.yaml"},
		{"a bootstrap on standard output", nil, run("--write-bootstrap", "--out", "-"), 2, "--write-bootstrap: --out - is standard output, which Envoy cannot read: name a file, such as --out /etc/envoy/envoy.yaml"},
		{"a bootstrap of two names", nil, run("--write-bootstrap", "--out", "/a.yaml", "--bootstrap", "/b.yaml"), 2, "--write-bootstrap: --out is /a.yaml and --bootstrap is /b.yaml: give only one of them, because the agent reads the file that it writes"},
		{"a bootstrap that the child does not read", nil, run("--write-bootstrap", "--out", "/a.yaml", "--", "envoy", "-c", "/b.yaml"), 2, "--write-bootstrap: the bootstrap is written to /a.yaml, but the command after -- reads /b.yaml: name the same file in both places"},
		{"a bootstrap that is shown", nil, run("--write-bootstrap", "--out", "/a.yaml", "--print"), 2, "--write-bootstrap: --print has no meaning here: `holdfast bootstrap --print` shows the bootstrap"},
		{"a bootstrap that is compared", []string{"HOLDFAST_DIFF=true"}, run("--write-bootstrap", "--out", "/a.yaml"), 2, "--write-bootstrap: --diff has no meaning here: `holdfast bootstrap --diff` compares the bootstrap with the file"},
		{"waiting for oneself", nil, run("--write-bootstrap", "--out", "/a.yaml", "--wait-for", "pod-ip, socket"), 2, "--write-bootstrap: --wait-for socket would wait for this agent, which serves --socket only after the bootstrap is written: leave it out"},
		{"waiting for one's own socket", nil, run("--write-bootstrap", "--out", "/a.yaml", "--wait-for", "socket="+dir+"/run/../run/xds.sock"), 2, "--write-bootstrap: --wait-for socket would wait for this agent, which serves --socket only after the bootstrap is written: leave it out"},
		{"a bootstrap in no format", nil, run("--write-bootstrap", "--out", "/a.txt", "--node-id", "i", "--node-cluster", "c"), 2, `bootstrap: /a.txt: extension ".txt" is none of .json, .yaml and .yml`},
		{"a bootstrap without a node", nil, run("--write-bootstrap", "--out", "/a.yaml"), 2, `bootstrap: --node-id is required, or the values for the template sidecar~{ip}~{pod}.{namespace}~{domain}: missing --pod-ip (or POD_IP, INSTANCE_IP), --pod-name (or POD_NAME), --pod-namespace (or POD_NAMESPACE)`},
		{"a role that is none", nil, []string{"bootstrap", "--print", "--istio", "--istio-role", "waypoint"}, 2, `--istio-role: "waypoint": want sidecar or router`},
		{"a port that is none", []string{"ISTIO_META_ENVOY_STATUS_PORT=x"}, []string{"bootstrap", "--print", "--istio"}, 2, `istio: metadata ENVOY_STATUS_PORT: "x" is not a whole number`},
		{"a ProxyConfig that is none", []string{"PROXY_CONFIG=[]"}, []string{"bootstrap", "--print", "--istio"}, 2, "istio: variable PROXY_CONFIG: want a mapping, such as {concurrency: 2}"},
		{"a seed over plaintext", nil, run("--seed", "http://seeds.test/web"), 2, `--seed "http://seeds.test/web": http:// would show the configuration to everybody on the network: use https://`},
		{"a seed from a server without a key", nil, run("--seed", "https://seeds.test/web"), 2, "--seed https://seeds.test/web: a seed from a server must be signed: name the keys to trust with --seed-trust"},
		{"trust without a seed", nil, run("--seed-trust", pipe), 2, "--seed-trust has no meaning without --seed: name the place of the seed"},
		{"a key without a place", nil, run("--seed-key", pipe), 2, "--seed-key has no meaning without --seed-publish: name the place to publish to"},
		{"a ConfigMap outside of a pod", nil, run("--seed-publish", "configmap:shop/web"), 2, "--seed-publish configmap:shop/web: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this works in a pod only; outside name a file or an https:// URL"},
		{"a ConfigMap without a namespace", nil, run("--seed-publish", "configmap:web"), 2, `--seed-publish "configmap:web": want configmap:NAMESPACE/NAME`},
		{"a key that is none", nil, run("--seed-publish", "/x", "--seed-key", file("no.pem", "x")), 2, "--seed-key: DIR/no.pem holds no private key in PEM (PKCS #8): `openssl genpkey -algorithm ed25519 -out seed.key` makes one, and `openssl pkey -in seed.key -pubout -out seed.pub` its public key"},
		{"a seed of what is not there", nil, []string{"export", "--state-dir", "/nope", "--seed", filepath.Join(dir, "x.seed"), "--node-id", "a", "--node-cluster", "b"}, 1, "--state-dir: store: open: state directory /nope: does not exist"},
		{"a seed and files", nil, []string{"export", "--seed", "x", "--out", "y"}, 2, "--seed writes one file without secrets: leave --out and --with-secrets out"},
		{"a state that is not there", nil, []string{"export", "--state-dir", "/nope", "--out", filepath.Join(dir, "out"), "--node-id", "a", "--node-cluster", "b"}, 1, "--state-dir: store: open: state directory /nope: does not exist"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := call(t, tc.environ, tc.args...)
			if got.code != tc.code {
				t.Errorf("exit %d, want %d", got.code, tc.code)
			}
			want := "holdfast: " + strings.ReplaceAll(tc.want, "DIR", dir) + "\n"
			want = strings.ReplaceAll(want, "file:"+dir, "file:DIR")
			if tc.want != "" && got.errors != want {
				t.Errorf("got  %swant %s", got.errors, want)
			}
			if lines := strings.Split(strings.TrimSpace(got.errors), "\n"); !strings.HasPrefix(lines[len(lines)-1], "holdfast: ") || tc.code == 2 && len(lines) > 1 {
				t.Errorf("not one line:\n%s", got.errors)
			}
		})
	}
}

// A program that prints its own version in many lines.
func TestACommandThatIsNoEnvoyIsSaidInOneLine(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("#!/bin/sh\nprintf 'other 9.1\\nlicense\\nmore\\n'\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	got := ask(t, "run", "--upstream", "file:"+dir, "--health", "", "--admin", "", "--socket", filepath.Join(dir, "x.sock"), "--envoy-admin", "127.0.0.1:1", "--", other)
	want := `holdfast: the command after --: ` + other + ` --version: exit status 1: "other 9.1": is it Envoy?`
	if got.code != 1 || !strings.HasSuffix(got.errors, want+"\n") || strings.Contains(got.errors, "license") {
		t.Errorf("exit %d\n%s\nwant %s", got.code, got.errors, want)
	}
}

func TestTheVersionIsAFlagToo(t *testing.T) {
	want := call(t, nil, "version").out
	for _, flag := range []string{"--version", "-v"} {
		if got := call(t, nil, flag); got.code != 0 || got.out != want || got.errors != "" {
			t.Errorf("%s: %+v", flag, got)
		}
	}
}

// What is not given has no default, and "null" is nobody's value.
func TestTheHelpNamesNoDefaultThatIsNone(t *testing.T) {
	for _, command := range []string{"run", "bootstrap", "controlplane", "export"} {
		if got := call(t, nil, command, "--help"); got.code != 0 || strings.Contains(got.out, "default null") || strings.Contains(got.out, "default []") {
			t.Errorf("%s: exit %d\n%s", command, got.code, got.out)
		}
	}
}
