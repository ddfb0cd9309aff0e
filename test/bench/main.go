// Command bench measures what an xDS agent costs between a client and a control
// plane, against the limits: no agent at all (direct), a process that only copies
// bytes (pipe), and one that only passes gRPC messages on, undecoded (relay): the
// least that any proxy made of grpc-go costs.
//
// It is control plane and client in one process, so that one clock times a message
// at both ends; the target is a process beside it, and all sockets are Unix sockets.
// Responses are encoded before they are timed and requests are as small as the
// protocol allows, so that what the bench does itself is small, and the same for
// every target. It asserts nothing about time; it fails when a target does not
// deliver.
//
//	bench [-quick] [-cases REGEXP] [-target direct,pipe,relay,holdfast] [-out results.jsonl] [-plots DIR] [-profile DIR]
//	bench -check OLD NEW
//	bench -draw RESULTS -plots DIR
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/test/bench/process"
)

// helpers are the targets that are this program again, by the command that makes it
// one. Each listens on a Unix socket and passes on to another, until it is killed.
var helpers = map[string]func(listen, to string) error{"pipe": pipe, "relay": relay}

// runHelper makes this process a helper, if the command line names one, and does not
// return then.
func runHelper(args []string) {
	if len(args) != 4 {
		return
	}
	if run := helpers[args[1]]; run != nil {
		fatal(run(args[2], args[3]))
	}
}

// gcPercent keeps the bench's own collections rare while something is timed.
const gcPercent = 400

func main() {
	runHelper(os.Args)
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	fatal(err)
}

// fatal ends the program.
func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// options are the command line.
type options struct {
	holdfast string
	targets  string
	agents   commands
	tcp      bool
	cases    string
	rounds   int
	quick    bool
	list     bool
	check    bool
	draw     string
	out      string
	plots    string
	profile  profiling
}

// commands is a flag that may be given several times.
type commands []string

func (c *commands) String() string { return strings.Join(*c, ", ") }

func (c *commands) Set(s string) error {
	*c = append(*c, s)
	return nil
}

func command(ctx context.Context, args []string, out, progress io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.StringVar(&o.holdfast, "holdfast", "bin/holdfast", "the `BINARY` to measure")
	flags.StringVar(&o.targets, "target", "direct,pipe,relay,holdfast", "the targets, in this `ORDER`")
	flags.Var(&o.agents, "agent", "another agent, as `NAME=COMMAND` with {socket}, {upstream}, and if need be {form} (sotw, delta), {admin} and {dir}; repeatable")
	flags.BoolVar(&o.tcp, "tcp", false, "let the control plane listen on a TCP port of loopback, for agents that know no Unix sockets")
	flags.StringVar(&o.cases, "cases", "", "only the cases that match the `REGEXP`")
	flags.IntVar(&o.rounds, "rounds", 0, "the `NUMBER` of rounds at most; 0: as planned")
	flags.BoolVar(&o.quick, "quick", false, "tiny sizes, one round: to see that everything works")
	flags.BoolVar(&o.list, "list", false, "list the cases")
	flags.BoolVar(&o.check, "check", false, "compare two results files: bench -check OLD NEW")
	flags.StringVar(&o.draw, "draw", "", "measure nothing, and draw the plots of a results `FILE` into -plots")
	flags.StringVar(&o.out, "out", "", "write the results to a `FILE`, one JSON object a line")
	flags.StringVar(&o.plots, "plots", "", "write plots of the scaling cases into a `DIR`")
	flags.StringVar(&o.profile.dir, "profile", "", "write CPU profiles of holdfast into a `DIR`, as CASE-ROUND.pprof; they cost it some time, so the figures are not for comparing")
	flags.IntVar(&o.profile.seconds, "profile-seconds", 5, "how many `SECONDS` of a case are profiled, from when holdfast listens; a case that ends earlier loses its profile")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case o.check && flags.NArg() != 2:
		return errors.New("-check wants two results files: bench -check OLD NEW")
	case o.check:
		return check(out, flags.Arg(0), flags.Arg(1))
	case o.profile.seconds <= 0:
		return fmt.Errorf("-profile-seconds %d: want a positive number", o.profile.seconds)
	case o.draw != "":
		return redraw(o.draw, o.plots, progress)
	case flags.NArg() > 0:
		return fmt.Errorf("%q: want flags only", flags.Arg(0))
	}
	return o.measure(ctx, out, progress)
}

