// Command meshscale measures how the cost of holdfast-mesh grows with proxies, with services and with replicas.
//
// It starts an etcd (its server module, in a process of its own), replicas of holdfast-mesh, and a fleet of simulated
// sidecars: each has a gRPC connection and a stream of its own on loopback, subscribes as Envoy does, reads all
// responses, and ACKs them; one of twenty unmarshals every resource into its message. Proxies that only count share
// connections, and read of responses no more than they need for an ACK. Each endpoint's address is the number of the
// change that made it, so that a proxy knows what it has.
//
// It asserts nothing about time. It fails if a proxy does not get what it must, goes back to older endpoints, or is told
// to remove anything: nobody orders a removal. It needs Linux.
//
//	meshscale -mesh bin/holdfast-mesh [-quick] [-cases REGEXP] [-out FILE] [-plots DIR]
//	meshscale -draw FILE -plots DIR
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/test/bench/process"
)

func main() {
	if len(os.Args) == 5 && os.Args[1] == etcdCommand {
		if err := runEtcd(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, "meshscale: etcd:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "meshscale:", err)
		os.Exit(1)
	}
}

// options are how everything is measured.
type options struct {
	binary    string
	flags     []string
	directory bool
	pprof     string
	machine   machine
	log       io.Writer
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	o := options{log: log, machine: machine{CPUs: runtime.NumCPU(), CPU: process.CPUModel(), Go: runtime.Version(), Kernel: process.Kernel()}}
	flags := flag.NewFlagSet("meshscale", flag.ContinueOnError)
	flags.StringVar(&o.binary, "mesh", "bin/holdfast-mesh", "`BINARY` of holdfast-mesh")
	quick := flags.Bool("quick", false, "small cases, about two minutes on two processors")
	only := flags.String("cases", "", "only the cases whose name matches a `REGEXP`")
	rounds := flags.Int("rounds", 1, "how often each case is measured, one `N` times after the other")
	part := flags.String("phases", "", "only the phases whose name matches a `REGEXP`, and those that all others need")
	extra := flags.String("flags", "", "further `FLAGS` of holdfast-mesh serve, with spaces between them")
	flags.BoolVar(&o.directory, "directory", false, "documents are in a directory, and not in an etcd")
	flags.StringVar(&o.pprof, "pprof", "", "write profiles (CPU, allocations, heap) of the first replica into a `DIR`")
	to := flags.String("out", "", "write the results as JSON lines into a `FILE`")
	plots := flags.String("plots", "", "write plots into a `DIR`")
	from := flags.String("draw", "", "measure nothing, and draw the plots of a results `FILE` into -plots")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-cases: %w", err)
	}
	parts, err := regexp.Compile(*part)
	if err != nil {
		return fmt.Errorf("-phases: %w", err)
	}
	if *rounds < 1 {
		return fmt.Errorf("-rounds %d: must be at least 1", *rounds)
	}
	if *from != "" {
		results, err := readResults(*from)
		if err != nil {
			return err
		}
		return errors.Join(growth(out, results), draw(*plots, results))
	}
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	o.flags = strings.Fields(*extra)
	if o.pprof != "" {
		o.flags = append(o.flags, "--pprof")
	}
	all := cases(*quick)
	for i, c := range all {
		all[i].phases = slices.DeleteFunc(slices.Clone(c.phases), func(p phase) bool { return !parts.MatchString(p.name) && p.name != "start" && p.name != "connect" })
	}
	var results []result
	var failed error
	for range *rounds {
		of, err := o.all(ctx, all, pattern)
		results = append(results, of...)
		if failed = err; failed != nil {
			break
		}
	}
	if failed == nil && len(results) == 0 {
		return fmt.Errorf("-cases %q: no case has such a name", *only)
	}
	if *to != "" {
		failed = errors.Join(failed, writeResults(*to, results))
	}
	return errors.Join(failed, table(out, results), growth(out, results), draw(*plots, results))
}

