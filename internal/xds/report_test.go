package xds

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

var midnight = time.Date(2026, 1, 2, 12, 3, 0, 0, time.UTC)

func TestAReportArrivesAsItWas(t *testing.T) {
	for _, r := range []AgentReport{{}, {HeldBack: []HeldBack{{"CDS", 14, 14, midnight}, {"EDS", 5, 2, midnight}}},
		{Frozen: &Frozen{Since: midnight, Types: []string{"CDS", "LDS"}, By: "uid 0", Reason: "incident 4711"}},
		{Frozen: &Frozen{Since: midnight, Types: []string{}, RolledBack: true, RolledBackTo: midnight.Add(-time.Hour)}, HeldBack: []HeldBack{{"CDS", 1, 1, midnight}}}} {
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
		`{"frozen": {"types": ["CDS", "x"]}}`, `{"frozen": {"since": 1}}`,
		`{"held_back": [` + strings.Repeat(" ", maxReport) + `]}`,
	} {
		if got, err := ParseAgentReport(text); err == nil || len(got.HeldBack) > 0 || got.Frozen != nil {
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

func TestFrozen_IsSaidInASentence(t *testing.T) {
	for want, f := range map[string]Frozen{
		"frozen since 2026-01-02 12:03:00 UTC":                                                                   {},
		"frozen since 2026-01-02 12:03:00 UTC by uid 0 (incident 4711)":                                          {By: "uid 0", Reason: "incident 4711"},
		"rolled back, and frozen since 2026-01-02 12:03:00 UTC by uid 0":                                         {RolledBack: true, By: "uid 0"},
		"rolled back to 2026-01-02 11:03:00 UTC, and frozen since 2026-01-02 12:03:00 UTC (a release, reverted)": {RolledBack: true, RolledBackTo: midnight.Add(-time.Hour), Reason: "a release, reverted"},
	} {
		f.Since = midnight
		if got := f.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Who freezes says anything, of any length, and so may a client that is no agent of ours.
func TestFrozen_WhatPeopleSayIsOneLine(t *testing.T) {
	long := strings.Repeat("ä", maxReport)
	for said, want := range map[string]string{"a\nb\u001b[2J\u009bx": "a b [2J x", " \t": "", "\xff!": "\uFFFD!", long: long[:maxSaid]} {
		sent := AgentReport{Frozen: &Frozen{Since: midnight, Types: []string{"CDS"}, By: said, Reason: said}}
		got, err := ParseAgentReport(sent.String())
		if err != nil || got.Frozen.Reason != want || got.Frozen.By != want || sent.Frozen.Reason != said {
			t.Errorf("%.40q arrives as %+v, %v", said, got.Frozen, err)
		}
	}
	if got, err := ParseAgentReport(`{"frozen": {"since": "2026-01-02T12:03:00Z", "by": "a\u001b[2J"}}`); err != nil || got.Frozen.By != "a [2J" {
		t.Errorf("%+v, %v", got.Frozen, err)
	}
}
