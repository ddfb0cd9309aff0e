package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

// envoyFlags say how Envoy is run, and how it ends.
type envoyFlags struct {
	onExit     *choice
	startAfter time.Duration
	draining   envoy.Draining
	grace      time.Duration
	fallback   time.Duration
	log        *choice
	admin      string
}

func (f *envoyFlags) add(c *command) {
	f.onExit, f.log = oneOf("restart", "exit"), oneOf("raw", "json")
	flags := c.section("Envoy as a child (holdfast run … -- envoy -c envoy.yaml …), and its end")
	flags.Var(f.onExit, "on-envoy-exit", "what follows when Envoy crashes: it is started again, with a pause that grows, or the agent exits with Envoy's code. After code 0 it always does")
	flags.DurationVar(&f.startAfter, "start-after", envoy.DefaultStartAfter, "when Envoy is started at the latest though nothing can be served yet (`DURATION`); it waits itself then")
	flags.DurationVar(&f.draining.Timeout, "drain-timeout", 30*time.Second, "how long Envoy's connections may take to end after SIGTERM, or after the command drain (`DURATION`)")
	flags.DurationVar(&f.draining.Min, "drain-min", 5*time.Second, "how long Envoy goes on at least, until whoever sends requests has noticed (`DURATION`)")
	flags.DurationVar(&f.grace, "kill-after", envoy.DefaultGrace, "how long Envoy has from SIGTERM to SIGKILL, when it has drained (`DURATION`)")
	flags.DurationVar(&f.fallback, "fallback-for", fallback.DefaultDuration, "how long what changed before Envoy crashed three times within ten minutes, each time within a minute of its start, is held back (`DURATION`); then it is served once more")
	flags.Var(f.log, "envoy-log", "how Envoy's output is passed on to standard error: as it is, or each line in a JSON object")
	flags.StringVar(&f.admin, "envoy-admin", "", "`ADDR` of Envoy's admin, host:port or unix:PATH; empty: that of the bootstrap (--bootstrap, or -c after --)")
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

// nodeOf returns who an Envoy with this bootstrap is, nil if it does not say: then its
// command line may, and its configuration is fetched when it asks.
func nodeOf(file string, log *slog.Logger) *corev3.Node {
	node, err := bootstrap.ReadNode(file)
	if err != nil {
		log.Warn("who Envoy is cannot be read from its bootstrap: nothing is fetched before it asks, unless --node-id and --node-cluster say it", "err", err)
		return nil
	}
	return node
}

// config returns how Envoy is run. child is its command line, nil for none; file its
// bootstrap, "" for none that is known; dir may be written to; limits are
// those of the container.
func (f *envoyFlags) config(child []string, file, dir string, limits cgroup.Limits, stderr io.Writer, log *slog.Logger) (envoy.Config, error) {
	for _, d := range []struct {
		flag string
		set  time.Duration
	}{{"--start-after", f.startAfter}, {"--drain-timeout", f.draining.Timeout}, {"--drain-min", f.draining.Min}, {"--kill-after", f.grace}} {
		if d.set < 0 {
			return envoy.Config{}, fmt.Errorf("%s %s: want 0 or a positive duration", d.flag, d.set)
		}
	}
	if f.fallback <= 0 {
		return envoy.Config{}, fmt.Errorf("--fallback-for %s: want a positive duration", f.fallback)
	}
	cfg := envoy.Config{
		Args: child, Admin: f.admin, Dir: dir, Exit: f.onExit.value == "exit",
		StartAfter: f.startAfter, Draining: f.draining, Grace: f.grace,
	}
	if cfg.Admin == "" && file != "" {
		var err error
		if cfg.Admin, err = bootstrap.ReadAdmin(file); err != nil {
			return envoy.Config{}, err
		}
	}
	if len(child) == 0 {
		return cfg, nil
	}
	binary, err := exec.LookPath(child[0])
	if err != nil {
		return envoy.Config{}, fmt.Errorf("the command after --: %w", err)
	}
	cfg.Args = append([]string{binary}, child[1:]...)
	cfg.Concurrency = bootstrap.Concurrency(limits)
	if cfg.Admin == "" {
		log.Warn("the address of Envoy's admin is not known, so that it is not drained at the end: name it with --envoy-admin, or set a port in the bootstrap")
	}
	out := &lineWriter{w: stderr}
	if f.log.value == "json" {
		cfg.Out = out.wrapped
	} else {
		cfg.Out = out.raw
	}
	return cfg, nil
}

// checkVersion warns of an Envoy that this version was not tested with.
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
		log.Info("Envoy", "version", release)
	}
	return nil
}

// lineWriter writes lines as a whole.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) raw(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(append(line[:len(line):len(line)], '\n')) // nobody could be told
}

func (l *lineWriter) wrapped(line []byte) {
	b, err := json.Marshal(struct {
		Time string `json:"time"`
		From string `json:"from"`
		Msg  string `json:"msg"`
	}{time.Now().UTC().Format(time.RFC3339Nano), "envoy", string(line)})
	if err == nil {
		l.raw(b)
	}
}

// exitCode returns the code with which Envoy's end is that of the agent.
func exitCode(err error) (code int, ok bool) {
	if exit, is := errors.AsType[*envoy.ExitError](err); is {
		return exit.Code, true
	}
	return 0, false
}

// containerLimits returns the limits of this container, none if they cannot be read.
func containerLimits(log *slog.Logger) cgroup.Limits {
	limits, err := cgroup.Read(os.DirFS("/"))
	if err != nil {
		log.Warn("the limits of the container cannot be read, and are taken for none", "err", err)
	}
	return limits
}
