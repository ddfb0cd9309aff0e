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

// isHealth reports whether a request is a report of health. It subscribes to nothing, and gets no response.
func isHealth(req *session.Request) bool { return req.Type == xds.HealthType }

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
