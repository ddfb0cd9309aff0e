package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/cgroup"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// bootstrapMode lets all users read the bootstrap: it contains no secret, and Envoy often runs as
// another user.
const bootstrapMode = 0o644

const bootstrapLong = `Write the bootstrap file with which Envoy gets its configuration from the agent: Envoy's
node, the agent's socket, the address of Envoy's admin interface, and settings of other
flags. The same flags write the same bytes. The file is replaced atomically. Neither an
agent nor a control plane is needed. docs/bootstrap.md has examples.

Metadata can also be set by the environment: HOLDFAST_META_NAME=text, and Istio's
ISTIO_META_NAME=text and ISTIO_METAJSON_NAME={"NAME": value}. --node-metadata overrides
HOLDFAST_META_, which overrides ISTIO_METAJSON_, ISTIO_META_, and the pod's files.

In a pod of Istio's webhook --istio gives the bootstrap what istiod expects, from the variables,
labels and annotations that the webhook sets.`

const bootstrapExample = `
# for an Envoy of the service web
holdfast bootstrap --out /etc/envoy/envoy.yaml --node-id web-1 --node-cluster web

# show it first, and what would change
holdfast bootstrap --print --node-id web-1 --node-cluster web
holdfast bootstrap --diff --out /etc/envoy/envoy.yaml --node-id web-1 --node-cluster web

# metadata: text, and a JSON value
holdfast bootstrap --out envoy.json --node-id web-1 --node-cluster web \
    --node-metadata team=shop --node-metadata 'labels:={"app":"web"}'

# in an init container: id, cluster and locality of the pod; probes and metrics
holdfast bootstrap --out /etc/envoy/envoy.yaml --pod-labels /etc/podinfo/labels \
    --wait-for pod-ip --ready-listen :15021 --stats-listen :15090

# in a pod of Istio's webhook
holdfast bootstrap --out /etc/envoy/envoy.yaml --istio

# with your own additions, checked by the Envoy that will read it
holdfast bootstrap --out envoy.yaml --node-id web-1 --node-cluster web \
    --overlay tracing.yaml --overlay no-admin.patch.yaml --validate --envoy-binary /usr/bin/envoy`

// bootstrapFlags are the flags of `holdfast bootstrap`. Most of them set fields of cfg, args and
// identity; the others are needed to complete these, or are about files.
type bootstrapFlags struct {
	// stdout is for --print, --diff and --out -; warn and progress tell a person what the command cannot tell by its
	// files.
	stdout         io.Writer
	warn, progress func(text string)
	// given reports whether a flag was set, by the command line, a variable or the file.
	given func(flag string) bool

	cfg      bootstrap.Config
	args     bootstrap.EnvoyArgs
	identity identityFlags
	wait     waitFlags

	out, grpcOut, argsOut string
	mode                  fs.FileMode
	print, diff, validate bool
	envoy                 string
	template              string
	templateOnly          bool
	overlays              []string
	upstream              upstreamOverlay
	runsEnvoy             bool          // with the bootstrap: `holdfast run` with Envoy as its child
	trial                 *overlayTrial // of what the control plane changes; nil for none

	istio       istioFlags
	defaultTags bool
	heap        heapLimit
	limits      cgroup.Limits // of Envoy's container, 0 for those of this one
}

func newBootstrap(p process) *command {
	c, f := bootstrapCommand(p)
	c.run = func(ctx context.Context, warnings []string) error {
		warn(c, warnings)
		return f.run(ctx, p.environ)
	}
	return c
}

// bootstrapCommand returns the command with its flags, without what it runs: `holdfast run` has these flags too.
func bootstrapCommand(p process) (*command, *bootstrapFlags) {
	c := newCommand("bootstrap", "write Envoy's bootstrap file", bootstrapLong, bootstrapExample)
	f := &bootstrapFlags{mode: bootstrapMode, stdout: p.stdout}
	f.warn = func(text string) { warn(c, []string{text}) }
	f.progress = func(text string) { _, _ = fmt.Fprintf(p.stderr, "holdfast: %s\n", text) }
	f.given = c.given
	f.add(c)
	return c, f
}

