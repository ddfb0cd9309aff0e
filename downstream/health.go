package downstream

import (
	"context"
	"log/slog"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// HealthView is a View that takes in reports of the health of the client's workload (xds.HealthType). Any other View ignores
// them.
type HealthView interface {
	View
	// Report takes in a report: the workload is healthy, or it is not for a reason in the client's own words, which may be of
	// any length and content.
	Report(healthy bool, reason string)
}

// AgentView is a View that takes in what an agent says of itself (xds.AgentReportType). Any other View ignores it.
type AgentView interface {
	View
	AgentReport(xds.AgentReport)
}

// isReport reports whether a request is a report of either kind. It subscribes to nothing, and gets no response.
func isReport(req *session.Request) bool { return isHealth(req) || req.Type == xds.AgentReportType }

// isHealth reports whether a request is a report of health.
func isHealth(req *session.Request) bool { return req.Type == xds.HealthType }

// takeReport hands on a report.
func (st *stream) takeReport(req *session.Request) {
	if isHealth(req) {
		st.reportHealth(req)
		return
	}
	report, err := xds.ParseAgentReport(req.Error)
	view, ok := st.view.(AgentView)
	if st.log.Enabled(context.Background(), slog.LevelDebug) {
		st.log.Debug("report of an agent", "report", report, "used", ok, "err", err)
	}
	if ok && err == nil {
		view.AgentReport(report)
	}
}

// reportHealth hands on a report of health.
func (st *stream) reportHealth(req *session.Request) {
	view, ok := st.view.(HealthView)
	if st.log.Enabled(context.Background(), slog.LevelDebug) {
		st.log.Debug("report of health", "healthy", !req.NACK, "used", ok)
	}
	if ok {
		view.Report(!req.NACK, req.Error)
	}
}
