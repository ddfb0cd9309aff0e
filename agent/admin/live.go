package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// LiveRehearsal is what was observed while the running agent was cut off from its control planes.
type LiveRehearsal struct {
	// Began is when the cut began, and Seconds is how long it lasted.
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Losses are what was lost. What they are after is "the cut".
	Losses []Loss `json:"losses"`
	// Observed are what happened, in order of time.
	Observed []Observation `json:"observed"`
	// Before, During and After count the requests to Envoy; nil if its admin interface is not known.
	Before *RequestCount `json:"before,omitempty"`
	During *RequestCount `json:"during,omitempty"`
	After  *RequestCount `json:"after,omitempty"`
	// BackAfterSeconds is how long after the cut each node had a control plane again; negative if that did not happen
	// while it was waited for.
	BackAfterSeconds float64 `json:"back_after_seconds"`
}

// Observation is something that happened.
type Observation struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// RequestCount counts the requests to Envoy in a time, and those of them that were answered with 5xx.
type RequestCount struct {
	Seconds   float64 `json:"seconds"`
	Completed uint64  `json:"completed"`
	Failed    uint64  `json:"failed"`
}

// AfterCut is what the losses of a LiveRehearsal are after.
const AfterCut = "the cut"

// Bounds of the length of a cut.
const (
	MinCut = time.Second
	MaxCut = time.Hour
)

// CheckCut returns an error for a length of a cut that is out of bounds.
func CheckCut(d time.Duration) error {
	if d < MinCut || d > MaxCut {
		return fmt.Errorf("%s: want a duration from %s to %s", d, MinCut, MaxCut)
	}
	return nil
}

// Lost reports whether something was lost.
func (r *LiveRehearsal) Lost() bool { return len(r.Losses) > 0 }

// Lose adds a loss.
func (r *LiveRehearsal) Lose(node, what, why string) {
	r.Losses = append(r.Losses, Loss{AfterCut, node, what, why})
}

// Rehearser cuts an agent off from its control planes for a time, as an outage would, and says what happened. It puts
// them back when ctx ends, too.
type Rehearser interface {
	RehearseLive(ctx context.Context, d time.Duration) (*LiveRehearsal, error)
}

// rehearseLive is POST /rehearsal?for=30s. The answer comes when it is over. POST /rehearsal?proof=TIME&losses=N tells
// the result of a proof, for the metrics.
func (s *Server) rehearseLive(w http.ResponseWriter, r *http.Request) {
	if query := r.URL.Query(); query.Has("proof") {
		at, err := time.Parse(time.RFC3339Nano, query.Get("proof"))
		losses, bad := strconv.ParseUint(query.Get("losses"), 10, 32)
		if err = errors.Join(err, bad); err != nil {
			text(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		s.cfg.Metrics.Rehearsed(ProofKind, at, int(losses))
		s.cfg.Log.Info("rehearsal: a proof was made", "losses", losses, "by", client(r))
		text(w, http.StatusOK, "done\n")
		return
	}
	d, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err == nil {
		err = CheckCut(d)
	}
	if err != nil {
		text(w, http.StatusBadRequest, "for: "+err.Error()+"\n")
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it may take long
	s.cfg.Log.Warn("rehearsal: the agent is cut off from its control planes", "for", d.String(), "by", client(r))
	live, err := s.cfg.Rehearser.RehearseLive(r.Context(), d)
	if err != nil {
		text(w, http.StatusConflict, err.Error()+"\n")
		return
	}
	s.cfg.Metrics.Rehearsed(LiveKind, live.Began, len(live.Losses))
	writeJSON(w, http.StatusOK, live)
}

// RehearseLive cuts the agent off from its control planes for a time. If ctx ends, the agent puts them back at once.
func (c Client) RehearseLive(ctx context.Context, d time.Duration) (live *LiveRehearsal, err error) {
	query := url.Values{"for": {d.String()}}
	err = c.request(ctx, http.MethodPost, "/rehearsal", query, 0, func(resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return errors.New(said(resp))
		}
		return json.NewDecoder(resp.Body).Decode(&live)
	})
	return live, err
}

// Proved tells the agent the result of a proof (package proof), for its metrics.
func (c Client) Proved(ctx context.Context, at time.Time, losses int) error {
	query := url.Values{"proof": {at.UTC().Format(time.RFC3339Nano)}, "losses": {strconv.Itoa(losses)}}
	return c.post(ctx, "/rehearsal", query, func(io.Reader) error { return nil })
}

// WriteText writes what was observed for a person.
func (r *LiveRehearsal) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Cut off from the control plane at %s for %.3g s\n", r.Began.UTC().Format(time.RFC3339), r.Seconds)
	for _, o := range r.Observed {
		fmt.Fprintf(&b, "  %s  %s\n", clock(o.At), Printable(o.What))
	}
	if r.During != nil {
		b.WriteString("\nRequests to Envoy\n")
		t := newTable(&b, "", "SECONDS", "REQUESTS", "ANSWERED WITH 5xx")
		for _, row := range []struct {
			when  string
			count *RequestCount
		}{{"before", r.Before}, {"during the cut", r.During}, {"after", r.After}} {
			if row.count != nil {
				t.row(row.when, fmt.Sprintf("%.3g", row.count.Seconds), fmt.Sprint(row.count.Completed), fmt.Sprint(row.count.Failed))
			}
		}
		t.end()
	} else {
		b.WriteString("\nRequests were not counted: the address of Envoy's admin interface is not known (run --envoy-admin).\n")
	}
	if len(r.Losses) == 0 {
		b.WriteString("\nNothing was lost.\n")
	} else {
		b.WriteString("\nWhat was lost\n")
	}
	for _, l := range r.Losses {
		fmt.Fprintf(&b, "  %s: %s\n", Printable(l.What), Printable(l.Why))
	}
	_, err := w.Write(b.Bytes())
	return err
}

// clock returns the time of a day in UTC.
func clock(at time.Time) string { return at.UTC().Format("15:04:05.000") }