func (f *bootstrapFlags) add(c *command) {
	flags := c.section("Output (at least one)")
	flags.StringVar(&f.out, "out", "", "`FILE` to write for Envoy: YAML if its name ends in .yaml or .yml, JSON if in .json; - writes YAML to standard output")
	flags.Var(octal(&f.mode), "out-mode", "permissions of the file, in `OCTAL`: 0600 if only Envoy's own user may read it; in the file of --config put them into quotes")
	flags.StringVar(&f.grpcOut, "grpc-out", "", "`FILE` to write for proxyless gRPC, in JSON, for GRPC_XDS_BOOTSTRAP")
	flags.StringVar(&f.argsOut, "args-out", "", "`FILE` to write Envoy's command line arguments to, one per line, for settings that a bootstrap cannot contain")
	flags.BoolVar(&f.print, "print", false, "write the bootstrap to standard output instead, and no file")
	flags.BoolVar(&f.diff, "diff", false, "show how the file of --out would change, and write no file; the exit code is 1 if it would change")
	flags.BoolVar(&f.validate, "validate", false, "let Envoy check the bootstrap (envoy --mode validate) before it is written, if an Envoy is installed. The rules of Envoy's API are always checked. Without --out, only check")
	flags.StringVar(&f.envoy, "envoy-binary", "", "`FILE`, or command in PATH, of the Envoy for --validate; empty: envoy, if it is in PATH")
	f.identity.add(c.section("Envoy's node (id and cluster are required)"))
	f.istio.add(c.section("Istio"))
	f.addConnection(c.section("Envoy's connection to the agent"))
	f.addStats(c)
	f.addLimits(c)
	flags = c.section("Changes to the result")
	flags.StringVar(&f.template, "template", "", "`FILE` of a bootstrap to start with; the other flags add what is not in it")
	flags.BoolVar(&f.templateOnly, "template-only", false, "add nothing to --template")
	flags.Var(texts(&f.overlays), "overlay", "`FILE` that changes the bootstrap: *.patch.yaml is a JSON patch, *.merge.yaml a JSON merge patch, and any other file a part of a bootstrap, merged as protobuf does; .json too. Several are applied in this order")
	f.upstream.add(c)
	f.wait.add(c.section("Waiting first"))
}

func (f *bootstrapFlags) addConnection(flags *pflag.FlagSet) {
	cfg := &f.cfg
	flags.StringVar(&cfg.XDS.Socket, "socket", bootstrap.DefaultSocket, "absolute `PATH` of the agent's Unix socket")
	flags.Var(oneOf(&cfg.XDS.Mode, bootstrap.Delta, bootstrap.SotW), "xds-protocol", "variant of xDS between Envoy and the agent; the control plane may use the other one. Not for rest")
	flags.Var(oneOf(&cfg.XDS.Transport, bootstrap.ADS, bootstrap.PerType, bootstrap.REST), "xds-transport", "all types on one stream (ads), which keeps their order; one gRPC stream per type; or REST polling")
	flags.Var(numberOf(&cfg.XDS.RefreshDelay, bootstrap.DefaultRefreshDelay, notNegative), "xds-rest-refresh", "pause between two polls of a type, for rest (`DURATION`)")
	flags.Var(numberOf(&cfg.XDS.RequestTimeout, bootstrap.DefaultRequestTimeout, notNegative), "xds-rest-timeout", "timeout of a poll (`DURATION`); it must be longer than the agent's --rest-hold")
	flags.StringVar(&cfg.Admin, "envoy-admin", "", "`ADDR` of Envoy's admin interface: host:port on loopback, or unix:PATH; empty: "+bootstrap.DefaultAdmin+", with --ip-family v6 "+bootstrap.DefaultAdminV6)
	flags.Var(oneOf(&cfg.Family, bootstrap.V4, bootstrap.V6, bootstrap.Dual), "ip-family", "address family of --ready-listen and --stats-listen if they have no host, and of the --pod-ip in the node id")
}

