package chart

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	helm "helm.sh/helm/v4/pkg/cmd"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectl "k8s.io/kubectl/pkg/cmd"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/testbed/tutorial"
)

// steps returns the commands of docs/getting-started.md for Kubernetes, and the files that they write by the name.
func steps(t *testing.T) (commands []string, files map[string]string) {
	t.Helper()
	blocks, err := tutorial.Read(filepath.Join(envoytest.Root(t), "docs", "getting-started.md"), "## In Kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	files = make(map[string]string)
	here := regexp.MustCompile(`(?ms)^cat >(\S+) <<'END'\n(.*?)^END\n`)
	for _, b := range blocks {
		text := here.ReplaceAllStringFunc(b.Commands, func(found string) string {
			m := here.FindStringSubmatch(found)
			files[m[1]] = m[2]
			return ""
		})
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
			if line = strings.TrimSpace(line); line != "" {
				commands = append(commands, line)
			}
		}
	}
	return commands, files
}

// words splits a command line of the page, which has no quotes but single ones.
func words(line string) (out []string) {
	for _, m := range regexp.MustCompile(`(?:'[^']*'|[^\s'])+`).FindAllString(line, -1) {
		out = append(out, strings.ReplaceAll(m, "'", ""))
	}
	return out
}

// parses returns what the parser of a program says of a command line: no command is run.
func parses(program *cobra.Command, args []string) error {
	if at := slices.Index(args, "--"); at >= 0 {
		args = args[:at] // what runs in a container
	}
	found, rest, err := program.Find(args)
	if err != nil {
		return err
	}
	if err := found.ParseFlags(rest); err != nil {
		return err
	}
	if found == program || !found.Runnable() || found.HasSubCommands() && found.Flags().NArg() > 0 {
		return fmt.Errorf("%s %s: there is no such command", program.Name(), strings.Join(args, " "))
	}
	return found.ValidateArgs(found.Flags().Args())
}

func programs(t *testing.T) map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"helm": func() *cobra.Command {
			root, err := helm.NewRootCmd(io.Discard, nil, func(bool) {})
			if err != nil {
				t.Fatal(err)
			}
			return root
		},
		"kubectl": func() *cobra.Command {
			return kubectl.NewKubectlCommand(kubectl.KubectlOptions{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}})
		},
	}
}

// The commands of the page for Kubernetes are those of helm and kubectl, and its values are those of the chart. (That the chart
// does what the page says is shown in a cluster: TestTheChartsMesh of test/kubernetes.)
func TestTheFirstStepsInKubernetesAreCommands(t *testing.T) {
	commands, files := steps(t)
	count := make(map[string]int)
	for _, line := range commands {
		args := words(line)
		count[args[0]]++
		program, ok := programs(t)[args[0]]
		if !ok {
			if args[0] != "openssl" && args[0] != "sleep" {
				t.Errorf("%s is no command of helm or kubectl", line)
			}
			continue
		}
		if err := parses(program(), args[1:]); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if count["helm"] < 2 || count["kubectl"] < 8 {
		t.Errorf("the page has the commands %v", count)
	}
	objects := objectsOf(t, parse(t, files["values.yaml"]))
	only[*appsv1.Deployment](t, objects, "holdfast-injector")
	only[*appsv1.Deployment](t, objects, "holdfast-mesh")
	for _, o := range decode(t, "web.yaml", files["web.yaml"]) {
		if d, ok := o.(*appsv1.Deployment); ok {
			for _, c := range d.Spec.Template.Spec.Containers {
				if c.Image == "" {
					t.Error("the application has no image")
				}
			}
			return
		}
	}
	t.Error("there is no application")
}

func TestTheCheckOfCommandsCanFail(t *testing.T) {
	for line, good := range map[string]bool{
		"helm install holdfast ./x.tgz -n holdfast --create-namespace --values values.yaml --wait": true,
		"helm instal holdfast ./x.tgz":                    false,
		"helm install holdfast ./x.tgz --no-such-flag":    false,
		"helm uninstall -n holdfast":                      false,
		"kubectl -n shop rollout status deployment/web":   true,
		"kubectl -n shop rollout statu deployment/web":    false,
		"kubectl -n shop get pods --no-such-flag":         false,
		"kubectl -n shop exec deployment/web -- curl -sS": true,
	} {
		args := words(line)
		if err := parses(programs(t)[args[0]](), args[1:]); (err == nil) != good {
			t.Errorf("%s: %v", line, err)
		}
	}
}
