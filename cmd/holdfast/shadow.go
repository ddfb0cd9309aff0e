package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/internal/wake"
)

const shadowLong = `Compare what an agent would serve with what an Envoy has that is connected to its control plane
directly, before you put an agent in between. It serves nobody, and changes nothing in Envoy.

The node, the subscriptions and the resources of Envoy are read from its config_dump. The shadow
subscribes to the same, on a stream of its own, and compares, again and again. What differs
for longer than --grace is a difference: in the log, in ` + "`holdfast status`" + `, and in the metrics
holdfast_shadow_differences. With --once it ends when nothing is on its way any more, writes the
report, and exits with code 1 if something differs.

The control plane sees a second client with Envoy's node id. It gets an ACK for everything from
it; what Envoy NACKs is named in the report.`

const shadowExample = `
# next to an Envoy, until it is stopped
holdfast shadow --envoy-admin http://127.0.0.1:15000 --upstream xds.example.com:443 \
    --admin unix:/tmp/shadow/admin.sock

# what it has found
holdfast status --admin unix:/tmp/shadow/admin.sock

# once, for a check in CI
holdfast shadow --once --envoy-admin 127.0.0.1:15000 \
    --upstream 127.0.0.1:18000 --upstream-plaintext`

// shadowFlags are the flags of `holdfast shadow`; those of the control plane and of --admin are those of `holdfast run`.
type shadowFlags struct {
	runFlags
	shadow  shadow.Config
	once    bool
	timeout time.Duration
	output  string
}

func newShadow(p process) *command {
	c := newCommand("shadow", "compare what would be served with what a directly connected Envoy has", shadowLong, shadowExample)
	f := &shadowFlags{}
	flags := c.section("The Envoy that is compared")
	flags.StringVar(&f.shadow.Admin, "envoy-admin", "", "`ADDR` of Envoy's admin interface: host:port, http://host:port or unix:PATH. Required")
	flags.Var(numberOf(&f.shadow.Interval, shadow.DefaultInterval, bounds{min: int64(time.Second)}), "interval", "time between two comparisons (`DURATION`, at least 1s). Each asks Envoy for its config_dump, which keeps Envoy's main thread busy: about a second for 100 MB")
	flags.Var(numberOf(&f.shadow.Grace, shadow.DefaultGrace, positive), "grace", "report what differs for longer than this `DURATION`: Envoy and the agent get each change at their own time")
	flags.BoolVar(&f.once, "once", false, "end when nothing is on its way any more, and write the report")
	flags.Var(numberOf(&f.timeout, 2*time.Minute, positive), "timeout", "with --once: write the report after this `DURATION` in any case")
	flags.VarP(cli.OutputFormat(&f.output, "table", "json", "yaml"), "output", "o", "with --once: output format")
	f.addUpstream(c)
	f.addAdmin(c)
	c.run = func(ctx context.Context, warnings []string) error {
		return f.log.serve(p, warnings, func(queue *logqueue.Queue, log *slog.Logger) error {
			f.cfg.Admin.Output = queue
			return f.serve(ctx, c, p, log)
		})
	}
	return c
}

// serve runs the shadow until ctx ends or, with --once, until it has a report.
func (f *shadowFlags) serve(ctx context.Context, c *command, p process, log *slog.Logger) error {
	f.cfg.Admin.LogLevel = &f.log.current
	harden(log)
	memory.Limit(os.Getenv, containerLimits(log).Memory, log)
	if !f.cfg.Admin.Pprof {
		runtime.MemProfileRate = 0 // nobody can read the samples, which cost memory
	}
	f.cfg.Version, f.cfg.Log = version, log
	var err error
	if f.shadow.Admin, err = adminAddress(f.shadow.Admin); err != nil {
		return err
	}
	if len(f.cfg.Upstreams) == 0 {
		return f.whichUpstream(ctx)
	}
	if err := f.cfg.Admin.Check(); err != nil {
		return err
	}
	f.cfg.Shadow, f.cfg.Hurry = &f.shadow, p.hurry
	if f.once {
		f.cfg.Admin.Addr, f.cfg.Admin.Health = "", ""
	}
	a, err := agent.New(f.cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go memory.GiveBack(ctx, log)
	if !f.once {
		return cli.Failed(a.Run(ctx))
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	report := f.await(ctx, a)
	cancel()
	if err := <-ended; err != nil {
		return cli.Failed(err)
	}
	return c.reportShadow(report, f.output)
}

// adminAddress returns the address in a URL of Envoy's admin interface.
func adminAddress(text string) (string, error) {
	if text == "" {
		return "", errors.New("--envoy-admin is missing: give the address of Envoy's admin interface, such as --envoy-admin 127.0.0.1:15000")
	}
	if strings.HasPrefix(text, "unix:") {
		return text, nil
	}
	addr := text
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			return "", fmt.Errorf("--envoy-admin: %q: want host:port, http://host:port or unix:PATH", text)
		}
		addr = u.Host
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return "", fmt.Errorf("--envoy-admin: %q: want host:port, http://host:port or unix:PATH", text)
	}
	return addr, nil
}

// whichUpstream says which --upstream to give.
func (f *shadowFlags) whichUpstream(ctx context.Context) error {
	missing := "--upstream is missing: name the control plane of the Envoy, such as --upstream xds.example.com:443"
	if raw, err := envoy.NewAdmin(f.shadow.Admin).ConfigDump(ctx); err == nil {
		if dump, err := shadow.Parse(raw); err == nil && dump.ADS != "" {
			missing += "; the ADS stream of this Envoy leads to " + admin.Printable(dump.ADS)
		}
	}
	return errors.New(missing)
}

// awaitEvery is the interval at which --once looks whether the comparison has ended.
const awaitEvery = 100 * time.Millisecond

// await returns the report when nothing is on its way any more, or after --timeout.
func (f *shadowFlags) await(ctx context.Context, a *agent.Agent) shadow.Report {
	deadline := time.Now().Add(f.timeout)
	for {
		if r := a.Shadow(); r.Settled() || time.Now().After(deadline) || !wake.Sleep(ctx, awaitEvery) {
			return *r
		}
	}
}

// reportShadow writes a report, and fails if Envoy differs, or could not be compared.
func (c *command) reportShadow(r shadow.Report, output string) error {
	err := writeAs(c.OutOrStdout(), output, r, func(w io.Writer) error { return r.WriteText(w, time.Now()) })
	switch {
	case err != nil:
	case r.Error != "":
		err = errors.New(r.Error)
	case r.Differs():
		err = errors.New("this Envoy differs from what it would be served")
	case !r.Settled():
		err = fmt.Errorf("%d still differ, for less than --grace: give a longer --timeout", r.Settling)
	}
	return cli.Failed(err)
}
