package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/inject"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

const injectLong = `Add holdfast and Envoy to the pods of manifests: Deployments, StatefulSets, DaemonSets,
ReplicaSets, ReplicationControllers, Jobs, CronJobs, Pods, PodTemplates, and lists of them, as
YAML or JSON. The result is on standard output, what was done on standard error. What is not
changed keeps its bytes, with comments and order; other kinds pass. A second injection changes
what is not up to date. No cluster is asked.

A pod that cannot work with a sidecar is rejected with the reason; then nothing is written, and the
exit code is 1. docs/inject.md lists what is added, the annotations of a pod, and what is rejected.`

const injectExample = `
holdfast inject -f web.yaml --upstream xds.example.com:443 | kubectl apply -f -

# all Deployments that run
kubectl get deployments -o yaml | holdfast inject -f - --upstream xds.example.com:443 \
    | kubectl apply -f -

# with images of your registry and further settings, Envoy as the child of holdfast
holdfast inject -f web.yaml --shape envoy-child --child-image registry.example/holdfast-envoy:v1 \
    --image registry.example/holdfast:v1 --settings holdfast.yaml

# a pod leaves it to nobody: in its template
#   annotations: {holdfast.dev/inject: "false"}`

const uninjectLong = `Take away what holdfast inject has added, and restore what it changed. The annotation
holdfast.dev/status of a pod lists that; a pod without it stays as it is.`

const uninjectExample = `
holdfast uninject -f web.yaml | kubectl apply -f -

kubectl get deployment web -o yaml | holdfast uninject -f - | kubectl apply -f -`

// manifestFlags are those of the files that are changed.
type manifestFlags struct {
	files []string
	skip  bool
}

func (f *manifestFlags) add(flags *pflag.FlagSet) {
	flags.VarP(texts(&f.files), "file", "f", "`FILE` of manifests, YAML or JSON, or - for standard input; required. Several are written one after the other")
	flags.BoolVar(&f.skip, "skip-rejected", false, "write what is rejected as it was, and the rest injected; the exit code is 1 nevertheless")
	for _, name := range []string{"file", "skip-rejected"} {
		_ = flags.SetAnnotation(name, cli.CommandLineOnly, []string{""}) // it exists
	}
}

// run changes all files and writes them, or nothing.
func (f *manifestFlags) run(c *command, change func([]byte) ([]byte, []inject.Result)) error {
	if len(f.files) == 0 {
		return errors.New("-f is missing: name a file of manifests, or - for standard input")
	}
	var out bytes.Buffer
	objects, rejected := 0, 0
	for _, name := range f.files {
		text, err := readManifest(c, name)
		if err != nil {
			return cli.Failed(err)
		}
		changed, results := change(text)
		for _, r := range results {
			objects++
			what := r.Note
			if r.Err != nil {
				rejected++
				what = "rejected: " + r.Err.Error()
			} else if !r.Changed && what == "injected" {
				what = "is up to date"
			}
			where := fmt.Sprintf("%s: document %d, line %d", name, r.Document, r.Line)
			_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s: %s: %s\n", where, r.Object, what)
			for _, w := range r.Warnings {
				_, _ = fmt.Fprintf(c.ErrOrStderr(), "%s: %s: warning: %s\n", where, r.Object, w)
			}
		}
		joinManifests(&out, changed)
	}
	if objects == 0 {
		_, _ = fmt.Fprintf(c.ErrOrStderr(), "holdfast: nothing in %s has a pod\n", strings.Join(f.files, ", "))
	}
	if rejected == 0 || f.skip {
		if _, err := c.OutOrStdout().Write(out.Bytes()); err != nil {
			return cli.Failed(err)
		}
	}
	switch {
	case rejected == 0:
		return nil
	case f.skip:
		return cli.Failed(fmt.Errorf("%d of %d objects rejected: they are written as they were", rejected, objects))
	default:
		return cli.Failed(fmt.Errorf("%d of %d objects rejected: nothing is written (--skip-rejected writes the others)", rejected, objects))
	}
}

// readManifest reads a file, or standard input.
func readManifest(c *command, name string) ([]byte, error) {
	if name == "-" {
		text, err := io.ReadAll(io.LimitReader(c.InOrStdin(), userfile.Max+1))
		if err == nil && len(text) > userfile.Max {
			err = fmt.Errorf("more than %d MiB", userfile.Max>>20)
		}
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return text, nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return nil, fmt.Errorf("-f %s is a directory: name its files, or use `kubectl kustomize %s | holdfast inject -f -`", name, name)
	}
	text, err := userfile.Read(name)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	return text, nil
}

// joinManifests appends a file to others, so that each stays a document of its own.
func joinManifests(out *bytes.Buffer, text []byte) {
	isJSON := func(text []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }
	if out.Len() > 0 {
		if !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
			out.WriteByte('\n')
		}
		text = bytes.TrimPrefix(text, []byte("\ufeff"))
		if !bytes.HasPrefix(text, []byte("---")) && !(isJSON(out.Bytes()) && isJSON(text)) {
			out.WriteString("---\n")
		}
	}
	out.Write(text)
}

func newUninject() *command {
	c := newCommand("uninject", "take holdfast and Envoy out of manifests of Kubernetes again", uninjectLong, uninjectExample)
	f := &manifestFlags{}
	f.add(c.section("Manifests"))
	c.run = func(_ context.Context, warnings []string) error {
		warn(c, warnings)
		return f.run(c, inject.Uninject)
	}
	return c
}

