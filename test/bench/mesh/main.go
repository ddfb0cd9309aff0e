// Command mesh measures a mesh control plane with simulated sidecars: what it costs to connect them,
// and how long a change takes until the last of them has it.
//
// The control plane is a process beside this one, and is given a directory of documents. Its CPU time
// and memory are those of its process. The sidecars speak Delta or SotW over TCP, subscribe as Envoy
// does, and ACK; of responses they read only the names. It asserts nothing about time, and fails if a
// sidecar does not get what it must.
//
//	mesh [-services N] [-sidecars N] [-form delta|sotw] [-namespaces N] -- COMMAND…
//
// In COMMAND, {config} is the directory and {xds} the address on which to serve.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/holdfast-xds/holdfast/test/bench/process"
	"github.com/holdfast-xds/holdfast/test/bench/sidecar"
)

// deadline is how long one step may take.
const deadline = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mesh:", err)
		os.Exit(1)
	}
}

// options are what is measured.
type options struct {
	services, sidecars, namespaces int
	scoped                         int // the services in the scope of each namespace; 0: all
	sotw                           bool
	vhds                           bool // the sidecars get virtual hosts one by one
	workloads                      bool // each sidecar is a workload of a service of its own
	command                        []string
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{}
	flags := flag.NewFlagSet("mesh", flag.ContinueOnError)
	flags.IntVar(&o.services, "services", 1000, "number of services, of two ports each")
	flags.IntVar(&o.sidecars, "sidecars", 100, "number of sidecars")
	flags.IntVar(&o.namespaces, "namespaces", 1, "number of namespaces that the sidecars are in")
	flags.IntVar(&o.scoped, "scoped", 0, "number of services that the Sidecar of each namespace imports; 0: no Sidecar")
	flags.BoolVar(&o.vhds, "vhds", false, "the sidecars get virtual hosts one by one (holdfast-mesh only, with -form delta)")
	flags.BoolVar(&o.workloads, "workloads", false, "each sidecar is a workload of a service of its own")
	form := flags.String("form", "delta", "delta or sotw")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.command = flags.Args(); len(o.command) == 0 {
		return errors.New("no command of a control plane behind --")
	}
	o.sotw = *form == "sotw"
	if o.workloads && o.sidecars > o.services {
		return errors.New("-workloads: there must be a service for each sidecar")
	}
	dir, err := os.MkdirTemp("", "mesh-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	docs := &documents{dir: dir, options: o}
	if err := docs.write(); err != nil {
		return err
	}
	return measure(ctx, o, docs, out)
}

// step is one line of the table.
type step struct {
	name     string
	took     time.Duration
	cpu      time.Duration
	bytes    int64 // received by each sidecar
	types    string
	resident int64
}

func measure(ctx context.Context, o options, docs *documents, out io.Writer) error {
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	cp, err := start(o.command, docs.dir, addr)
	if err != nil {
		return err
	}
	defer cp.stop()
	if err := cp.listening(ctx, addr); err != nil {
		return err
	}
	fleet := newFleet(addr, o)
	defer fleet.close()
	var steps []step
	one := func(name string, change func() error, done func(*simulated) bool) error {
		began, cpu := time.Now(), cp.cpu()
		fleet.reset()
		if err := change(); err != nil {
			return err
		}
		if err := fleet.wait(ctx, done); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		took := time.Since(began)
		time.Sleep(300 * time.Millisecond) // what follows the last response is counted, too
		steps = append(steps, step{name, took, cp.cpu() - cpu, fleet.received() / int64(o.sidecars), fleet.types(), cp.resident()})
		return nil
	}
	if err := one("connect all", func() error { return fleet.connect(ctx) }, (*simulated).complete); err != nil {
		return err
	}
	// What changes is in the scope of the first namespace only, if there are scopes.
	concerned := func(s *simulated) bool { return o.scoped == 0 || s.number%o.namespaces == 0 }
	routes := "RDS"
	if o.vhds {
		routes = "VHDS"
	}
	for range 3 {
		if err := one("route change", docs.changeRoute, func(s *simulated) bool { return !concerned(s) || s.got(routes, "") }); err != nil {
			return err
		}
	}
	if err := one("endpoint change", docs.changeEndpoint, func(s *simulated) bool { return !concerned(s) || s.got("EDS", docs.changed()) }); err != nil {
		return err
	}
	if o.scoped > 0 {
		return table(out, o, steps)
	}
	if err := one("service added", docs.addService, func(s *simulated) bool { return s.got("CDS", docs.added()) && s.got(routes, "") }); err != nil {
		return err
	}
	return table(out, o, steps)
}

func table(out io.Writer, o options, steps []step) error {
	fmt.Fprintf(out, "%d services, %d sidecars in %d namespaces\n", o.services, o.sidecars, o.namespaces)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\ttime\tCPU\tKB a sidecar\ttypes\tMiB\t")
	for _, s := range steps {
		fmt.Fprintf(w, "%s\t%.3f s\t%.2f s\t%.1f\t%s\t%d\t\n", s.name, s.took.Seconds(), s.cpu.Seconds(), float64(s.bytes)/1000, s.types, s.resident>>20)
	}
	return w.Flush()
}

func freeAddress() (string, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = lis.Close() }()
	return lis.Addr().String(), nil
}

// controlPlane is the process that is measured.
type controlPlane struct {
	cmd  *exec.Cmd
	done chan error
}

func start(command []string, config, xds string) (*controlPlane, error) {
	args := make([]string, len(command))
	for i, arg := range command {
		args[i] = strings.NewReplacer("{config}", config, "{xds}", xds).Replace(arg)
	}
	cp := &controlPlane{cmd: exec.Command(args[0], args[1:]...), done: make(chan error, 1)}
	cp.cmd.Stderr = os.Stderr
	cp.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cp.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { cp.done <- cp.cmd.Wait() }()
	return cp, nil
}

func (cp *controlPlane) stop() {
	_ = cp.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-cp.done:
	case <-time.After(5 * time.Second):
		_ = cp.cmd.Process.Kill()
		<-cp.done
	}
}

// listening waits until the control plane answers.
func (cp *controlPlane) listening(ctx context.Context, addr string) error {
	for ctx.Err() == nil {
		select {
		case err := <-cp.done:
			cp.done <- err
			return fmt.Errorf("the control plane ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if sidecar.Ready(ctx, addr) {
			return nil
		}
	}
	return ctx.Err()
}

// cpu returns the CPU time that the process has used; 0 for one that has ended.
func (cp *controlPlane) cpu() time.Duration {
	used, _ := process.CPUTime(cp.cmd.Process.Pid)
	return used
}

// resident returns the memory of the process in bytes; 0 for one that has ended.
func (cp *controlPlane) resident() int64 {
	m, _ := process.ReadMemory(cp.cmd.Process.Pid)
	return int64(m.RSS)
}
