package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Freeze is what is frozen for a group, as the status shows it.
type Freeze struct {
	Since  time.Time `json:"since"`
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// All says that everything but endpoints and Secrets is frozen. Types are the short names of types,
	// and Names are TYPE/NAME.
	All   bool     `json:"all,omitempty"`
	Types []string `json:"types,omitempty"`
	Names []string `json:"names,omitempty"`
	// Until is when somebody wanted to be reminded; the zero time for never.
	Until time.Time `json:"until,omitzero"`
	// ACK says that what the control plane sends is ACKed although clients do not get it.
	ACK bool `json:"ack,omitempty"`
	// RolledBack says that earlier contents are served: those of RolledBackTo, or single versions if that is
	// the zero time.
	RolledBack   bool      `json:"rolled_back,omitempty"`
	RolledBackTo time.Time `json:"rolled_back_to,omitzero"`
	// Volatile says that the freeze ends with the agent, because there is no state directory.
	Volatile bool `json:"volatile,omitempty"`
	// NotStored counts the frozen resources that are not on disk, so that a restart of the agent ends the
	// freeze for them.
	NotStored int `json:"not_stored,omitempty"`
	// Waiting counts the changes of the control plane that are not served, by short name of their type.
	Waiting map[string]int `json:"waiting"`
}

// waiting is the number of changes that wait.
func (f *Freeze) waiting() (n int) {
	for _, of := range f.Waiting {
		n += of
	}
	return n
}

// what describes what is frozen.
func (f *Freeze) what() string {
	var parts []string
	if f.All {
		parts = append(parts, "everything but endpoints and secrets")
	}
	parts = append(parts, f.Types...)
	const most = 3
	parts = append(parts, f.Names[:min(most, len(f.Names))]...)
	if more := len(f.Names) - most; more > 0 {
		parts = append(parts, plural(more, "more name"))
	}
	return strings.Join(parts, ", ")
}

// Line describes the freeze in a sentence. at is as in Status.
func (f *Freeze) Line(now time.Time, at string) string {
	text := "frozen"
	switch {
	case f.RolledBack && f.RolledBackTo.IsZero():
		text = "rolled back and frozen"
	case f.RolledBack:
		text = "rolled back to " + f.RolledBackTo.UTC().Format(time.RFC3339) + " and frozen"
	}
	text += " since " + f.Since.UTC().Format(time.RFC3339)
	if f.By != "" {
		text += " by " + f.By
	}
	if f.Reason != "" {
		text += ": " + strings.TrimRight(f.Reason, ".")
	}
	verb := "wait"
	if f.waiting() == 1 {
		verb = "waits"
	}
	text += fmt.Sprintf("; %s; %s %s; `holdfast resume%s` ends it", f.what(), plural(f.waiting(), "change"), verb, at)
	if f.Volatile {
		text += "; a restart of the agent ends it, too, because there is no --state-dir"
	}
	if f.NotStored > 0 {
		text += fmt.Sprintf("; a restart of the agent ends it for %s that cannot be stored", plural(f.NotStored, "resource"))
	}
	if f.Overdue(now) {
		text += "; it was meant to end " + ago(now, f.Until)
	}
	return text
}

// Ended returns a sentence about a freeze that has just ended.
func (f *Freeze) Ended() string {
	did := "the freeze"
	if f.RolledBack {
		did = "the rollback"
	}
	did += " of " + f.Since.UTC().Format(time.RFC3339)
	if f.Reason != "" {
		did += " (" + strings.TrimRight(f.Reason, ".") + ")"
	}
	verb := "are"
	if f.waiting() == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%s has ended: %s of the control plane %s served now", did, plural(f.waiting(), "change"), verb)
}

// Overdue reports whether the freeze was meant to be over.
func (f *Freeze) Overdue(now time.Time) bool { return !f.Until.IsZero() && f.Until.Before(now) }

// FreezeRequest asks for a freeze.
type FreezeRequest struct {
	Reason string
	// Types are short names or type URLs; none for everything but endpoints and Secrets.
	Types []string
	// For is after which time to remind; 0 for never.
	For time.Duration
	// ACK is as in Freeze.
	ACK bool
	// By is who asks; the server sets it.
	By string
}

// RollbackRequest asks to serve an earlier configuration.
type RollbackRequest struct {
	// To is the time whose configuration is served. Version is the version that the only one of Names gets
	// instead. Without both, To is before the last change.
	To      time.Time
	Version string
	// Names are TYPE/NAME; none for everything but endpoints and Secrets.
	Names           []string
	Reason          string
	Partial, DryRun bool
	// By is who asks; the server sets it.
	By string
}