// injectFlags are the flags of `holdfast inject`.
type injectFlags struct {
	manifests manifestFlags
	settings  inject.Settings
	file      string
	sleep     time.Duration
}

func newInject(p process) *command {
	c := newCommand("inject", "add holdfast and Envoy to the pods of manifests of Kubernetes", injectLong, injectExample)
	f := &injectFlags{settings: inject.NewSettings()}
	s := &f.settings
	f.manifests.add(c.section("Manifests"))
	flags := c.section("What is added; annotations of a pod override most of it")
	flags.Var(oneOf(&s.Shape, inject.Shapes()...), "shape", "Envoy in a container of its own, or as the child of holdfast")
	flags.Var(texts(&s.Upstreams), "upstream", "`ADDR` of a control plane, as that of `holdfast run`; the first of several is preferred. Required, unless --settings or an annotation has it")
	_ = flags.SetAnnotation("upstream", cli.CommandLineOnly, []string{""}) // a variable or a file means that of an agent
	flags.StringVar(&s.TokenAudience, "token-audience", "", "`NAME` for which the pod's token is issued; empty: the host of the first --upstream")
	flags.StringVar(&f.file, "settings", "", "`FILE` of further settings of `holdfast run` and `holdfast bootstrap`, as for their --config. They become an annotation of the pod")
	flags.StringVar(&s.ConfigMap, "config-map", "", "`NAME` of a ConfigMap in the pod's namespace that has all settings as holdfast.yaml, instead of an annotation")
	flags.StringVar(&s.CAConfigMap, "ca-config-map", "", "`NAME` of a ConfigMap in the pod's namespace whose key ca.crt has the authorities of the control plane's certificate; empty: --upstream-ca of the settings, or those of the image")
	flags.StringVar(&s.Image, "image", "", "`IMAGE` of holdfast; empty: that of deploy/overlays")
	flags.StringVar(&s.EnvoyImage, "envoy-image", "", "`IMAGE` of Envoy, for native-sidecar; empty: that of deploy/overlays")
	flags.StringVar(&s.ChildImage, "child-image", "", "`IMAGE` of holdfast with Envoy, for envoy-child; empty: that of deploy/overlays")
	flags.Var(numberOf(&f.sleep, s.PreStopSleep, notNegative), "prestop-sleep", "how long containers without a preStop hook go on when the pod ends, so that they answer until Envoy has drained (`DURATION` in seconds, Kubernetes 1.30); 0s: as they are. Not for Jobs")
	flags = c.section("Resources, as Kubernetes' quantities; empty: those of deploy/overlays, 0: none")
	for _, r := range []struct {
		name, of string
		to       *inject.Resources
	}{{"proxy", "Envoy (with envoy-child: of the container of both)", &s.Proxy}, {"agent", "holdfast", &s.Agent}} {
		flags.StringVar(&r.to.CPU, r.name+"-cpu", "", "`QUANTITY` of CPUs requested for "+r.of)
		flags.StringVar(&r.to.Memory, r.name+"-memory", "", "`QUANTITY` of memory requested for "+r.of)
		flags.StringVar(&r.to.CPULimit, r.name+"-cpu-limit", "", "`QUANTITY` of CPUs that is the limit for "+r.of)
		flags.StringVar(&r.to.MemoryLimit, r.name+"-memory-limit", "", "`QUANTITY` of memory that is the limit for "+r.of)
	}
	c.run = func(_ context.Context, warnings []string) error {
		warn(c, warnings)
		return f.run(p, c)
	}
	return c
}

func (f *injectFlags) run(p process, c *command) error {
	s := f.settings
	s.PreStopSleep = f.sleep
	s.Validate = func(text []byte) error { return checkAgentSettings(p, text) }
	if f.file != "" {
		text, err := userfile.Read(f.file)
		if err != nil {
			return fmt.Errorf("--settings: %w", err)
		}
		if _, err := cli.ParseSettings(f.file, text, agentKeys(p)); err != nil {
			return err // with the line of the file
		}
		s.Config = text
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("%s%w", cmp.Or(f.file, "inject")+": ", err)
	}
	return f.manifests.run(c, func(text []byte) ([]byte, []inject.Result) { return inject.Inject(text, s) })
}

// agentCommands returns the commands that read the settings of a pod.
func agentCommands(p process) []*command { return []*command{newBootstrap(p), newRun(p)} }

// agentKeys returns the keys of the settings of a pod.
func agentKeys(p process) map[string]bool {
	keys := make(map[string]bool)
	for _, c := range agentCommands(p) {
		c.visitFlags(func(f *pflag.Flag) { keys[f.Name] = !cli.OnCommandLineOnly(f) || keys[f.Name] })
	}
	return keys
}

// checkAgentSettings checks settings as the agent reads them: each key is a flag of `holdfast run` or `holdfast bootstrap`
// that takes the value.
func checkAgentSettings(p process, text []byte) error {
	commands, keys := agentCommands(p), agentKeys(p)
	file, err := cli.ParseSettings("", text, keys)
	if err != nil {
		return err
	}
	for _, c := range commands {
		c.visitFlags(func(f *pflag.Flag) {
			value, ok := file[f.Name]
			if err != nil || !ok || cli.OnCommandLineOnly(f) {
				return
			}
			if setErr := cli.SetYAML(f, value); setErr != nil {
				err = fmt.Errorf("%s: %w", f.Name, setErr)
			}
		})
	}
	return err
}