func (f *bootstrapFlags) addStats(c *command) {
	stats := &f.cfg.Stats
	flags := c.section("Health and metrics")
	flags.StringVar(&f.cfg.Endpoints.Ready, "ready-listen", "", "`ADDR`, host:port or :port (15021 with Istio), that serves Envoy's readiness at "+bootstrap.ReadyPath+"; all other paths are not found")
	flags.StringVar(&f.cfg.Endpoints.Stats, "stats-listen", "", "`ADDR`, host:port or :port (15090 with Istio), that serves metrics for Prometheus at "+bootstrap.StatsPath+"; all other paths are not found")
	flags.Var(each(&stats.Tags, parseTag), "stats-tag", "`NAME=REGEX`: the first group is removed from the names of stats, the second is the value of the tag; or NAME:=TEXT for a tag of all stats")
	flags.BoolVar(&f.defaultTags, "stats-default-tags", true, "keep Envoy's default tags")
	flags.Var(each(&stats.Include, parseMatch), "stats-include", "`KIND:TEXT` (prefix:, suffix: or regex:) of the stats to keep, besides those of xDS, server and draining; all others are dropped")
	flags.Var(each(&stats.Exclude, parseMatch), "stats-exclude", "`KIND:TEXT` of the stats to drop")
	flags.Var(each(&stats.Buckets, parseBuckets), "histogram-buckets", "`KIND:TEXT=BOUND,BOUND,…` for histograms, such as prefix:cluster.=1,5,10; the first match is used. In a variable, one per line")
	flags.Var(numberOf(&stats.FlushInterval, 0, notNegative), "stats-flush-interval", "interval at which stats are sent to sinks (`DURATION`, 1ms to 5m); 0: Envoy's default of 5s")
}

func (f *bootstrapFlags) addLimits(c *command) {
	flags := c.section("Runtime and limits")
	flags.Var(runtimeValues(&f.cfg.Runtime.Values), "runtime", "`KEY=VALUE` of Envoy's runtime; numbers and booleans are recognized. KEY:=JSON for anything else, such as a fraction")
	flags.Var(texts(&f.cfg.Runtime.RTDS), "rtds-layer", "`NAME` of a runtime layer that the control plane serves (RTDS); a later layer overrides an earlier one")
	flags.Var(heapLimits(&f.heap), "heap-limit", "maximum size of Envoy's heap: from 98 % of it, requests are answered with 503. auto: 95 % of the memory limit of this container, which in an init container may not be Envoy's (see --memory-limit)")
	flags.Var(numberOf(&f.cfg.Overload.MaxConnections, 0, bounds{max: math.MaxInt32}), "max-connections", "maximum `NUMBER` of open downstream connections; 0: no limit")
	flags.Var(size(&f.limits.Memory), "memory-limit", "memory limit of Envoy's container, in `BYTES` as from resourceFieldRef, for --heap-limit auto; 0: that of this container")
	flags.Var(cpus(&f.limits.CPU), "cpu-limit", "CPU limit of Envoy's container, in `CPUS`, for --envoy-concurrency auto; 0: that of this container")
	flags = c.section("Envoy's log, and its arguments for --args-out")
	flags.Var(oneOf(&f.cfg.Log, bootstrap.Text, bootstrap.JSONLine), "envoy-log-format", "format of Envoy's log")
	flags.Var(oneOf(&f.args.LogLevel, append([]string{"default"}, bootstrap.LogLevels()...)...), "envoy-log-level", "minimum level of Envoy's log messages; default is Envoy's own default: info")
	flags.Var(workers(&f.args.Concurrency), "envoy-concurrency", "number of worker threads; auto: one per CPU of the limit, rounded up, or Envoy's default without a limit")
	flags.Var(numberOf(&f.args.DrainTime, 0, notNegative), "envoy-drain-time", "duration of a drain of Envoy (`DURATION`); 0: Envoy's default")
}

