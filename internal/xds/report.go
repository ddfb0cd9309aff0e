package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// AgentReport is what an agent tells holdfast-mesh of itself (AgentReportType). The zero value is the end of what was
// reported before. A reader ignores fields that it does not know.
type AgentReport struct {
	// HeldBack has the types of which the agent holds something back, in push order.
	HeldBack []HeldBack `json:"held_back,omitempty"`
	// Frozen says what an operator of the agent has frozen; nil for nothing.
	Frozen *Frozen `json:"frozen,omitempty"`
}

// Frozen says that clients keep what they have, or what they had earlier, whatever the control plane sends, until an operator ends it
// (`holdfast freeze`, `holdfast rollback`).
type Frozen struct {
	Since time.Time `json:"since"`
	// Types are the short names of the types that are frozen, whole or in part.
	Types []string `json:"types"`
	// RolledBack says that clients have something earlier than what they had then: what they had at RolledBackTo, or the zero time for
	// single versions.
	RolledBack   bool      `json:"rolled_back,omitempty"`
	RolledBackTo time.Time `json:"rolled_back_to,omitzero"`
	// By is who asked for it, and Reason why: one line each, of at most maxSaid bytes.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// HeldBack says that clients have resources of a type which the control plane removed or emptied, because that looks like an
// accident (design.md I10).
type HeldBack struct {
	// Type is the short name of the type.
	Type string `json:"type"`
	// Had is how many resources clients have that are not empty, HeldBack how many of these are held back.
	Had      int       `json:"had"`
	HeldBack int       `json:"held_back"`
	Since    time.Time `json:"since"`
}

// maxReport bounds a report, in bytes: an agent has some ten types.
const maxReport = 8 << 10

// maxSaid bounds what a person has said in a report, in bytes.
const maxSaid = 256

// said returns a text of a person as one line of at most maxSaid bytes, without what a terminal obeys.
func said(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "\uFFFD"))
	for len(text) > maxSaid {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return strings.TrimSpace(text)
}

// String returns the report as it is sent: JSON, or "" for the zero value.
func (r AgentReport) String() string {
	if len(r.HeldBack) == 0 && r.Frozen == nil {
		return ""
	}
	if r.Frozen != nil {
		frozen := *r.Frozen
		frozen.By, frozen.Reason = said(frozen.By), said(frozen.Reason)
		r.Frozen = &frozen
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "" // there is nothing that JSON cannot express
	}
	return string(text)
}

// ParseAgentReport is the inverse of String, for a text in which anything may be. Types that holdfast does not know, and numbers that
// cannot be, are an error.
func ParseAgentReport(text string) (r AgentReport, err error) {
	switch {
	case text == "":
		return r, nil
	case len(text) > maxReport:
		return r, fmt.Errorf("report of %d bytes: at most %d are accepted", len(text), maxReport)
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return AgentReport{}, fmt.Errorf("report: %w", err)
	}
	for _, h := range r.HeldBack {
		if _, known := TypeByShort(h.Type); !known || h.Had < 0 || h.HeldBack < 0 {
			return AgentReport{}, errors.New("report: unknown type, or a negative number")
		}
	}
	if f := r.Frozen; f != nil {
		for _, short := range f.Types {
			if _, known := TypeByShort(short); !known {
				return AgentReport{}, errors.New("report: unknown type")
			}
		}
		f.By, f.Reason = said(f.By), said(f.Reason)
	}
	return r, nil
}

// String says since when, by whom and why: "frozen since 2026-01-02 12:03:00 UTC by uid 0 (incident 4711)".
func (f *Frozen) String() string {
	text := "frozen"
	switch {
	case f.RolledBack && !f.RolledBackTo.IsZero():
		text = "rolled back to " + f.RolledBackTo.UTC().Format(time.DateTime) + " UTC, and frozen"
	case f.RolledBack:
		text = "rolled back, and frozen"
	}
	text += " since " + f.Since.UTC().Format(time.DateTime) + " UTC"
	if f.By != "" {
		text += " by " + f.By
	}
	if f.Reason != "" {
		text += " (" + f.Reason + ")"
	}
	return text
}

// String says what there was, and what the control plane still sends: "had 14 clusters, the control plane sends none since
// 12:03:00, which looks like an accident".
func (h HeldBack) String() string {
	typeURL, _ := TypeByShort(h.Type)
	what := map[string]string{ClusterType: "cluster", ListenerType: "listener", RouteType: "route configuration", EndpointType: "cluster"}[typeURL]
	if what == "" {
		what = h.Type + " resource"
	}
	had := max(h.Had, h.HeldBack)
	if what = strconv.Itoa(had) + " " + what; had != 1 {
		what += "s"
	}
	if typeURL == EndpointType {
		what = "endpoints of " + what
	}
	sends := "none"
	if left := had - h.HeldBack; left > 0 {
		sends = strconv.Itoa(left)
	}
	return fmt.Sprintf("had %s, the control plane sends %s since %s, which looks like an accident", what, sends, h.Since.UTC().Format(time.TimeOnly))
}
