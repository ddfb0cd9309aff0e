package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

// bootstrapMode lets everybody read the bootstrap: it holds no secret, and Envoy
// often runs as another user.
const bootstrapMode = 0o644

const bootstrapLong = `Write the bootstrap file with which Envoy takes its configuration from the agent:
who Envoy is, the agent's socket, Envoy's own admin address, and what else is asked
for. The same flags give the same bytes. The file appears whole or not at all, and
stays. Neither agent nor control plane is needed. docs/bootstrap.md has examples.

Metadata also come from the environment: HOLDFAST_META_NAME=text, and Istio's
ISTIO_META_NAME=text and ISTIO_METAJSON_NAME={"NAME": value}. --node-metadata beats
HOLDFAST_META_, which beats ISTIO_METAJSON_, ISTIO_META_, and the pod's files.`

const bootstrapExample = `
# for an Envoy of the service web
holdfast bootstrap --out /etc/envoy/envoy.yaml --node-id web-1 --node-cluster web

# look at it first, and at what would change
holdfast bootstrap --print --node-id web-1 --node-cluster web
holdfast bootstrap --diff --out /etc/envoy/envoy.yaml --node-id web-1 --node-cluster web

# metadata: text, and a JSON value
holdfast bootstrap --out envoy.json --node-id web-1 --node-cluster web \
    --node-metadata team=shop --node-metadata 'labels:={"app":"web"}'

# an init container: id, cluster and locality of the pod; probes and metrics
holdfast bootstrap --out /etc/envoy/envoy.yaml --pod-labels /etc/podinfo/labels --wait-for pod-ip \
    --ready-listen :15021 --stats-listen :15090

# with what only you have, checked by the Envoy that will read it
holdfast bootstrap --out envoy.yaml --node-id web-1 --node-cluster web \
    --overlay tracing.yaml --overlay no-admin.patch.yaml --validate --envoy-binary /usr/bin/envoy`

// bootstrapFlags are the flags of `holdfast bootstrap`.
type bootstrapFlags struct {
	out, grpcOut, argsOut string
	mode                  mode
	print, diff, validate bool
	envoy                 string

	identity identityFlags

	socket, admin    string
	form, transport  *choice
	family           *choice
	refresh, timeout time.Duration
	ready, statsAddr string
	tags             tags
	defaultTags      bool
	include, exclude matches
	buckets          bucketRules
	flush            time.Duration
	runtime          runtimeValues
	rtds             list
	heap             heapLimit
	connections      int
	memory           size
	cpu              cpus
	logFormat        *choice
	logLevel         *choice
	workers          workers
	drain            time.Duration
	template         string
	templateOnly     bool
	overlays         list
	wait             waitFlags
}

func newBootstrap(p process) *command {
	c := newCommand("bootstrap", "write Envoy's bootstrap file and exit", bootstrapLong, bootstrapExample)
	f := &bootstrapFlags{mode: bootstrapMode}
	f.add(c)
	c.run = func(ctx context.Context, warnings []string) error {
		warn(c, warnings)
		return f.run(ctx, c, p.environ)
	}
	return c
}

