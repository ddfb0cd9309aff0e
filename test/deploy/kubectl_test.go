package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pluginFile is the plugin of kubectl, below deploy.
const pluginFile = "kubectl/kubectl-holdfast"

// fakeKubectl answers get with what it is asked for of a pod, and prints the words of exec, one a line.
const fakeKubectl = `#!/bin/sh
for word; do
	case $word in
	exec)
		for word; do printf '<%s>\n' "$word"; done
		exit 0
		;;
	get)
		for word; do path=$word; done
		[ "$path" = 'jsonpath={range .spec.containers[*]}{.name}{" "}{.image}{" "}{.restartPolicy}{"\n"}{end}{"\n"}{range .spec.initContainers[*]}{.name}{" "}{.image}{" "}{.restartPolicy}{"\n"}{end}' ] || { echo "jsonpath: $path" >&2; exit 1; }
		printf '%b' "$POD"
		exit 0
		;;
	esac
done
exit 1
`

// The plugin finds the container, and passes the rest on, word by word.
func TestTheKubectlPlugin(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(fakeKubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	plugin, err := filepath.Abs(filepath.Join("..", "..", "deploy", pluginFile))
	if err != nil {
		t.Fatal(err)
	}
	const inContainer = "web envoy:v1 \\nagent registry.example:5000/x/holdfast:v0.1.0 \\n\\nholdfast-init x/holdfast:v0.1.0 \\n"
	for what, tc := range map[string]struct {
		pod  string
		args []string
		want string
	}{
		"the container named holdfast":              {"a holdfast:v1 \\nholdfast own:v1 \\n\\n", []string{"p", "status"}, "<exec> <p> <-c> <holdfast> <--> </usr/local/bin/holdfast> <status>"},
		"the container with the image":              {inContainer, []string{"p", "status"}, "<exec> <p> <-c> <agent> <--> </usr/local/bin/holdfast> <status>"},
		"a digest":                                  {"a x/holdfast@sha256:ab \\n\\n", []string{"p", "status"}, "<exec> <p> <-c> <a> <--> </usr/local/bin/holdfast> <status>"},
		"an init container that goes on":            {"web envoy:v1 \\n\\ninit holdfast:v1 \\nholdfast holdfast:v1 Always\\n", []string{"pod/p", "status"}, "<exec> <p> <-c> <holdfast> <--> </usr/local/bin/holdfast> <status>"},
		"the control plane is another program":      {"a x/holdfast-mesh:v1 \\n\\n", []string{"p", "status"}, "no container of the pod p is named holdfast or has a holdfast image: name it with -c"},
		"a container that is named":                 {"", []string{"-c", "c", "p", "status"}, "<exec> <p> <-c> <c> <--> </usr/local/bin/holdfast> <status>"},
		"flags of kubectl":                          {inContainer, []string{"-n", "it's", "--context=a b", "p", "status", "-o", "json"}, "<-n> <it's> <--context=a b> <exec> <p> <-c> <agent> <--> </usr/local/bin/holdfast> <status> <-o> <json>"},
		"words with spaces, quotes and line breaks": {inContainer, []string{"p", "freeze", "--reason", "it's \"bad\" $(date)\nnow"}, "<freeze> <--reason> <it's \"bad\" $(date) now>"},
		"no pod":     {"", []string{"-n", "x"}, "the pod is missing"},
		"no command": {"", []string{"p"}, "the command is missing: kubectl holdfast p status"},
		"no value":   {"", []string{"-n"}, "-n has no value"},
		"help":       {"", []string{"--help"}, "kubectl holdfast -n shop web-5d9c7b diff RDS/local_route"},
	} {
		cmd := exec.Command("sh", append([]string{plugin}, tc.args...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "POD="+tc.pod)
		out, err := cmd.CombinedOutput()
		got := strings.Join(strings.Fields(string(out)), " ")
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", what, err, got, tc.want)
		}
		if ok := strings.HasPrefix(tc.want, "<") || what == "help"; ok != (err == nil) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if info, err := os.Stat(plugin); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("%v, %v", info, err)
	}
}