// run validates, waits, builds and writes.
func (f *bootstrapFlags) run(ctx context.Context, environ []string) error {
	if err := f.consistent(); err != nil {
		return err
	}
	f.istio.setDefaults(f)
	ips, err := f.identity.ips(environ)
	if err != nil {
		return err
	}
	if ips, err = f.wait.wait(ctx, f.progress, f.cfg.XDS.Socket, ips, f.cfg.Family); err != nil {
		return err
	}
	if f.istio.on && !f.given("ip-family") && !slices.ContainsFunc(ips, bootstrap.V4.Has) && len(ips) > 0 {
		f.cfg.Family = bootstrap.V6 // as pilot-agent does
	}
	id, err := f.identity.identity(environ, f.cfg.Family, ips)
	if err != nil {
		return err
	}
	if id, err = f.istio.read(f, id); err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return cli.Failed(err)
	}
	made, err := f.build(ctx, id)
	if err != nil {
		return err
	}
	if err := bootstrap.Check(made); err != nil {
		return err
	}
	if addr := bootstrap.OpenAdmin(made); addr != "" {
		f.warn(fmt.Sprintf("a template, an overlay or the control plane puts Envoy's admin interface on %s: everybody who can reach it can stop Envoy and read its configuration; use loopback or a Unix socket", addr))
	}
	for _, past := range bootstrap.PastAgent(made, f.cfg.XDS.Socket) {
		f.warn(fmt.Sprintf("a template, an overlay or the control plane leads Envoy past the agent, which then keeps nothing for it: %s, and not the socket %s (--socket)", past, f.cfg.XDS.Socket))
	}
	if f.heap.auto && f.limits.Memory == 0 {
		f.warn("--heap-limit auto has no effect, because the container has no memory limit: give --memory-limit")
	}
	return f.write(ctx, made)
}

// consistent checks flags that need or exclude one another.
func (f *bootstrapFlags) consistent() error {
	switch {
	case f.print && f.diff:
		return errors.New("--print and --diff: want only one of them")
	case f.diff && (f.out == "" || f.out == "-"):
		return errors.New("--diff compares with a file: name it with --out")
	case f.out == "" && f.grpcOut == "" && f.argsOut == "" && !f.print && !f.validate:
		return errors.New("--out is missing: name the file that Envoy will read, such as --out envoy.yaml, or - for standard output")
	case f.argsOut != "" && (f.out == "" || f.out == "-"):
		return errors.New("--args-out needs --out with a file, because the arguments name that file")
	case f.templateOnly && f.template == "":
		return errors.New("--template-only needs --template")
	case f.envoy != "" && !f.validate && f.upstream.mode == overlayNo:
		return errors.New("--envoy-binary needs --validate")
	}
	return f.upstream.check()
}

// complete adds to cfg and args what follows from the limits of the container, or from several
// flags.
func (f *bootstrapFlags) complete() error {
	needsMemory := f.heap.auto && f.limits.Memory == 0
	needsCPU := f.argsOut != "" && f.args.Concurrency == 0 && f.limits.CPU == 0
	if needsMemory || needsCPU {
		own, err := cgroup.Read(os.DirFS("/"))
		if err != nil {
			return err
		}
		f.limits.Memory, f.limits.CPU = cmp.Or(f.limits.Memory, own.Memory), cmp.Or(f.limits.CPU, own.CPU)
	}
	f.cfg.Overload.MaxHeap = f.heap.bytes
	if f.heap.auto {
		f.cfg.Overload.MaxHeap = bootstrap.HeapLimit(f.limits)
	}
	f.cfg.Stats.NoDefaultTags = !f.defaultTags
	f.args.Bootstrap = f.out
	if f.args.LogLevel == "default" {
		f.args.LogLevel = ""
	}
	if f.args.Concurrency == 0 {
		f.args.Concurrency = bootstrap.Concurrency(f.limits)
	}
	return nil
}

// build returns the bootstrap. It sets the node of cfg.
func (f *bootstrapFlags) build(ctx context.Context, id bootstrap.Identity) (*bootstrapv3.Bootstrap, error) {
	made, err := f.base(id)
	if err == nil && f.istio.on && !f.templateOnly {
		made, err = f.istio.proxy.Complete(made)
	}
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
	if made, err = f.mergeUpstream(ctx, made, overlays); err != nil {
		return nil, err
	}
	return bootstrap.Apply(made, overlays...)
}

