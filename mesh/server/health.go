package server

import (
	"strings"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/register"
)

var _ downstream.HealthView = (*view)(nil)

// Report hands the report of an agent to the registration of its workload, if it has one.
func (v *view) Report(healthy bool, reason string) {
	if v.server.cfg.Registrar == nil {
		return
	}
	v.mu.Lock()
	who := v.proxy
	v.mu.Unlock()
	v.server.cfg.Registrar.Report(who, v.stream, healthy, reason)
}

var _ downstream.AgentView = (*view)(nil)

// AgentReport records what the agent of a proxy says of itself.
func (v *view) AgentReport(r xds.AgentReport) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.server.countReport(v.report, -1)
		v.server.countReport(r, 1)
	}
	v.report = r
}

// countReport counts a report, or with a negative n the end of one that was counted.
func (s *Server) countReport(r xds.AgentReport, n int64) {
	if len(r.HeldBack) > 0 {
		s.holdingNow.Add(n)
	}
	if r.Frozen != nil {
		s.frozenNow.Add(n)
	}
}

// WorkloadStatus describes the workload of a proxy that registers with a WorkloadGroup.
type WorkloadStatus struct {
	// Name is the namespace and the name of its WorkloadEntry.
	Name string `json:"name"`
	// Health is HEALTHY, UNHEALTHY or UNKNOWN; NOT CHECKED for a workload without a probe and without reports, which counts
	// as healthy; and NOT REGISTERED.
	Health string `json:"health"`
	// Message is why it is not healthy, or not registered.
	Message string `json:"message,omitempty"`
}

// workloadOf describes a workload; nil for none.
func workloadOf(w *register.Workload) *WorkloadStatus {
	if w == nil {
		return nil
	}
	s := &WorkloadStatus{Name: w.Name, Health: strings.ToUpper(string(w.Health.State)), Message: w.Health.Message}
	switch {
	case w.Refused != "":
		s.Health, s.Message = "NOT REGISTERED", w.Refused
	case !w.Checked:
		s.Health, s.Message = "NOT CHECKED", ""
	}
	return s
}
