package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/cgroup"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/internal/procs"
)

const runLong = `Run the agent next to Envoy: fetch Envoy's configuration from a control plane, cache it, and
serve it on a Unix socket, until SIGTERM or SIGINT.

Envoy connects to the agent with the bootstrap that ` + "`holdfast bootstrap`" + ` writes. Several
Envoys, and other xDS clients, may use one agent. With --bootstrap or --node-id the agent
fetches the configuration before Envoy connects.

After --, give Envoy's command line to run Envoy as a child of the agent.`

const runExample = `
# a control plane whose certificate is signed by your own CA
holdfast run --upstream xds.example.com:443 --upstream-ca /etc/holdfast/ca.pem \
    --bootstrap /etc/envoy/envoy.yaml

# two control planes, the first one preferred, and a token that is rotated
holdfast run --upstream xds-a:443 --upstream xds-b:443 \
    --upstream-token-file /var/run/secrets/token

# without TLS, to try it on one machine
holdfast run --upstream 127.0.0.1:18000 --upstream-plaintext \
    --socket /tmp/holdfast/xds.sock --admin unix:/tmp/holdfast/admin.sock

# with Envoy as a child
holdfast run --upstream xds.example.com:443 -- envoy -c /etc/envoy/envoy.yaml

# from a directory of files
holdfast run --upstream file:/etc/xds`

// runFlags are the flags of `holdfast run`. Most of them set fields of cfg; the others are needed to
// complete it.
type runFlags struct {
	cfg          agent.Config
	certificates certificateFlags
	stateKeys    []string // files
	envoyJSON    bool
	bootstrap    string
	node         nodeFlags
	log          logFlags
}

// add declares the flags, and with them the defaults of cfg.
func (f *runFlags) add(c *command) {
	f.addUpstream(c)
	f.addSocket(c)
	f.addLimits(c)
	f.addState(c)
	f.certificates.add(c)
	f.addEnvoy(c)
	flags := c.section("Envoy's node, to fetch its configuration before it connects (--bootstrap or --node-…, or neither)")
	flags.StringVar(&f.bootstrap, "bootstrap", "", "`FILE` of Envoy's bootstrap, to read the node from")
	f.node.add(flags)
	f.addAdmin(c)
}