func (f *bootstrapFlags) add(c *command) {
	flags := c.section("Output (at least one)")
	flags.StringVar(&f.out, "out", "", "`FILE` to write for Envoy: YAML if it ends in .yaml or .yml, JSON if in .json; - writes YAML to standard output")
	flags.Var(&f.mode, "out-mode", "permissions of the file, in `OCTAL`: 0600 if only Envoy's own user may read it; in the file of --config put them into quotes")
	flags.StringVar(&f.grpcOut, "grpc-out", "", "`FILE` to write for proxyless gRPC, in JSON: what GRPC_XDS_BOOTSTRAP names")
	flags.StringVar(&f.argsOut, "args-out", "", "`FILE` to write Envoy's arguments to, one a line: what a bootstrap has no place for")
	flags.BoolVar(&f.print, "print", false, "write the bootstrap to standard output instead, and no file")
	flags.BoolVar(&f.diff, "diff", false, "say how the file of --out would change, and write none; the exit code is 1 if it would")
	flags.BoolVar(&f.validate, "validate", false, "let an Envoy, if there is one, check the bootstrap (envoy --mode validate) before it is written; the rules of Envoy's API are checked anyway. Without --out that is all")
	flags.StringVar(&f.envoy, "envoy-binary", "", "`FILE`, or command in PATH, of the Envoy for --validate; empty: envoy, if it is in PATH")
	f.identity.add(c.section("Who Envoy is (id and cluster are required)"))
	f.addConnection(c.section("How Envoy connects"))
	f.addStats(c)
	f.addLimits(c)
	flags = c.section("Changing it")
	flags.StringVar(&f.template, "template", "", "`FILE` of a bootstrap to begin with; what it does not have comes from the other flags")
	flags.BoolVar(&f.templateOnly, "template-only", false, "add nothing to --template")
	flags.Var(&f.overlays, "overlay", "`FILE` that changes the bootstrap: *.patch.yaml a JSON patch, *.merge.yaml a JSON merge patch, any other a part of a bootstrap, which is merged as protobuf merges; .json too. Repeatable, in this order")
	f.wait.add(c.section("Waiting first"))
}

func (f *bootstrapFlags) addConnection(flags *pflag.FlagSet) {
	f.form, f.transport, f.family = oneOf("delta", "sotw"), oneOf("ads", "grpc", "rest"), oneOf("v4", "v6", "dual")
	flags.StringVar(&f.socket, "socket", bootstrap.DefaultSocket, "`PATH` of the Unix socket of the agent, absolute")
	flags.Var(f.form, "xds-protocol", "the form of xDS that Envoy speaks to the agent; the agent turns either into what the control plane speaks. Not for rest")
	flags.Var(f.transport, "xds-transport", "all types on one stream, which keeps their order; each on a gRPC stream of its own; or polls of REST")
	flags.DurationVar(&f.refresh, "xds-rest-refresh", bootstrap.DefaultRefreshDelay, "the pause between two polls of a type, for rest (`DURATION`)")
	flags.DurationVar(&f.timeout, "xds-rest-timeout", bootstrap.DefaultRequestTimeout, "how long a poll may take (`DURATION`): longer than --rest-hold of the agent")
	flags.StringVar(&f.admin, "envoy-admin", "", "`ADDR` of Envoy's own admin interface: host:port on loopback, or unix:PATH; empty: "+bootstrap.DefaultAdmin+", with --ip-family v6 "+bootstrap.DefaultAdminV6)
	flags.Var(f.family, "ip-family", "what --ready-listen and --stats-listen bind to where no host is given, and which --pod-ip is that of the node id")
}

func (f *bootstrapFlags) addStats(c *command) {
	flags := c.section("Health and metrics")
	flags.StringVar(&f.ready, "ready-listen", "", "`ADDR`, host:port or :port (15021 with Istio), where "+bootstrap.ReadyPath+" is Envoy's readiness, and every other path is not found")
	flags.StringVar(&f.statsAddr, "stats-listen", "", "`ADDR`, host:port or :port (15090 with Istio), where "+bootstrap.StatsPath+" is for Prometheus, and every other path is not found")
	flags.Var(&f.tags, "stats-tag", "`NAME=REGEX` whose first group is cut out of names of stats and whose second is the tag's value, or NAME:=TEXT for a tag of all")
	flags.BoolVar(&f.defaultTags, "stats-default-tags", true, "also the tags that Envoy knows")
	flags.Var(&f.include, "stats-include", "`KIND:TEXT`, prefix:, suffix: or regex:, of the only stats that there shall be, besides those of xDS, server and draining")
	flags.Var(&f.exclude, "stats-exclude", "`KIND:TEXT` of stats that there shall not be")
	flags.Var(&f.buckets, "histogram-buckets", "`KIND:TEXT=BOUND,BOUND,…` for histograms, such as prefix:cluster.=1,5,10; the first that matches counts. In a variable, one a line")
	flags.DurationVar(&f.flush, "stats-flush-interval", 0, "how often stats go to sinks (`DURATION`, 1ms to 5m); 0 for Envoy's 5s")
}

