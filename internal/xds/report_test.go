package xds

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

var midnight = time.Date(2026, 1, 2, 12, 3, 0, 0, time.UTC)

func TestAReportArrivesAsItWas(t *testing.T) {
	for _, r := range []AgentReport{{}, {HeldBack: []HeldBack{{"CDS", 14, 14, midnight}, {"EDS", 5, 2, midnight}}}} {
		if got, err := ParseAgentReport(r.String()); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%+v arrives as %+v, %v", r, got, err)
		}
	}
	if got, err := ParseAgentReport(`{"later": {"x": 1}, "held_back": [{"type": "CDS", "had": 1, "why": "x"}]}`); err != nil || len(got.HeldBack) != 1 {
		t.Errorf("what a later version adds: %+v, %v", got, err)
	}
}

func TestAReportOfAnythingIsRejected(t *testing.T) {
	for _, text := range []string{
		"{", "[]", `"x"`, `{"held_back": [{"type": "CDS\u001b[2J"}]}`, `{"held_back": [{"type": "CDS", "had": -1}]}`, `{"held_back": [{"type": "CDS", "since": 1}]}`,
		`{"held_back": [` + strings.Repeat(" ", maxReport) + `]}`,
	} {
		if got, err := ParseAgentReport(text); err == nil || len(got.HeldBack) > 0 {
			t.Errorf("%.40q is accepted as %+v", text, got)
		}
	}
}

func TestWhatIsHeldBackIsSaidInASentence(t *testing.T) {
	for want, h := range map[string]HeldBack{
		"had 14 clusters, the control plane sends none since 12:03:00, which looks like an accident":          {"CDS", 14, 14, midnight},
		"had 1 listener, the control plane sends none since 12:03:00, which looks like an accident":           {"LDS", 1, 1, midnight},
		"had endpoints of 5 clusters, the control plane sends 3 since 12:03:00, which looks like an accident": {"EDS", 5, 2, midnight},
		"had 2 route configurations, the control plane sends 1 since 12:03:00, which looks like an accident":  {"RDS", 2, 1, midnight},
		"had 3 SDS resources, the control plane sends none since 12:03:00, which looks like an accident":      {"SDS", 0, 3, midnight},
	} {
		if got := h.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
