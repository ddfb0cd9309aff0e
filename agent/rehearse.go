package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// maxBaseline bounds how long requests are counted before a cut and after it.
	maxBaseline = 10 * time.Second
	// watchEvery is how often the agent and Envoy are looked at during a cut.
	watchEvery = 200 * time.Millisecond
	// maxBack is how long it is waited for the control planes after a cut.
	maxBack = 30 * time.Second
)

var _ admin.Rehearser = (*Agent)(nil)

// RehearseLive cuts the agent off from its control planes for a time, as an outage would, and puts them back, also if
// ctx ends. It returns what happened. A CA that makes certificates is not cut off.
func (a *Agent) RehearseLive(ctx context.Context, d time.Duration) (*admin.LiveRehearsal, error) {
	if !a.rehearsing.TryLock() {
		return nil, errors.New("a rehearsal is under way already")
	}
	defer a.rehearsing.Unlock()
	if err := a.connected(); err != nil {
		return nil, errors.New("no control plane is connected: this is no rehearsal, but an outage")
	}
	w := &watcher{a: a, live: &admin.LiveRehearsal{Losses: []admin.Loss{}, Observed: []admin.Observation{}}, was: make(map[string]string)}
	if a.cfg.Envoy.Admin != "" {
		w.envoy = envoy.NewAdmin(a.cfg.Envoy.Admin)
	}
	baseline := min(d, maxBaseline)
	w.live.Before = w.count(ctx, baseline)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	w.look(ctx, false)
	before := a.served()
	w.cut(ctx, d)
	after := a.served()
	for k := range before {
		if !after[k] {
			w.live.Lose(k.node, xds.Short(k.Type)+" "+k.Name, "clients got it before the cut, and not at its end: a TTL has ended, or nothing else keeps it")
		}
	}
	w.back(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	w.live.After = w.count(ctx, baseline)
	if b, during := w.live.Before, w.live.During; b != nil && during != nil && b.Failed == 0 && during.Failed > 0 {
		w.live.Lose("", fmt.Sprintf("%d requests", during.Failed), "Envoy answered them with 5xx, and none before the cut")
	}
	return w.live, nil
}

// servedKey is a resource of the clients of a node.
type servedKey struct {
	node string
	xds.Key
}

// served returns what clients are served.
func (a *Agent) served() map[servedKey]bool {
	out := make(map[servedKey]bool)
	for r := range a.Resources(admin.Filter{}) {
		if r.Served() {
			out[servedKey{r.Group, xds.Key{Type: r.Type, Name: r.Name}}] = true
		}
	}
	return out
}

// cutOff cuts all groups off, also those to come, or puts the control planes back.
func (a *Agent) cutOff(cut bool) {
	a.isCutOff.Store(cut)
	for _, m := range a.groups.Members() {
		m.Cut(cut)
	}
}

// watcher observes a cut.
type watcher struct {
	a     *Agent
	live  *admin.LiveRehearsal
	envoy *envoy.Admin // nil if its address is not known
	// was has what was wrong when it was looked last, and why, by what it is about.
	was map[string]string
}

func (w *watcher) observe(format string, args ...any) {
	w.live.Observed = append(w.live.Observed, admin.Observation{At: time.Now(), What: fmt.Sprintf(format, args...)})
}

// count counts the requests during a time; nil if Envoy cannot be asked.
func (w *watcher) count(ctx context.Context, d time.Duration) *admin.RequestCount {
	return w.counted(ctx, func() { wake.Sleep(ctx, d) })
}

// counted counts the requests while something is done; nil if Envoy cannot be asked.
func (w *watcher) counted(ctx context.Context, do func()) *admin.RequestCount {
	began := time.Now()
	if w.envoy == nil {
		do()
		return nil
	}
	completed, failed, err := w.envoy.Requests(ctx)
	do()
	if err != nil {
		return nil
	}
	completedAfter, failedAfter, err := w.envoy.Requests(ctx)
	if err != nil || completedAfter < completed || failedAfter < failed { // another Envoy has begun to count
		return nil
	}
	return &admin.RequestCount{Seconds: time.Since(began).Seconds(), Completed: completedAfter - completed, Failed: failedAfter - failed}
}

// cut cuts the agent off for a time and looks what happens.
func (w *watcher) cut(ctx context.Context, d time.Duration) {
	defer w.a.cutOff(false)
	w.live.Began = time.Now()
	w.observe("cut off from the control planes")
	w.live.During = w.counted(ctx, func() {
		w.a.cutOff(true)
		for time.Since(w.live.Began) < d && wake.Sleep(ctx, min(watchEvery, d)) {
			w.look(ctx, true)
		}
	})
	w.live.Seconds = time.Since(w.live.Began).Seconds()
	w.observe("the control planes are put back")
	w.a.cfg.Log.Info("rehearsal: the control planes are put back")
}

// look looks what is wrong. If report is set, what was not wrong when it looked first is a loss.
func (w *watcher) look(ctx context.Context, report bool) {
	wrong := make(map[string]string)
	for _, c := range w.a.Ready() {
		if !c.OK && c.Name != "upstream" { // that there is none is what is rehearsed
			wrong["readiness: "+c.Name] = c.Reason
		}
	}
	if w.a.cfg.ReadyRequiresUpstream && report {
		wrong["readiness: upstream"] = "with --ready-requires upstream the pod is not ready while no control plane is connected"
	}
	if len(w.a.server.Streams()) == 0 {
		wrong["clients"] = "no client is connected"
	}
	if w.envoy != nil {
		asking, cancel := context.WithTimeout(ctx, watchEvery*5)
		info, err := w.envoy.Info(asking)
		cancel()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			wrong["Envoy"] = err.Error()
		case info.State != envoy.StateLive:
			wrong["Envoy"] = "it is " + info.State
		}
	}
	if report {
		for what, why := range wrong {
			if _, before := w.was[what]; !before {
				w.observe("%s: %s", what, why)
				w.live.Lose("", what, why)
			}
		}
		for what := range w.was {
			if _, still := wrong[what]; !still {
				w.observe("%s: well again", what)
			}
		}
	}
	w.was = wrong
}

// back waits until each node that had a control plane has one again.
func (w *watcher) back(ctx context.Context) {
	began := time.Now()
	for wake.Sleep(ctx, watchEvery/10) {
		switch {
		case w.a.allConnected():
			w.live.BackAfterSeconds = time.Since(began).Seconds()
			w.observe("each node has a control plane again")
			return
		case time.Since(began) > maxBack:
			w.live.BackAfterSeconds = -1
			w.live.Lose("", "the control plane", fmt.Sprintf("it was not connected again within %s after the cut: status says why", maxBack))
			return
		}
	}
}

// allConnected reports whether the groups of all nodes have a control plane.
func (a *Agent) allConnected() bool {
	for _, m := range a.groups.Members() {
		if !m.Connected() {
			return false
		}
	}
	return true
}