func (f *bootstrapFlags) addLimits(c *command) {
	flags := c.section("Runtime and limits")
	flags.Var(&f.runtime, "runtime", "`KEY=VALUE` of Envoy's runtime; what reads as a number or a boolean is one. KEY:=JSON for anything, such as a fraction")
	flags.Var(&f.rtds, "rtds-layer", "`NAME` of a layer of the runtime that the control plane serves (RTDS); repeatable, a later one wins")
	flags.Var(&f.heap, "heap-limit", "how large Envoy's heap may be: from 98 % of it on requests are answered with 503. auto: 95 % of the memory that this container may use, which in an init container need not be Envoy's (see --memory-limit)")
	flags.IntVar(&f.connections, "max-connections", 0, "`NUMBER` of downstream connections that may be open at once; 0 for no limit")
	flags.Var(&f.memory, "memory-limit", "`BYTES` that Envoy's container may use, for --heap-limit auto, as resourceFieldRef tells them; 0: those of this container")
	flags.Var(&f.cpu, "cpu-limit", "`CPUS` that Envoy's container may use, for --envoy-concurrency auto; 0: those of this container")
	f.logFormat, f.logLevel = oneOf("text", "json"), oneOf(append([]string{"default"}, bootstrap.LogLevels()...)...)
	flags = c.section("Envoy's log, and its arguments for --args-out")
	flags.Var(f.logFormat, "envoy-log-format", "the form of Envoy's log lines")
	flags.Var(f.logLevel, "envoy-log-level", "the least important messages that Envoy logs; default is what Envoy does without: info")
	flags.Var(&f.workers, "envoy-concurrency", "how many workers; auto: one for each CPU that it may use, rounded up, or where there is no limit as Envoy does without")
	flags.DurationVar(&f.drain, "envoy-drain-time", 0, "how long Envoy drains (`DURATION`); 0 for its own default")
}

// run does all there is to do, in the order in which it can go wrong.
func (f *bootstrapFlags) run(ctx context.Context, c *command, environ []string) error {
	if err := f.consistent(); err != nil {
		return err
	}
	family := bootstrap.Family(f.family.value)
	ips, err := f.identity.ips(environ)
	if err != nil {
		return err
	}
	if ips, err = f.wait.wait(ctx, c.ErrOrStderr(), f.socket, ips, family); err != nil {
		return err
	}
	id, err := f.identity.identity(environ, family, ips)
	if err != nil {
		return err
	}
	limits, err := f.limits()
	if err != nil {
		return failed(err)
	}
	cfg := f.config(limits)
	made, err := f.build(id, &cfg)
	if err != nil {
		return err
	}
	unknown, err := bootstrap.Check(made)
	if err != nil {
		return err
	}
	if len(unknown) > 0 && !f.validate {
		warn(c, []string{fmt.Sprintf("only Envoy knows the rules of %s: --validate asks it whether they are kept", strings.Join(unknown, ", "))})
	}
	if addr := bootstrap.OpenAdmin(made); addr != "" {
		warn(c, []string{fmt.Sprintf("a template or an overlay puts Envoy's admin on %s: whoever reaches it can stop Envoy and read its configuration; leave it on loopback or a Unix socket", addr)})
	}
	if f.heap.auto && limits.Memory == 0 {
		warn(c, []string{"--heap-limit auto: no memory limit is known, so that Envoy's heap gets none: give --memory-limit"})
	}
	return f.write(ctx, c, made, cfg, limits)
}

