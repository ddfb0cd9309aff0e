package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/agent/explain"
	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// ExplainQuery is what Client.Explain asks about: a request if Host is set, a resource if Type is set, or else
// everything.
type ExplainQuery struct {
	// Node is the id of the clients' node; "" for all.
	Node string
	// Type is a short name or a type URL, and Name that of the resource.
	Type, Name string
	// Host may have a port, and Path a query. Method, Scheme and Path have the defaults of routing.Request.
	Host, Path, Method, Scheme string
	Headers                    []routing.Header
	// Port is the port that the client connects to; 0 for that of Host or of the scheme.
	Port uint32
}

func (q ExplainQuery) values() url.Values {
	v := url.Values{}
	for key, value := range map[string]string{
		"node": q.Node, "type": q.Type, "name": q.Name, "host": q.Host, "path": q.Path, "method": q.Method, "scheme": q.Scheme,
	} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if q.Port != 0 {
		v.Set("port", strconv.FormatUint(uint64(q.Port), 10))
	}
	for _, h := range q.Headers {
		v.Add("header", h.Name+":"+h.Value)
	}
	return v
}

// explainQuery is the reverse of values.
func explainQuery(v url.Values) (q ExplainQuery, err error) {
	for key, values := range v {
		value := values[0]
		switch key {
		case "node":
			q.Node = value
		case "type":
			q.Type = value
		case "name":
			q.Name = value
		case "host":
			q.Host = value
		case "path":
			q.Path = value
		case "method":
			q.Method = value
		case "scheme":
			q.Scheme = value
		case "port":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil || port == 0 {
				return q, fmt.Errorf("port %q: want 1 to 65535", value)
			}
			q.Port = uint32(port)
		case "header":
			for _, text := range values {
				h, err := ParseHeader(text)
				if err != nil {
					return q, err
				}
				q.Headers = append(q.Headers, h)
			}
		default:
			return q, fmt.Errorf("unknown parameter %q: want node, type, name, host, path, method, scheme, port or header", key)
		}
	}
	if (q.Type == "") != (q.Name == "") {
		return q, errors.New("a resource has both a type and a name")
	}
	if q.Scheme != "" && q.Scheme != "http" && q.Scheme != "https" {
		return q, fmt.Errorf("scheme %q: want http or https", q.Scheme)
	}
	return q, nil
}

// ParseHeader returns the header of "NAME:VALUE".
func ParseHeader(text string) (routing.Header, error) {
	name, value, ok := strings.Cut(text, ":")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return routing.Header{}, fmt.Errorf("header %q: want NAME:VALUE", text)
	}
	return routing.Header{Name: name, Value: strings.TrimSpace(value)}, nil
}

func (q ExplainQuery) query() (explain.Query, error) {
	switch {
	case q.Type != "":
		typeURL, err := ParseType(q.Type)
		return explain.Query{Resource: &explain.Key{Type: typeURL, Name: q.Name}}, err
	case q.Host != "":
		return explain.Query{Request: &explain.Request{
			Request: routing.Request{Scheme: q.Scheme, Method: q.Method, Host: q.Host, Path: q.Path, Headers: q.Headers}, Port: q.Port,
		}}, nil
	}
	return explain.Query{}, nil
}

// explain answers with a list of explanations, one for the clients of each node.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	asked, err := explainQuery(r.URL.Query())
	var query explain.Query
	if err == nil {
		query, err = asked.query()
	}
	if err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	groups := make(map[string][]explain.Resource)
	for res := range s.cfg.State.Resources(Filter{}) {
		if asked.Node == "" || asked.Node == res.Group {
			groups[res.Group] = append(groups[res.Group], explained(res))
		}
	}
	all := []*explain.Explanation{}
	for node, resources := range groups {
		all = append(all, explain.Explain(node, resources, query))
	}
	for _, g := range s.cfg.State.Status().Groups {
		from := g.NotServedFrom
		if i := slices.IndexFunc(all, func(x *explain.Explanation) bool { return x.Node == g.NodeID }); i >= 0 && !from.IsZero() && from.Before(time.Now()) {
			all[i].Notes = append(all[i].Notes, fmt.Sprintf("Not served to clients that connected after %s, because that is --max-stale after the last contact with a control plane.",
				from.UTC().Format("2006-01-02 15:04:05Z")))
		}
	}
	if k := query.Resource; k != nil {
		clients := s.clients(*k)
		for _, x := range all {
			x.Clients = clients[x.Node]
			if s.cfg.Events != nil {
				x.Recent = s.recent(x.Node, *k)
			}
		}
	}
	slices.SortFunc(all, func(a, b *explain.Explanation) int { return strings.Compare(a.Node, b.Node) })
	writeJSON(w, http.StatusOK, all)
}