func newRun(p process) *command {
	c := newCommand("run", "run the agent next to Envoy", runLong, runExample)
	c.takesChild = true
	f := &runFlags{}
	f.add(c)
	c.run = func(ctx context.Context, warnings []string) error {
		log := f.log.logger(p.stderr, warnings)
		harden(log)
		limits := containerLimits(log)
		memory.Limit(os.Getenv, limits.Memory, log) // before anything else allocates memory
		if err := f.complete(log); err != nil {
			return err
		}
		if err := f.checkPlaces(); err != nil {
			return err
		}
		file := cmp.Or(f.bootstrap, configFile(c.child))
		if f.cfg.Node == nil && file != "" {
			f.cfg.Node = nodeOf(file, log)
		}
		if err := f.completeEnvoy(c.child, file, limits, p.stderr); err != nil {
			return err
		}
		if err := checkVersion(ctx, f.cfg.Envoy, log); err != nil {
			return failed(err)
		}
		f.cfg.Hurry, f.cfg.Signals = p.hurry, p.signals
		f.cfg.Downstream.OnConnections = procs.New(os.Getenv).Serve
		a, err := agent.New(f.cfg)
		if err != nil {
			return err
		}
		warnExposed(log, f.cfg)
		if !f.cfg.Admin.Pprof {
			runtime.MemProfileRate = 0 // nobody can read the samples, which cost memory
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go memory.GiveBack(ctx, log)
		return failed(a.Run(ctx))
	}
	return c
}

// complete adds to cfg what several flags say together.
func (f *runFlags) complete(log *slog.Logger) (err error) {
	cfg := &f.cfg
	cfg.Version, cfg.Log = version, log
	if cfg.Node, err = f.node.identity(f.bootstrap); err != nil {
		return err
	}
	if cfg.Certificates, err = f.certificates.config(); err != nil {
		return err
	}
	switch {
	case len(cfg.Upstreams) == 0 && len(cfg.Certificates.Sources) == 0:
		return errors.New("--upstream is missing: name the control plane, such as --upstream xds.example.com:443, or a directory of resources, such as --upstream file:/etc/xds")
	case cfg.Store.Dir == "" && (len(f.stateKeys) > 0 || cfg.Store.Identity != ""):
		return errors.New("--state-key-file and --state-identity need --state-dir")
	case len(cfg.Admin.ReaderUIDs)+len(cfg.Admin.ReaderGIDs) > 0 && !strings.HasPrefix(cfg.Admin.Addr, "unix:"):
		return errors.New("--admin-readers needs --admin unix:PATH: on a TCP address the user of a client is not known")
	}
	if err := cfg.Admin.Check(); err != nil {
		return err
	}
	cfg.Store.Keys, err = stateKeys(f.stateKeys)
	return err
}

// checkPlaces checks addresses and paths, alone and together.
func (f *runFlags) checkPlaces() error {
	socket, rest := f.cfg.Socket, f.cfg.REST
	if _, err := socket.Check(); err != nil {
		if socket.Path == "" {
			return errors.New("--socket is empty: name the path of the socket, such as " + bootstrap.DefaultSocket)
		}
		return fmt.Errorf("--socket: %w", err)
	}
	admin, unix := strings.CutPrefix(f.cfg.Admin.Addr, "unix:")
	switch {
	case unix && filepath.Clean(admin) == filepath.Clean(socket.Path):
		return fmt.Errorf("--admin and --socket are both %s: give each its own path", admin)
	case f.cfg.Takeover && !unix:
		return errors.New("--takeover needs --admin unix:PATH, the same as that of the running agent")
	}
	if rest == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(rest)
	if err != nil || strings.HasPrefix(rest, "unix:") {
		return fmt.Errorf("--rest: %q: want host:port, or '' for none; REST is always served on the socket", rest)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--rest: %q: port %q is not a number from 0 to 65535", rest, port)
	}
	return nil
}

func (f *runFlags) addEnvoy(c *command) {
	cfg := &f.cfg.Envoy
	flags := c.section("Envoy as a child process (holdfast run … -- envoy -c envoy.yaml …), and shutdown")
	flags.Var(either(&cfg.Exit, "restart", "exit"), "on-envoy-exit", "if Envoy crashes, restart it after a growing pause, or exit with its exit code. If Envoy exits with code 0, the agent exits too")
	flags.Var(numberOf(&cfg.StartAfter, envoy.DefaultStartAfter, notNegative), "start-after", "start Envoy after this `DURATION` even if there is no configuration yet; Envoy then waits for it")
	flags.Var(numberOf(&cfg.Draining.Timeout, 30*time.Second, notNegative), "drain-timeout", "maximum `DURATION` of a drain, which SIGTERM or the command drain starts")
	flags.Var(numberOf(&cfg.Draining.Min, 5*time.Second, notNegative), "drain-min", "minimum `DURATION` of a drain, so that load balancers can stop sending requests")
	flags.Var(numberOf(&cfg.Grace, envoy.DefaultGrace, notNegative), "kill-after", "send SIGKILL if Envoy has not exited within this `DURATION` after SIGTERM, which it gets after the drain")
	flags.Var(numberOf(&f.cfg.Group.Cache.FallbackFor, fallback.DefaultDuration, positive), "fallback-for", "after Envoy has crashed three times within ten minutes, each time within a minute of its start, hold back for this `DURATION` what had changed before, and serve its last stable version")
	flags.Var(either(&f.envoyJSON, "raw", "json"), "envoy-log", "how to write Envoy's output to standard error: unchanged, or each line in a JSON object")
	flags.StringVar(&cfg.Admin, "envoy-admin", "", "`ADDR` of Envoy's admin interface, host:port or unix:PATH; empty: as in the bootstrap (--bootstrap, or -c after --)")
}

// configFile returns the bootstrap that a command line of Envoy names, "" for none.
func configFile(child []string) string {
	for i, arg := range child {
		if value, ok := strings.CutPrefix(arg, "--config-path="); ok {
			return value
		}
		if (arg == "-c" || arg == "--config-path") && i+1 < len(child) {
			return child[i+1]
		}
	}
	return ""
}

// nodeOf returns the node of a bootstrap, nil if it has none. Envoy's command line may then have
// the node, and the configuration is fetched when Envoy connects.
func nodeOf(file string, log *slog.Logger) *corev3.Node {
	node, err := bootstrap.ReadNode(file)
	if err != nil {
		log.Warn("the node cannot be read from the bootstrap: the configuration is not fetched before Envoy connects, unless --node-id and --node-cluster are given", "err", err)
		return nil
	}
	return node
}

// completeEnvoy adds to cfg what follows from Envoy's command line, its bootstrap file ("" for
// none) and the limits of the container.
func (f *runFlags) completeEnvoy(child []string, file string, limits cgroup.Limits, stderr io.Writer) (err error) {
	cfg := &f.cfg.Envoy
	cfg.Dir = filepath.Dir(f.cfg.Socket.Path)
	if cfg.Admin == "" && file != "" {
		if cfg.Admin, err = bootstrap.ReadAdmin(file); err != nil {
			return err
		}
	}
	if len(child) == 0 {
		return nil
	}
	binary, err := exec.LookPath(child[0])
	if err != nil {
		return fmt.Errorf("the command after --: %w", err)
	}
	cfg.Args = append([]string{binary}, child[1:]...)
	cfg.Concurrency = bootstrap.Concurrency(limits)
	if cfg.Admin == "" {
		f.cfg.Log.Warn("the address of Envoy's admin interface is not known: Envoy will not be drained on shutdown. Set --envoy-admin, or a port in the bootstrap")
	}
	cfg.Out = writeLines(stderr, f.envoyJSON)
	return nil
}

// checkVersion warns about a release of Envoy that this version was not tested with.
func checkVersion(ctx context.Context, cfg envoy.Config, log *slog.Logger) error {
	if len(cfg.Args) == 0 {
		return nil
	}
	release, warning, err := envoy.CheckVersion(ctx, cfg.Args[0])
	if err != nil {
		return fmt.Errorf("the command after --: %w", err)
	}
	if warning != "" {
		log.Warn(warning, "binary", filepath.Base(cfg.Args[0]))
	} else {
		log.Info("Envoy version", "version", release)
	}
	return nil
}

// writeLines returns a function that writes one line of Envoy's output, unchanged or in a JSON object.
func writeLines(w io.Writer, inJSON bool) func(line []byte) {
	out := log.New(w, "", 0) // writes whole lines, one at a time
	return func(line []byte) {
		if inJSON {
			line, _ = json.Marshal(struct { // cannot fail for texts
				Time string `json:"time"`
				From string `json:"from"`
				Msg  string `json:"msg"`
			}{time.Now().UTC().Format(time.RFC3339Nano), "envoy", string(line)})
		}
		out.Print(string(line))
	}
}

// exitCode returns Envoy's exit code if err is the exit of Envoy, with which the agent exits too.
func exitCode(err error) (code int, ok bool) {
	if exit, is := errors.AsType[*envoy.ExitError](err); is {
		return exit.Code, true
	}
	return 0, false
}

// containerLimits returns the limits of this container, or none if they cannot be read.
func containerLimits(log *slog.Logger) cgroup.Limits {
	limits, err := cgroup.Read(os.DirFS("/"))
	if err != nil {
		log.Warn("the limits of the container cannot be read: assuming that there are none", "err", err)
	}
	return limits
}