// consistent refuses what contradicts itself.
func (f *bootstrapFlags) consistent() error {
	switch {
	case f.print && f.diff:
		return errors.New("--print and --diff: want one of both")
	case f.diff && (f.out == "" || f.out == "-"):
		return errors.New("--diff compares with a file: name it with --out")
	case f.out == "" && f.grpcOut == "" && f.argsOut == "" && !f.print && !f.validate:
		return errors.New("--out is missing: name the file that Envoy will read, such as --out envoy.yaml, or - for standard output")
	case f.argsOut != "" && (f.out == "" || f.out == "-"):
		return errors.New("--args-out names the bootstrap to Envoy: it needs --out with a file")
	case f.templateOnly && f.template == "":
		return errors.New("--template-only needs --template")
	case f.connections < 0 || f.connections > math.MaxInt32:
		return fmt.Errorf("--max-connections %d: want 0 to %d", f.connections, math.MaxInt32)
	case f.drain < 0:
		return fmt.Errorf("--envoy-drain-time %s: want 0 or a positive duration", f.drain)
	case f.envoy != "" && !f.validate:
		return errors.New("--envoy-binary is for --validate")
	}
	return nil
}

// limits returns what Envoy's container may use: what is given, else what this one
// may.
func (f *bootstrapFlags) limits() (cgroup.Limits, error) {
	limits := cgroup.Limits{Memory: uint64(f.memory), CPU: float64(f.cpu)}
	needsMemory := f.heap.auto && limits.Memory == 0
	needsCPU := f.argsOut != "" && f.workers == 0 && limits.CPU == 0
	if !needsMemory && !needsCPU {
		return limits, nil
	}
	own, err := cgroup.Read(os.DirFS("/"))
	if err != nil {
		return limits, err
	}
	if limits.Memory == 0 {
		limits.Memory = own.Memory
	}
	if limits.CPU == 0 {
		limits.CPU = own.CPU
	}
	return limits, nil
}

// config returns what the flags say, but for the node.
func (f *bootstrapFlags) config(limits cgroup.Limits) bootstrap.Config {
	heap := uint64(f.heap.bytes)
	if f.heap.auto {
		heap = bootstrap.HeapLimit(limits)
	}
	return bootstrap.Config{
		XDS: bootstrap.XDS{
			Socket: f.socket, Mode: bootstrap.Mode(f.form.value), Transport: bootstrap.Transport(f.transport.value),
			RefreshDelay: f.refresh, RequestTimeout: f.timeout,
		},
		Admin:     f.admin,
		Family:    bootstrap.Family(f.family.value),
		Endpoints: bootstrap.Endpoints{Ready: f.ready, Stats: f.statsAddr},
		Stats: bootstrap.Stats{
			Tags: f.tags, NoDefaultTags: !f.defaultTags, Include: f.include, Exclude: f.exclude,
			Buckets: f.buckets, FlushInterval: f.flush,
		},
		Runtime:  bootstrap.Runtime{Values: f.runtime.metadata, RTDS: f.rtds},
		Overload: bootstrap.Overload{MaxHeap: heap, MaxConnections: uint32(f.connections)},
		Log:      bootstrap.LogFormat(f.logFormat.value),
	}
}

// build returns the bootstrap. It sets the node of cfg.
func (f *bootstrapFlags) build(id bootstrap.Identity, cfg *bootstrap.Config) (*bootstrapv3.Bootstrap, error) {
	made, err := f.base(id, cfg)
	if err != nil {
		return nil, err
	}
	var overlays []bootstrap.Overlay
	for _, path := range f.overlays {
		overlay, err := bootstrap.ReadOverlay(path)
		if err != nil {
			return nil, fmt.Errorf("--overlay: %w", err)
		}
		overlays = append(overlays, overlay)
	}
	return bootstrap.Apply(made, overlays...)
}

// base returns the bootstrap before any overlay.
func (f *bootstrapFlags) base(id bootstrap.Identity, cfg *bootstrap.Config) (*bootstrapv3.Bootstrap, error) {
	var template *bootstrapv3.Bootstrap
	var err error
	if f.template != "" {
		if template, err = bootstrap.ReadTemplate(f.template); err != nil {
			return nil, fmt.Errorf("--template: %w", err)
		}
		id = id.With(template.GetNode())
	}
	if f.templateOnly && f.grpcOut == "" {
		return template, nil
	}
	if cfg.Node, err = id.Node(); err != nil {
		return nil, err
	}
	switch {
	case f.templateOnly:
		return template, nil
	case template != nil:
		return bootstrap.Complete(template, *cfg)
	default:
		return bootstrap.Build(*cfg)
	}
}
