package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// sentinel is a flag that no command has. The parser takes flags in their order and
// stops at the first that it cannot take: so when it names this one, it has taken
// those before it.
const sentinel = "--no-such-flag-of-the-test"

// accepts returns what the parser of holdfast says of a command line.
func accepts(t *testing.T, args []string) error {
	t.Helper()
	if at := slices.Index(args, "--"); at >= 0 {
		args = args[:at]
	}
	cmd := exec.Command(binary(t), append(slices.Clone(args), sentinel)...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = []string{}, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 ||
		!strings.Contains(said.String(), "unknown flag: "+sentinel+" (`holdfast "+args[0]+" --help`") {
		return fmt.Errorf("holdfast %s: %v: %s", strings.Join(args, " "), err, said.String())
	}
	return nil
}

// flagsOf returns the flags of a command that are settings, by their variables.
func flagsOf(t *testing.T, command string) map[string]bool {
	t.Helper()
	out, err := exec.Command(binary(t), "help", command).Output()
	if err != nil {
		t.Fatal(err)
	}
	flags := make(map[string]bool)
	for _, found := range regexp.MustCompile(`\[(HOLDFAST_[A-Z_]+)`).FindAllSubmatch(out, -1) {
		flags[string(found[1])] = true
	}
	if len(flags) < 2 {
		t.Fatalf("holdfast help %s lists no variables:\n%s", command, out)
	}
	return flags
}

func TestTheCheckOfCommandLinesCanFail(t *testing.T) {
	for _, good := range [][]string{{"run", "--upstream=a:1", "--drain-timeout=5s"}, {"drain"}, {"wait", "--timeout", "1m"}} {
		if err := accepts(t, good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range [][]string{{"run", "--upstraem=a:1"}, {"run", "--drain-timeout=5"}, {"drane"}, {"run", "--socket-mode=rw"}} {
		if accepts(t, bad) == nil {
			t.Errorf("holdfast %q passes", bad)
		}
	}
}

// variables are those that the kubelet puts into a command line.
var variables = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// commandLines returns what is run in a container: its own, and those of its hooks.
func commandLines(c corev1.Container) [][]string {
	lines := [][]string{c.Args}
	if c.Lifecycle == nil {
		return lines
	}
	for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
		if hook != nil && hook.Exec != nil {
			lines = append(lines, hook.Exec.Command[1:])
		}
	}
	return lines
}

func TestCommandsAndVariablesOfTheManifestsAreThoseOfTheBinary(t *testing.T) {
	for _, d := range built(t) {
		for _, c := range containers(d.pod(t).Spec.Template.Spec) {
			if !isHoldfast(c) {
				continue
			}
			for _, line := range commandLines(c) {
				for _, word := range line {
					for _, v := range variables.FindAllStringSubmatch(word, -1) {
						if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v[1] }) {
							t.Errorf("%s: container %s: %s: no variable %s", d.name, c.Name, word, v[1])
						}
					}
				}
				line = slices.Clone(line)
				for i := range line {
					line[i] = variables.ReplaceAllString(line[i], "x")
				}
				if err := accepts(t, line); err != nil {
					t.Errorf("%s: container %s: %v", d.name, c.Name, err)
				}
			}
			known := flagsOf(t, c.Args[0])
			for _, v := range c.Env {
				name, ours := strings.CutPrefix(v.Name, "HOLDFAST_")
				switch {
				case !ours || strings.HasPrefix(name, "META_"):
				case !known[v.Name]:
					t.Errorf("%s: container %s: %s is no setting of holdfast %s", d.name, c.Name, v.Name, c.Args[0])
				case v.ValueFrom == nil:
					flag := "--" + strings.ToLower(strings.ReplaceAll(name, "_", "-")) + "=" + v.Value
					if err := accepts(t, []string{c.Args[0], flag}); err != nil {
						t.Errorf("%s: container %s: %v", d.name, c.Name, err)
					}
				}
			}
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
				return e.Name == "HOLDFAST_CONFIG" && e.Value == "/etc/holdfast/holdfast.yaml"
			}) {
				t.Errorf("%s: container %s does not read its settings", d.name, c.Name)
			}
		}
	}
}

func TestEverySettingIsAFlagThatTakesItsValue(t *testing.T) {
	files := tree(t)
	commands := map[string]map[string]bool{"run": flagsOf(t, "run"), "bootstrap": flagsOf(t, "bootstrap")}
	for _, name := range settings {
		var conf map[string]any
		if err := yaml.UnmarshalStrict(files[name], &conf); err != nil || len(conf) == 0 {
			t.Fatalf("deploy/%s: %v", name, err)
		}
		for _, key := range slices.Sorted(maps.Keys(conf)) {
			known := false
			for command, flags := range commands {
				if !flags[envName(key)] {
					continue
				}
				known = true
				for _, text := range texts(conf[key]) {
					if err := accepts(t, []string{command, "--" + key + "=" + text}); err != nil {
						t.Errorf("deploy/%s: %v", name, err)
					}
				}
			}
			if !known {
				t.Errorf("deploy/%s: %s is no flag of run or bootstrap", name, key)
			}
		}
	}
}

// texts returns a value of a settings file as flags.
func texts(value any) (all []string) {
	switch value := value.(type) {
	case []any:
		for _, one := range value {
			all = append(all, texts(one)...)
		}
	case map[string]any:
		for key, one := range value {
			all = append(all, fmt.Sprintf("%s=%v", key, one))
		}
	default:
		all = []string{fmt.Sprint(value)}
	}
	return all
}

// unit returns the values of a systemd unit by key.
func unit(data []byte) map[string][]string {
	values := make(map[string][]string)
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			values[key] = append(values[key], value)
		}
	}
	return values
}

func TestUnitsRunCommandsThatExistAndHardenThem(t *testing.T) {
	found := 0
	for name, data := range tree(t) {
		if filepath.Ext(name) != ".service" {
			continue
		}
		found++
		u := unit(data)
		for key, want := range map[string]string{
			"NoNewPrivileges": "yes", "LimitCORE": "0", "UMask": "0077", "ProtectSystem": "strict", "CapabilityBoundingSet": "",
		} {
			if !slices.Equal(u[key], []string{want}) {
				t.Errorf("deploy/%s: %s=%s, want %q", name, key, u[key], want)
			}
		}
		if len(u["User"]) != 1 || u["User"][0] == "root" {
			t.Errorf("deploy/%s: User=%s", name, u["User"])
		}
		for _, line := range append(u["ExecStartPre"], u["ExecStart"]...) {
			words := strings.Fields(line)
			if words[0] != entrypoint {
				continue
			}
			if err := accepts(t, words[1:]); err != nil {
				t.Errorf("deploy/%s: %v", name, err)
			}
			if slices.Contains(words, "--") && !slices.Equal(u["KillMode"], []string{"mixed"}) {
				t.Errorf("deploy/%s: KillMode=%s: Envoy would get SIGTERM at once, and not drain", name, u["KillMode"])
			}
		}
	}
	if found != 4 {
		t.Errorf("%d units", found)
	}
}