// base returns the bootstrap before any overlay.
func (f *bootstrapFlags) base(id bootstrap.Identity) (*bootstrapv3.Bootstrap, error) {
	var template *bootstrapv3.Bootstrap
	var err error
	if f.template != "" {
		if template, err = bootstrap.Read("template", f.template); err != nil {
			return nil, fmt.Errorf("--template: %w", err)
		}
		id = id.With(template.GetNode())
	}
	if f.templateOnly && f.grpcOut == "" {
		return template, nil
	}
	if f.cfg.Node, err = id.Node(); err != nil {
		return nil, err
	}
	switch {
	case f.templateOnly:
		return template, nil
	case template != nil:
		return bootstrap.Complete(template, f.cfg)
	default:
		return bootstrap.Build(f.cfg)
	}
}

// waitFlags are the flags of what to wait for.
type waitFlags struct {
	conditions []string
	timeout    time.Duration
}

func (f *waitFlags) add(flags *pflag.FlagSet) {
	flags.Var(texts(&f.conditions), "wait-for", "`WHAT` to wait for before anything is written: pod-ip (given, or of a network interface), token=FILE (not empty), file=PATH, socket (the agent listens on --socket) or socket=PATH; several with commas, or repeated")
	flags.Var(numberOf(&f.timeout, time.Minute, positive), "wait-timeout", "maximum time to wait (`DURATION`); then the command exits with code 1 and reports what is missing")
}

// wait returns when all conditions hold, and calls progress for each that it waits for. It returns ips, the given addresses of the pod; if there
// are none and the conditions include pod-ip, the addresses of the machine.
func (f *waitFlags) wait(ctx context.Context, progress func(text string), socket string, ips []netip.Addr, family bootstrap.Family) ([]netip.Addr, error) {
	var conditions []bootstrap.Condition
	for _, all := range f.conditions {
		for name := range strings.SplitSeq(all, ",") {
			c, err := condition(strings.TrimSpace(name), socket, &ips, family)
			if err != nil {
				return nil, err
			}
			conditions = append(conditions, c)
		}
	}
	if len(conditions) == 0 {
		return ips, nil
	}
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	err := bootstrap.Wait(limited, conditions, func(name string, missing error) {
		if missing != nil {
			progress(fmt.Sprintf("waiting for %s: %v", name, missing))
		} else {
			progress(name + " found")
		}
	})
	switch {
	case err == nil:
		return ips, nil
	case ctx.Err() != nil:
		return nil, cli.Failed(fmt.Errorf("interrupted while waiting for:\n%w", err))
	default:
		return nil, cli.Failed(fmt.Errorf("still missing after %s (--wait-timeout):\n%w", f.timeout, err))
	}
}

// condition parses one condition. pod-ip stores the addresses that it finds in ips.
func condition(name, socket string, ips *[]netip.Addr, family bootstrap.Family) (bootstrap.Condition, error) {
	kind, path, hasPath := strings.Cut(name, "=")
	switch {
	case kind == "pod-ip" && !hasPath:
		return bootstrap.Condition{Name: name, Missing: func(context.Context) error {
			return podIPs(ips, family)
		}}, nil
	case kind == "token" && path != "":
		return bootstrap.FileThere(name, path, true), nil
	case kind == "file" && path != "":
		return bootstrap.FileThere(name, path, false), nil
	case kind == "socket" && !hasPath:
		return bootstrap.SocketThere(name, socket), nil
	case kind == "socket" && path != "":
		return bootstrap.SocketThere(name, path), nil
	}
	return bootstrap.Condition{}, fmt.Errorf("--wait-for %q: want pod-ip, token=FILE, file=PATH, socket or socket=PATH", name)
}

