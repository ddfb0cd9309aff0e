package agent

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// notifyEvery is the interval at which systemd is told what has changed.
const notifyEvery = time.Second

// notifySystemd tells systemd, if it started the agent with Type=notify, when the sockets are served, what
// the agent's status is, when it stops and, with WatchdogSec, that it is not deadlocked (sd_notify(3)). An
// agent without a configuration counts as started: its control plane may be away. It returns when ctx ends.
func (a *Agent) notifySystemd(ctx context.Context) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	failing := false
	tell := func(state string) {
		_, err := daemon.SdNotify(false, state)
		if err != nil && !failing {
			a.cfg.Log.Warn("systemd cannot be told the state of the agent", "err", err)
		}
		failing = err != nil
	}
	every := notifyEvery
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		a.cfg.Log.Warn("systemd's watchdog cannot be told that the agent lives", "err", err)
	}
	if watchdog > 0 {
		every = min(every, watchdog/2)
	}
	ready, status := false, ""
	wake.Loop(ctx, nil, func() time.Time {
		if now := a.summary(); now != status {
			status = now
			tell("STATUS=" + status)
		}
		if !ready && a.Started() {
			ready = true
			tell(daemon.SdNotifyReady)
		}
		if watchdog > 0 && a.Live() == nil {
			tell(daemon.SdNotifyWatchdog)
		}
		return time.Now().Add(every)
	})
	tell(daemon.SdNotifyStopping)
}

// summary returns the state of the agent in one line.
func (a *Agent) summary() string {
	var reasons []string
	for _, c := range a.Ready() {
		if !c.OK || c.Reason != "" {
			reasons = append(reasons, c.Name+": "+c.Reason)
		}
	}
	if len(reasons) == 0 {
		return "ready"
	}
	return strings.ReplaceAll(strings.Join(reasons, "; "), "\n", "; ")
}