// all runs the cases whose name matches a pattern, up to the first that fails.
func (o options) all(ctx context.Context, cases []measurement, pattern *regexp.Regexp) (results []result, err error) {
	for _, c := range cases {
		if !pattern.MatchString(c.name) {
			continue
		}
		began := time.Now()
		err := o.measure(ctx, c, func(r result) {
			results = append(results, r)
			_, _ = fmt.Fprintln(o.log, r.summary())
		})
		if err != nil {
			return results, err
		}
		_, _ = fmt.Fprintf(o.log, "%s took %s\n", c.name, time.Since(began).Round(time.Second))
	}
	return results, nil
}

// namespaces is the number of namespaces that proxies and services are in.
const namespaces = 20

// scoped is how many services a proxy has, unless a case says otherwise.
const scoped = 50

// capped bounds how long changes wait for each other: without it, a hundred changes a second never leave the 100 ms
// without a change for which the debounce waits, and all wait for --debounce-max, 10 s.
var capped = []string{"--debounce-max", "1s"}

// singles is how many changes are made one at a time.
const singles = 20

// cases are what is measured.
func cases(quick bool) (all []measurement) {
	startUp := []phase{{"start", start}, {"connect", connect}}
	steady := func(seconds time.Duration) []phase {
		return append(startUp[:2:2], idle(seconds/3), single(singles), rate(100, seconds))
	}
	of := func(services, proxies, scope int) shape {
		return shape{services: services, proxies: proxies, namespaces: namespaces, scope: scope}
	}
	if quick {
		for _, proxies := range []int{50, 200} {
			all = append(all, measurement{name: fmt.Sprintf("proxies-%d", proxies), shape: of(1000, proxies, scoped), replicas: 1, flags: capped, phases: steady(6 * time.Second)})
		}
		all = append(all, measurement{name: "services-4000", shape: of(4000, 50, scoped), replicas: 1, flags: capped, phases: steady(6 * time.Second)},
			measurement{name: "replicas-2", shape: of(500, 200, scoped), replicas: 2, flags: capped, phases: []phase{
				{"start", start}, {"connect", connect}, rolling(10 * time.Second), death(100, 6*time.Second), {"revive", revive}, {"restart of all", restart}, {"cold start of all", coldStart},
			}})
		return all
	}
	const long = 15 * time.Second
	for _, proxies := range []int{100, 300, 1000} {
		all = append(all, measurement{name: fmt.Sprintf("proxies-%d", proxies), shape: of(1000, proxies, scoped), replicas: 1, flags: capped, phases: steady(long)})
	}
	all = append(all, measurement{name: "proxies-10000", shape: of(1000, 1000, scoped), counting: 9000, replicas: 1, flags: capped, phases: steady(long)})
	for _, services := range []int{1000, 4000, 20000} {
		all = append(all, measurement{name: fmt.Sprintf("services-%d", services), shape: of(services, 200, scoped), replicas: 1, flags: capped, phases: steady(long)})
	}
	for _, scope := range []int{20, 50, 100, 200, 400} {
		all = append(all, measurement{name: fmt.Sprintf("scope-%d", scope), shape: of(1000, 100, scope), replicas: 1, flags: capped, phases: steady(long)})
	}
	all = append(all,
		measurement{name: "defaults-1000", shape: of(1000, 1000, scoped), replicas: 1, phases: append(startUp[:2:2], rate(100, 2*long))},
		measurement{name: "replicas-3", shape: of(1000, 1000, scoped), replicas: 3, flags: capped, phases: []phase{
			{"start", start}, {"connect", connect}, rolling(time.Minute), death(100, long), {"revive", revive}, {"restart of all", restart}, {"cold start of all", coldStart},
		}},
		measurement{name: "limits-1000", shape: of(1000, 1000, scoped), replicas: 1, flags: capped, phases: append(startUp[:2:2], rate(300, long), rate(1000, long))},
		measurement{name: "everything-300", shape: of(1000, 300, 0), replicas: 1, flags: capped, phases: steady(long)})
	return all
}
