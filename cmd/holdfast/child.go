package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

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