// Rollback is what a rollback changed, or would change, for the clients of a node.
type Rollback struct {
	Node    string        `json:"node"`
	To      time.Time     `json:"to,omitzero"`
	Changes []RolledBack  `json:"changes"`
	Missing []NotRestored `json:"missing,omitempty"`
	// Done says that it was changed.
	Done bool `json:"done"`
}

// RolledBack is a name that is served in another version.
type RolledBack struct {
	Type string `json:"type"`
	Name string `json:"name"`
	From string `json:"from,omitempty"` // the version; "" for none
	To   string `json:"to,omitempty"`
}

// NotRestored is something that cannot be served as it was.
type NotRestored struct {
	Type string `json:"type"`
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Changes are the requests that change what clients are served.
type Changes interface {
	// Freeze serves what is served now until it is resumed.
	Freeze(FreezeRequest) error
	// RollBack serves an earlier configuration, and freezes it. If something is missing for a node and
	// Partial is not set, nothing changes for any node.
	RollBack(RollbackRequest) ([]Rollback, error)
	// OfferAgain offers to clients again what they rejected. It is an error if nothing that is meant is rejected.
	OfferAgain(OfferRequest) ([]Offer, error)
}

// OfferRequest says what of that which clients rejected is offered to them again: these names, as TYPE/NAME, or all. DryRun changes
// nothing.
type OfferRequest struct {
	Names  []string
	DryRun bool
}

// Offer is a resource that is, or would be, offered again to the clients of a node.
type Offer struct {
	Node   string `json:"node"`
	Type   string `json:"type"`
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"`
}

// maxReason bounds the reason of a freeze, which travels in NACKs and in logs.
const maxReason = 200

func checkReason(reason string) error {
	switch {
	case len(reason) > maxReason:
		return fmt.Errorf("the reason has %d bytes: want at most %d", len(reason), maxReason)
	case Printable(reason) != reason:
		return errors.New("the reason has control characters")
	}
	return nil
}

// ParseName returns the type URL and the name of TYPE/NAME.
func ParseName(text string) (k xds.Key, err error) {
	kind, name, _ := strings.Cut(text, "/")
	if rest, ok := strings.CutPrefix(text, "type.googleapis.com/"); ok {
		message, n, _ := strings.Cut(rest, "/")
		kind, name = "type.googleapis.com/"+message, n
	}
	if k.Type, err = ParseType(kind); err == nil && name == "" {
		err = fmt.Errorf("%q has no name: want TYPE/NAME", text)
	}
	k.Name = name
	return k, err
}

// ParseTime returns the time of a text: RFC 3339, or a duration before now, such as 10m.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q: want a time such as 2026-01-31T03:00:00Z, or a duration before now such as 10m", text)
}

func (q FreezeRequest) values() url.Values {
	v := url.Values{"reason": {q.Reason}, "type": q.Types}
	if q.For > 0 {
		v.Set("for", q.For.String())
	}
	if q.ACK {
		v.Set("ack", "true")
	}
	return v
}

// freezeRequest is the reverse of values.
func freezeRequest(v url.Values) (q FreezeRequest, err error) {
	q.Reason = v.Get("reason")
	for key, values := range v {
		switch key {
		case "reason":
			err = errors.Join(err, checkReason(q.Reason))
		case "type":
			for _, name := range values {
				typeURL, bad := ParseType(name)
				err = errors.Join(err, bad)
				q.Types = append(q.Types, typeURL)
			}
		case "for":
			d, bad := time.ParseDuration(values[0])
			if bad != nil || d < 0 {
				err = errors.Join(err, fmt.Errorf("for %q: want a duration such as 2h", values[0]))
			}
			q.For = d
		case "ack":
			q.ACK, err = parseBool(key, values[0], err)
		default:
			err = errors.Join(err, fmt.Errorf("unknown parameter %q: want reason, type, for or ack", key))
		}
	}
	return q, err
}

func parseBool(key, text string, before error) (bool, error) {
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.Join(before, fmt.Errorf("%s %q: want true or false", key, text))
	}
	return b, before
}

func (q RollbackRequest) values() url.Values {
	v := url.Values{"reason": {q.Reason}, "resource": q.Names}
	if !q.To.IsZero() {
		v.Set("to", q.To.UTC().Format(time.RFC3339Nano))
	}
	for key, value := range map[string]string{"version": q.Version} {
		if value != "" {
			v.Set(key, value)
		}
	}
	for key, value := range map[string]bool{"partial": q.Partial, "dry_run": q.DryRun} {
		if value {
			v.Set(key, "true")
		}
	}
	return v
}