// podIPs returns nil if ips has an address of the family. If ips is empty, it looks at the network
// interfaces, and stores their addresses in ips if one is of the family.
func podIPs(ips *[]netip.Addr, family bootstrap.Family) error {
	found := *ips
	if len(found) == 0 {
		var err error
		if found, err = interfaceIPs(); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(found, family.Has) {
		*ips = found
		return nil
	}
	if len(found) == 0 {
		return errors.New("none is given, and no network interface has one")
	}
	return fmt.Errorf("%v has no address of the family %s (--ip-family)", found, family)
}

// write writes the bootstrap in the requested forms. Nothing is written unless all checks pass.
func (f *bootstrapFlags) write(ctx context.Context, made *bootstrapv3.Bootstrap) error {
	format := bootstrap.YAML
	if f.out != "" && f.out != "-" {
		var err error
		if format, err = bootstrap.FormatOf(f.out); err != nil {
			return err
		}
	}
	text, err := bootstrap.Encode(made, format)
	if err != nil {
		return cli.Failed(err)
	}
	if f.validate {
		if err := f.askEnvoy(ctx, text, format); err != nil {
			return cli.Failed(err)
		}
	}
	switch {
	case f.diff:
		return f.showDiff(string(text))
	case f.print || f.out == "-":
		if _, err := f.stdout.Write(text); err != nil || f.print {
			return cli.Failed(err)
		}
	}
	if err := f.writeOthers(); err != nil || f.out == "" || f.out == "-" {
		return err
	}
	if why := bootstrap.Sensitive(made); why != "" && f.mode&0o077 != 0 {
		f.warn(fmt.Sprintf("%s can be read by other users (--out-mode %04o), and it contains %s: use --out-mode 0600", f.out, f.mode, why))
	}
	return cli.Failed(atomicfile.Write(f.out, text, f.mode))
}

// writeFile writes a bootstrap to the file of --out, and nothing else.
func (f *bootstrapFlags) writeFile(made *bootstrapv3.Bootstrap) error {
	format, err := bootstrap.FormatOf(f.out)
	if err != nil {
		return err
	}
	text, err := bootstrap.Encode(made, format)
	if err != nil {
		return err
	}
	return atomicfile.Write(f.out, text, f.mode)
}

// writeOthers writes the files for gRPC and with the arguments.
func (f *bootstrapFlags) writeOthers() error {
	if f.grpcOut != "" {
		text, err := bootstrap.GRPC(f.cfg)
		if err != nil {
			return err
		}
		if err := atomicfile.Write(f.grpcOut, text, bootstrapMode); err != nil {
			return cli.Failed(err)
		}
	}
	if f.argsOut == "" {
		return nil
	}
	text, err := f.args.Text()
	if err != nil {
		return err
	}
	return cli.Failed(atomicfile.Write(f.argsOut, text, bootstrapMode))
}

// askEnvoy lets the Envoy of --envoy-binary, or else one in PATH, check the bootstrap.
func (f *bootstrapFlags) askEnvoy(ctx context.Context, text []byte, format bootstrap.Format) error {
	binary, err := f.envoyBinary()
	if err != nil {
		return err
	}
	if binary == "" {
		f.warn("--validate: there is no envoy in PATH (name one with --envoy-binary): only the rules of its API were checked, as far as they are known without Envoy")
		return nil
	}
	return bootstrap.CheckWithEnvoy(ctx, binary, text, format, f.scratch(), nil)
}

// scratch returns the directory for a temporary file: that of --out, where an init container may write, if anywhere.
func (f *bootstrapFlags) scratch() string {
	if f.out == "" || f.out == "-" {
		return ""
	}
	dir := filepath.Dir(f.out)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "" // it is created with the file
	}
	return dir
}

// envoyBinary returns the Envoy that can check a bootstrap; "" if none is named and there is none in PATH.
func (f *bootstrapFlags) envoyBinary() (string, error) {
	binary, err := exec.LookPath(cmp.Or(f.envoy, "envoy"))
	switch {
	case err == nil:
		return binary, nil
	case f.envoy != "":
		return "", fmt.Errorf("--envoy-binary: %w", err)
	}
	return "", nil
}

// showDiff shows how the existing file would change.
func (f *bootstrapFlags) showDiff(text string) error {
	name := f.out
	before, err := userfile.Read(f.out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		name = os.DevNull
	case err != nil:
		return cli.Failed(fmt.Errorf("--diff: %w", err))
	}
	diff := udiff.Unified(name, f.out, string(before), text)
	if diff == "" {
		return nil
	}
	if _, err := fmt.Fprint(f.stdout, diff); err != nil {
		return cli.Failed(err)
	}
	return cli.Failed(fmt.Errorf("%s would change", f.out))
}
