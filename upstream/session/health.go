package session

import (
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// reports is the part of a Session that tells the server the health of the workload, and what the agent says of itself.
type reports struct {
	// current is the health now, sent what the server was told, and at when.
	current, sent xds.Health
	at            time.Time
	// note is the report of the agent now, noted what the server was told; mesh says that the server understands it.
	note, noted string
	mesh        bool
}

// Note sets the report of the agent. The server is told if it names itself holdfast-mesh.
func (s *Session) Note(r xds.AgentReport) { s.reports.note = r.String() }

// identify records who the server says it is.
func (s *Session) identify(from *corev3.ControlPlane) {
	s.reports.mesh = strings.HasPrefix(from.GetIdentifier(), xds.MeshIdentifier)
}

// Report sets the health of the workload. The server is told with the next request, after the first request of a type, by
// which it knows whose health it is (istiod ignores earlier reports), or with Config.ReportLate after its first response.
func (s *Session) Report(h xds.Health) { s.reports.current = h }

// Reported returns when the server was last told the health of the workload; the zero time for never.
func (s *Session) Reported() time.Time { return s.reports.at }

// nextReport returns the request with a report, if the server was told another one. If the type must not be
// requested yet, it returns until when.
func (s *Session) nextReport(now time.Time) (req *Request, next time.Time) {
	r := &s.reports
	if r.mesh && r.note != r.noted {
		r.noted = r.note
		return &Request{Type: xds.AgentReportType, NACK: r.note}, time.Time{}
	}
	if !r.current.Known || r.current == r.sent || len(s.begun) == 0 || s.cfg.ReportLate && !s.answered {
		return nil, time.Time{}
	}
	if at := s.cfg.NotBefore[xds.HealthType]; at.After(now) {
		return nil, at
	}
	r.sent, r.at = r.current, now
	return &Request{Type: xds.HealthType, NACK: r.sent.Reason}, time.Time{}
}