// rollbackRequest is the reverse of values.
func rollbackRequest(v url.Values, now time.Time) (q RollbackRequest, err error) {
	q.Reason, q.Version = v.Get("reason"), v.Get("version")
	for key, values := range v {
		switch key {
		case "reason":
			err = errors.Join(err, checkReason(q.Reason))
		case "resource":
			q.Names = values
			for _, name := range values {
				_, bad := ParseName(name)
				err = errors.Join(err, bad)
			}
		case "to":
			at, bad := ParseTime(values[0], now)
			if err = errors.Join(err, bad); bad == nil && at.After(now) {
				err = errors.Join(err, fmt.Errorf("to %q: it is in the future", values[0]))
			}
			q.To = at
		case "version":
		case "partial":
			q.Partial, err = parseBool(key, values[0], err)
		case "dry_run":
			q.DryRun, err = parseBool(key, values[0], err)
		default:
			err = errors.Join(err, fmt.Errorf("unknown parameter %q: want to, version, resource, reason, partial or dry_run", key))
		}
	}
	switch {
	case q.Version != "" && len(q.Names) != 1:
		err = errors.Join(err, errors.New("a version is that of one resource: name it as TYPE/NAME"))
	case q.Version != "" && !q.To.IsZero():
		err = errors.Join(err, errors.New("give a time or a version, not both"))
	}
	return q, err
}

func (q OfferRequest) values() url.Values {
	v := url.Values{"resource": q.Names}
	if q.DryRun {
		v.Set("dry_run", "true")
	}
	return v
}

// offerRequest is the reverse of values.
func offerRequest(v url.Values) (q OfferRequest, err error) {
	for key, values := range v {
		switch key {
		case "resource":
			q.Names = values
			for _, name := range values {
				_, bad := ParseName(name)
				err = errors.Join(err, bad)
			}
		case "dry_run":
			q.DryRun, err = parseBool(key, values[0], err)
		default:
			err = errors.Join(err, fmt.Errorf("unknown parameter %q: want resource or dry_run", key))
		}
	}
	return q, err
}

// offerAgain answers with a list of Offers.
func (s *Server) offerAgain(w http.ResponseWriter, r *http.Request) {
	answerChange(w, r, offerRequest, s.cfg.Changes.OfferAgain)
}

// answerChange answers a request that changes what clients are served: parse reads it, and what do did is the answer.
func answerChange[Q, A any](w http.ResponseWriter, r *http.Request, parse func(url.Values) (Q, error), do func(Q) ([]A, error)) {
	q, err := parse(r.URL.Query())
	if err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	all, err := do(q)
	if err != nil {
		text(w, http.StatusConflict, err.Error()+"\n")
		return
	}
	writeJSON(w, http.StatusOK, notNil(all))
}

// OfferAgain asks that clients are offered again what they rejected.
func (c Client) OfferAgain(ctx context.Context, q OfferRequest) (all []Offer, err error) {
	err = c.post(ctx, "/offer-again", q.values(), func(r io.Reader) error { return json.NewDecoder(r).Decode(&all) })
	return all, err
}

func (s *Server) freeze(w http.ResponseWriter, r *http.Request) {
	q, err := freezeRequest(r.URL.Query())
	if err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	q.By = client(r)
	if err := s.cfg.Changes.Freeze(q); err != nil {
		text(w, http.StatusConflict, err.Error()+"\n")
		return
	}
	text(w, http.StatusOK, "done\n")
}

// rollback answers with a list of Rollbacks, which are not Done if something is missing.
func (s *Server) rollback(w http.ResponseWriter, r *http.Request) {
	parse := func(v url.Values) (RollbackRequest, error) { return rollbackRequest(v, time.Now()) }
	answerChange(w, r, parse, func(q RollbackRequest) ([]Rollback, error) {
		q.By = client(r)
		return s.cfg.Changes.RollBack(q)
	})
}

// Freeze asks for a freeze.
func (c Client) Freeze(ctx context.Context, q FreezeRequest) error {
	return c.post(ctx, "/freeze", q.values(), func(io.Reader) error { return nil })
}

// RollBack asks for a rollback.
func (c Client) RollBack(ctx context.Context, q RollbackRequest) (all []Rollback, err error) {
	err = c.post(ctx, "/rollback", q.values(), func(r io.Reader) error { return json.NewDecoder(r).Decode(&all) })
	return all, err
}

func (c Client) post(ctx context.Context, path string, query url.Values, read func(io.Reader) error) error {
	return c.request(ctx, http.MethodPost, path, query, requestTimeout, func(resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", c.Addr, said(resp))
		}
		return read(resp.Body)
	})
}

// WaitingTypes returns the types of which changes wait, in push order.
func (f *Freeze) WaitingTypes() []string {
	return slices.SortedFunc(maps.Keys(f.Waiting), xds.CompareShort)
}
