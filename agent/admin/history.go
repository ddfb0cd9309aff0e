package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// NameHistory is what the clients of a node accepted under one name.
type NameHistory struct {
	Node string `json:"node"`
	Type string `json:"type"`
	Name string `json:"name"`
	// Began is since when the contents of the type are recorded.
	Began time.Time `json:"began,omitzero"`
	// Versions are the contents in the order of their time; the last one is the present one. Of a name of which clients accepted nothing there
	// is none.
	Versions []Version `json:"versions"`
	// Rejected is the newest content, if clients rejected it; nil if they did not.
	Rejected *Rejected `json:"rejected,omitempty"`
}

// Rejected is a content that clients rejected.
type Rejected struct {
	Version string `json:"version"`
	Reason  string `json:"reason"`
	Tries   Tries  `json:"tries"`
}

// Version is a content that clients accepted, or the absence of one.
type Version struct {
	// From is when clients accepted it, and Until when they accepted another one. The zero time of From is
	// for since the records began, that of Until for the present one.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Version is the content hash; "" if there was no content.
	Version         string `json:"version,omitempty"`
	UpstreamVersion string `json:"upstream_version,omitempty"`
	// Size is that of the content in bytes. Kept says that it can be shown and served again.
	Size int  `json:"size,omitempty"`
	Kept bool `json:"kept"`
}

// HistoryFilter selects names; empty fields match everything.
type HistoryFilter struct {
	Node string
	// Type is a type URL.
	Type, Name string
	// Since selects the names whose accepted content changed at or after it.
	Since time.Time
}

// Content is one content of a name.
type Content struct {
	Node    string `json:"node"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // "" for none
	// Body is the content; nil for none. Resource is its redacted JSON, which the server sets.
	Body     *anypb.Any      `json:"-"`
	Resource json.RawMessage `json:"resource,omitempty"`
	// Text is Resource as YAML, if that is asked for.
	Text string `json:"yaml,omitempty"`
}

// Contents names the contents of a resource that can be asked for, beside times and versions.
var Contents = []string{"served", "held", "accepted", "previous", "stable", "stored", "upstream"}

// Histories is what an agent knows of earlier contents.
type Histories interface {
	// History returns the histories that a filter selects, in push order of the types and then by name.
	History(HistoryFilter) []NameHistory
	// Contents returns a content of a name for the clients of each node: one of Contents, a time as for
	// ParseTime, or a version. An error says that it is not known.
	Contents(node string, k xds.Key, which string) ([]Content, error)
}

func (s *Server) history(w http.ResponseWriter, r *http.Request) {
	f, err := historyFilter(r.URL.Query(), time.Now())
	if err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	writeJSON(w, http.StatusOK, notNil(s.cfg.Histories.History(f)))
}

func historyFilter(v url.Values, now time.Time) (f HistoryFilter, err error) {
	for key, values := range v {
		value := values[0]
		switch key {
		case "node":
			f.Node = value
		case "type":
			typeURL, bad := ParseType(value)
			err = errors.Join(err, bad)
			f.Type = typeURL
		case "name":
			f.Name = value
		case "since":
			at, bad := ParseTime(value, now)
			err = errors.Join(err, bad)
			f.Since = at
		default:
			err = errors.Join(err, fmt.Errorf("unknown parameter %q: want node, type, name or since", key))
		}
	}
	return f, err
}

// content answers with the content of a name for the clients of each node.
func (s *Server) content(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	for key := range query {
		if !slices.Contains([]string{"node", "resource", "which", "yaml"}, key) {
			text(w, http.StatusBadRequest, fmt.Sprintf("unknown parameter %q: want node, resource, which or yaml\n", key))
			return
		}
	}
	if _, err := ParseName(query.Get("resource")); err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	all, err := s.contents(query.Get("node"), query.Get("resource"), query.Get("which"))
	if err != nil {
		text(w, http.StatusNotFound, err.Error()+"\n")
		return
	}
	for i := range all {
		if query.Has("yaml") {
			all[i].Text, _ = all[i].YAML() // of JSON that was just made
		}
	}
	writeJSON(w, http.StatusOK, notNil(all))
}

// History returns the histories that a filter selects.
func (c Client) History(ctx context.Context, f HistoryFilter) (all []NameHistory, err error) {
	v := url.Values{}
	for key, value := range map[string]string{"node": f.Node, "type": f.Type, "name": f.Name} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if !f.Since.IsZero() {
		v.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	err = c.get(ctx, "/history", v, func(r io.Reader) error { return json.NewDecoder(r).Decode(&all) })
	return all, err
}

// ErrUnknownContent is the error of Contents if the agent does not know what was asked for.
var ErrUnknownContent = errors.New("not known")

// Contents returns a content of TYPE/NAME for the clients of each node, as Histories.Contents does, with
// Resource set. The error is ErrUnknownContent, with the reason, if it is not known.
func (c Client) Contents(ctx context.Context, node, resource, which string) (all []Content, err error) {
	v := url.Values{"node": {node}, "resource": {resource}, "which": {which}}
	err = c.request(ctx, http.MethodGet, "/content", v, connectTimeout, func(resp *http.Response) error {
		switch resp.StatusCode {
		case http.StatusOK:
			return json.NewDecoder(resp.Body).Decode(&all)
		case http.StatusNotFound:
			return fmt.Errorf("%w: %s", ErrUnknownContent, strings.TrimSpace(said(resp)))
		}
		return fmt.Errorf("%s: %s", c.Addr, said(resp))
	})
	return all, err
}