func (o options) measure(ctx context.Context, out, progress io.Writer) error {
	p := full
	if o.quick {
		p = quick
	}
	if o.rounds > 0 {
		p.rounds = o.rounds
	}
	wanted, err := regexp.Compile(o.cases)
	if err != nil {
		return fmt.Errorf("-cases: %w", err)
	}
	cases := slices.DeleteFunc(allCases(&p), func(c measurement) bool { return !wanted.MatchString(c.name) })
	if len(cases) == 0 {
		return fmt.Errorf("-cases %s: no case has such a name; -list lists them", o.cases)
	}
	if o.list {
		for _, c := range cases {
			fmt.Fprintln(out, c.name)
		}
		return nil
	}
	if o.profile.dir != "" {
		if err := os.MkdirAll(o.profile.dir, 0o755); err != nil {
			return fmt.Errorf("-profile: %w", err)
		}
	}
	o.profile.log = progress
	targets, err := o.chosen()
	if err != nil {
		return err
	}
	r := &runner{plan: &p, targets: targets, progress: progress,
		machine: machine{CPUs: runtime.NumCPU(), CPU: process.CPUModel(), Go: runtime.Version(), Kernel: process.Kernel()}}
	results, failed := r.run(ctx, cases)
	fmt.Fprintf(out, "%d CPUs (%s), %s, Linux %s; medians of up to %d rounds\n\n", r.machine.CPUs, r.machine.CPU, r.machine.Go, r.machine.Kernel, p.rounds)
	if err := printTable(out, results); err != nil {
		return err
	}
	if o.out != "" {
		if err := writeResults(o.out, results); err != nil {
			return errors.Join(failed, err)
		}
	}
	if o.plots != "" {
		failed = errors.Join(failed, plots(o.plots, results, progress))
	}
	return failed
}

// plots draws results into a directory.
func plots(dir string, results []result, progress io.Writer) error {
	files, err := drawCharts(dir, results)
	if err != nil {
		return err
	}
	fmt.Fprintln(progress, "plots:", strings.Join(files, " "))
	return nil
}

// redraw draws the results of an earlier run.
func redraw(from, dir string, progress io.Writer) error {
	if dir == "" {
		return errors.New("-draw wants -plots DIR")
	}
	results, err := readResults(from)
	if err != nil {
		return err
	}
	return plots(dir, results, progress)
}

// allCases returns every case, in the order in which they are measured.
func allCases(p *plan) []measurement {
	return slices.Concat(latencyCases(p), footprintCases(p), lifecycleCases(p), limitCases(p), scalingCases(p))
}

// chosen returns the targets that the command line names.
func (o options) chosen() ([]target, error) {
	var targets []target
	for name := range strings.SplitSeq(o.targets, ",") {
		switch name {
		case "direct":
			targets = append(targets, direct)
		case "pipe", "relay":
			t, err := helperTarget(name)
			if err != nil {
				return nil, err
			}
			targets = append(targets, t)
		case "holdfast":
			path, err := filepath.Abs(o.holdfast)
			if err == nil {
				// Found here, and not by each of the measurements after it has prepared
				// its control plane: something else may have this name.
				_, err = exec.LookPath(path)
			}
			if err != nil {
				return nil, fmt.Errorf("-holdfast: %w (make build makes it)", err)
			}
			targets = append(targets, holdfastTarget(path, o.profile))
		default:
			return nil, fmt.Errorf("-target %q: want some of direct, pipe, relay and holdfast; others are given by -agent", name)
		}
	}
	for _, spec := range o.agents {
		t, err := commandTarget(spec)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	for i := range targets {
		targets[i].tcp = o.tcp
	}
	return targets, nil
}
