package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
)

const writeBootstrapFlag = "write-bootstrap"

// ownBootstrap is the bootstrap that `holdfast run --write-bootstrap` writes before it starts the agent and Envoy.
type ownBootstrap struct {
	asked bool
	flags *bootstrapFlags
}

// add adds the flag, and the flags of `holdfast bootstrap`. All other flags of c must have been added.
func (o *ownBootstrap) add(c *command, p process) {
	c.section("Envoy's bootstrap, written when the agent starts").BoolVar(&o.asked, writeBootstrapFlag, false,
		"write Envoy's bootstrap first, as the command bootstrap does, to the file of --out or of --bootstrap, and run with it. Takes the flags of the command bootstrap, too, except --print and --diff (holdfast help bootstrap lists them)")
	var bootstrapping *command
	bootstrapping, o.flags = bootstrapCommand(p)
	c.borrow(bootstrapping, writeBootstrapFlag)
	o.flags.given = func(flag string) bool { return c.given(flag) || bootstrapping.given(flag) } // a flag of both is set in c
}

// write writes the bootstrap and returns its path and Envoy's command line, child, which it completes by what
// a bootstrap cannot contain. named is the file of --bootstrap, "" for none. After an error the file, if there is one,
// may be that of an earlier start, and Envoy must not be started with it.
func (o *ownBootstrap) write(ctx context.Context, log *slog.Logger, environ []string, named string, child []string) (path string, _ []string, err error) {
	f := o.flags
	f.warn = func(text string) { log.Warn("Envoy's bootstrap", "err", text) }
	f.progress = func(text string) { log.Info("before Envoy's bootstrap is written", "status", text) }
	f.out = cmp.Or(f.out, named)
	if err := o.check(named, child); err != nil {
		return "", nil, fmt.Errorf("--%s: %w", writeBootstrapFlag, err)
	}
	if (f.validate || f.upstream.mode != overlayNo) && f.envoy == "" && len(child) > 0 {
		f.envoy = child[0]
	}
	f.runsEnvoy = len(child) > 0
	if err := f.run(ctx, environ); err != nil {
		return "", nil, err
	}
	log.Info("Envoy's bootstrap is written", "file", f.out)
	return f.out, o.arguments(child), nil
}

// check returns an error for settings that `holdfast bootstrap` alone would accept.
func (o *ownBootstrap) check(named string, child []string) error {
	f, file := o.flags, configFile(child)
	switch {
	case f.print:
		return errors.New("--print has no meaning here: `holdfast bootstrap --print` shows the bootstrap")
	case f.diff:
		return errors.New("--diff has no meaning here: `holdfast bootstrap --diff` compares the bootstrap with the file")
	case f.out == "":
		return errors.New("--out is missing: name the file to write, which Envoy will read, such as --out /etc/envoy/envoy.yaml")
	case f.out == "-":
		return errors.New("--out - is standard output, which Envoy cannot read: name a file, such as --out /etc/envoy/envoy.yaml")
	case named != "" && !samePath(f.out, named):
		return fmt.Errorf("--out is %s and --bootstrap is %s: give only one of them, because the agent reads the file that it writes", f.out, named)
	case file != "" && !samePath(f.out, file):
		return fmt.Errorf("the bootstrap is written to %s, but the command after -- reads %s: name the same file in both places", f.out, file)
	}
	for _, conditions := range f.wait.conditions {
		for name := range strings.SplitSeq(conditions, ",") {
			kind, path, _ := strings.Cut(strings.TrimSpace(name), "=")
			if kind == "socket" && (path == "" || samePath(path, f.cfg.XDS.Socket)) {
				return errors.New("--wait-for socket would wait for this agent, which serves --socket only after the bootstrap is written: leave it out")
			}
		}
	}
	return nil
}

// arguments returns Envoy's command line, child, with the arguments of `holdfast bootstrap --args-out` that it does not
// have; nil for no child.
func (o *ownBootstrap) arguments(child []string) []string {
	if len(child) == 0 {
		return nil
	}
	line, more := child, o.flags.args.Args()
	for i := 0; i+1 < len(more); i += 2 {
		if name := more[i]; !hasArgument(child, name) {
			line = append(line[:len(line):len(line)], name, more[i+1])
		}
	}
	return line
}

// shortArguments are the other names of some arguments of Envoy.
var shortArguments = map[string]string{"-c": "--config-path", "--log-level": "-l"}

// hasArgument reports whether a command line has an argument, by any of its names.
func hasArgument(line []string, name string) bool {
	for _, arg := range line[1:] {
		arg, _, _ = strings.Cut(arg, "=")
		if arg == name || arg == shortArguments[name] {
			return true
		}
	}
	return false
}

// samePath reports whether two paths name one file, without looking at the file system.
func samePath(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}
