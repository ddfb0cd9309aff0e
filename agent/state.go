package agent

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

var _ admin.State = (*Agent)(nil)

// Started reports whether the sockets are served.
func (a *Agent) Started() bool {
	return a.listening.Load() && a.sockets() == nil
}

// Ready returns the conditions under which clients are served.
func (a *Agent) Ready() []admin.Condition {
	if a.shadow != nil {
		return append([]admin.Condition{a.comparing()}, a.available()...)
	}
	socket := admin.Holds("socket", a.sockets())
	socket.Reason = strings.ReplaceAll(socket.Reason, "\n", "; ")
	if socket.OK && !a.listening.Load() {
		socket = admin.Holds("socket", errors.New("not listening on "+a.cfg.Socket.Path))
	}
	conditions := append([]admin.Condition{socket}, a.available()...)
	if a.life.envoy != nil {
		conditions = append(conditions, admin.Holds("envoy", a.life.envoy.Serving()))
	}
	if a.cfg.ReadyRequiresUpstream {
		conditions = append(conditions, admin.Holds("upstream", a.connected()))
	}
	if a.draining() {
		conditions = append(conditions, admin.Holds("draining", errors.New("a drain was requested, by `holdfast drain` or a shutdown")))
	}
	return append(conditions, a.heldBack()...)
}

// comparing returns the condition that a shadow can compare.
func (a *Agent) comparing() admin.Condition {
	r := a.shadow.Report()
	switch {
	case r.Error != "":
		return admin.Holds("shadow", errors.New(r.Error))
	case r.Comparisons == 0:
		return admin.Holds("shadow", errors.New("the Envoy was not compared yet"))
	}
	return admin.Holds("shadow", nil)
}

// answered reports whether a control plane answers, or why none does.
func (a *Agent) answered() (bool, error) {
	var failed error
	for _, m := range a.groups.Members() {
		if m.Connected() {
			return true, nil
		}
		for _, u := range m.Status().Upstreams {
			if u.LastError != "" {
				failed = errors.New(u.Name + ": " + u.LastError)
			}
		}
	}
	return false, failed
}

// Shadow returns what a shadow has found; nil if the agent is none.
func (a *Agent) Shadow() *shadow.Report {
	if a.shadow == nil {
		return nil
	}
	return new(a.shadow.Report())
}

func (a *Agent) connected() error {
	if slices.ContainsFunc(a.groups.Members(), func(m *group.Member) bool { return m.Connected() }) {
		return nil
	}
	return errors.New("no control plane is connected (--ready-requires upstream)")
}

// heldBack returns conditions that report what is held back or missing. They always hold.
func (a *Agent) heldBack() (conditions []admin.Condition) {
	for _, m := range a.groups.Members() {
		if f := m.Frozen(); f != nil {
			conditions = append(conditions, admin.Condition{Name: "freeze", OK: true, Reason: f.Line(time.Now(), "")})
		}
		if f := m.Cache().Fallback(); f != nil {
			conditions = append(conditions, admin.Condition{Name: "fallback", OK: true, Reason: fmt.Sprintf(
				"Envoy crashed repeatedly: %d resources are held back until the control plane changes them, `holdfast resume`, or %s",
				len(f.Suspects), f.Until.UTC().Format(time.RFC3339))})
		}
	}
	if a.keeper != nil {
		if lost := a.keeper.status().Lost; len(lost) > 0 {
			conditions = append(conditions, admin.Condition{Name: "state", OK: true, Reason: fmt.Sprintf(
				"%s %s is missing until a control plane answers, because it was not stored before the restart: %s (%d resources in total, see holdfast status)",
				lost[0].Type, lost[0].Name, lost[0].Reason, len(lost))})
		}
	}
	return conditions
}

// servable reports whether an Envoy that starts would get a configuration and certificates.
func (a *Agent) servable() bool {
	return a.Started() && !slices.ContainsFunc(a.available(), func(c admin.Condition) bool { return !c.OK })
}

// available returns the conditions that there is a configuration, and certificates.
func (a *Agent) available() []admin.Condition {
	var conditions []admin.Condition
	if a.certificates != nil {
		conditions = append(conditions, admin.Holds("certificates", a.certificates.Ready()))
	}
	if len(a.cfg.Upstreams) == 0 {
		return conditions // the agent serves certificates only
	}
	conf := admin.Condition{Name: "configuration"}
	members := a.groups.Members()
	if len(members) == 0 {
		conf.Reason = "no client has connected, and the node to fetch a configuration for is not known: give --bootstrap, or --node-id and --node-cluster, or start Envoy"
	}
	for _, m := range members {
		ok, reason := m.HasConfiguration()
		if age := m.Stale(); age > 0 {
			ok, reason = false, fmt.Sprintf("the last contact with a control plane was %s ago, longer than --max-stale %s", age.Round(time.Second), a.cfg.Group.MaxStale)
		}
		if ok {
			conf.OK, conf.Reason = true, ""
			break
		}
		conf.Reason = reason
	}
	return append(conditions, conf)
}

func (a *Agent) Status() admin.Status {
	s := admin.Status{Version: a.cfg.Version, Started: a.born, Streams: a.server.Streams()}
	s.Events, s.EventsLost = a.events.Counts()
	for _, m := range a.groups.Members() {
		g := m.Status()
		if g.Freeze != nil {
			g.Freeze.Volatile = a.keeper == nil
			if o, _ := m.Cache().Frozen(); o != nil && a.keeper != nil {
				g.Freeze.NotStored = a.keeper.countNotStored(groupName(m.Key(), a.cfg.Node), func(typeURL, name string) bool {
					return o.Frozen(xds.Key{Type: typeURL, Name: name})
				})
			}
		}
		s.Groups = append(s.Groups, g)
		s.Files = append(s.Files, m.Files()...)
	}
	if !a.draining() && a.shadow == nil {
		s.NoEnvoySince = a.presence.Absent(time.Now())
	}
	if a.life.envoy != nil {
		s.Envoy = new(a.life.envoy.Status())
	}
	if a.prober != nil {
		s.Workload = new(a.prober.Status())
	}
	if a.certificates != nil {
		s.Certificates = new(a.certificates.Status())
	}
	if a.keeper != nil {
		s.Storage = a.keeper.status()
	}
	s.Shadow = a.Shadow()
	if a.cfg.Seed.Publish != nil {
		s.Publishing = new(a.seeds.get())
	}
	return s
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (a *Agent) Resources(f admin.Filter) iter.Seq[admin.Resource] {
	return a.groups.Resources(f)
}

// cleaned returns a NACK's reason, which Envoy as a child also writes to the standard error of the
// agent, without secrets.
func (a *Agent) cleaned(message string) string { return a.secrets.Reason(message, a.bodies()) }

// bodies yields all resources that clients of any group may have received.
func (a *Agent) bodies() iter.Seq[*anypb.Any] {
	return func(yield func(*anypb.Any) bool) {
		for _, m := range a.groups.Members() {
			for _, t := range m.Cache().Status() {
				for _, held := range m.Cache().Resources(t.Type) {
					for _, r := range []*xds.Resource{held.Current, held.Acked, held.Served} {
						if r != nil && r.Body != nil && !yield(r.Body) {
							return
						}
					}
				}
			}
		}
	}
}