// slowAnswer is from when on it is said that a client does not answer: Envoy takes its time for large updates.
const slowAnswer = time.Second

// clients returns lines about the clients that subscribe to a resource, by their node.
func (s *Server) clients(k explain.Key) map[string][]string {
	if s.cfg.Subscribers == nil {
		return nil
	}
	now, subscribers, out := time.Now(), s.cfg.Subscribers(k.Type, k.Name), make(map[string][]string)
	for _, st := range s.cfg.State.Status().Streams {
		if !slices.Contains(subscribers, st.ID) {
			continue
		}
		line := fmt.Sprintf("stream %d, %s, %s", st.ID, cmp.Or(st.Peer, "socket"), st.Protocol)
		if since, waits := st.Unanswered[xds.Short(k.Type)]; waits && now.Sub(since) >= slowAnswer {
			line += fmt.Sprintf(": it has not answered for %s since %s", xds.Short(k.Type), since.UTC().Format("2006-01-02 15:04:05Z"))
		}
		out[st.NodeID] = append(out[st.NodeID], line)
	}
	return out
}

// maxRecent bounds the events that an explanation has.
const maxRecent = 5

// recent returns what happened to a resource lately.
func (s *Server) recent(node string, k explain.Key) (lines []string) {
	all := s.cfg.Events.Select(events.Filter{Node: node, Type: xds.Short(k.Type), Name: k.Name})
	for _, e := range all[max(0, len(all)-maxRecent):] {
		lines = append(lines, e.Time.UTC().Format("2006-01-02 15:04:05Z ")+Printable(e.Line()))
	}
	return lines
}

// explained returns a resource as clients are served it.
func explained(r Resource) explain.Resource {
	out := explain.Resource{
		Key: explain.Key{Type: r.Type, Name: r.Name}, Body: r.served(),
		Facts: explain.Facts{
			Standing: r.Standing.String(), Version: r.Version, UpstreamVersion: r.UpstreamVersion, Source: r.Source,
			GoodVersion: r.GoodVersion, Reason: r.Reason, Error: r.Error, Deadline: r.Deadline,
			Changed: r.Changed, Restored: r.Restored, RemovalHeldBack: r.RemovalHeldBack, ChangeHeldBack: r.ChangeHeldBack, Frozen: r.Frozen, FellBack: r.FellBack,
		},
	}
	if r.Tries != nil {
		out.Offered = r.Tries.Line(time.Now())
	}
	if r.Build != "" {
		out.ByBuild = fmt.Sprintf("Envoy %s accepted %s last, and gets that first", r.Build, VersionText(r.BuildVersion))
		if r.BuildEnded {
			out.ByBuild = fmt.Sprintf("Envoy %s accepted %s last, and gets only that for a day: one ended while it was offered the newest (`holdfast resume --rejected` offers it again)", r.Build, VersionText(r.BuildVersion))
		}
	}
	return out
}

// Explain returns the explanations for the clients of each node.
func (c Client) Explain(ctx context.Context, q ExplainQuery) (all []*explain.Explanation, err error) {
	err = c.get(ctx, "/explain", q.values(), func(r io.Reader) error {
		if err := json.NewDecoder(r).Decode(&all); err != nil {
			return fmt.Errorf("%s is not the admin interface of a holdfast: %w", c.Addr, err)
		}
		return nil
	})
	return all, err
}
