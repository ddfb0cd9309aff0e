package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// contents are two contents of RDS/r: "a" is served, "b" is held, and of nothing else anything is known.
type contents struct{ Histories }

func (contents) Contents(node string, k xds.Key, which string) ([]Content, error) {
	name := map[string]string{"served": "a", "held": "b"}[which]
	if name == "" {
		return nil, fmt.Errorf("no %s content is known", which)
	}
	body, err := anypb.New(&routev3.RouteConfiguration{Name: k.Name, VirtualHosts: []*routev3.VirtualHost{{Name: name}}})
	return []Content{{Node: "web-1", Type: "RDS", Name: k.Name, Version: name, Body: body}}, err
}

func TestADiffIsServedAsYAML(t *testing.T) {
	h := server(t, Config{State: &agent{}, Histories: contents{}}).full(true)
	diff := func(query string) []Difference {
		t.Helper()
		var found []Difference
		w := ask(h, "GET", "/diff?"+query)
		if err := json.Unmarshal(w.Body.Bytes(), &found); err != nil || len(found) != 1 {
			t.Fatalf("%d %s: %v", w.Code, w.Body, err)
		}
		return found
	}
	for _, query := range []string{"resource=RDS/r", "resource=RDS/r&a=served&b=held"} {
		d := diff(query)[0]
		if d.A.Which != "served" || d.B.Which != "held" || !strings.Contains(d.Diff, "-  - name: a\n+  - name: b\n") {
			t.Errorf("%s: %+v", query, d)
		}
	}
	if d := diff("resource=RDS/r&a=previous")[0]; d.Unknown != "no previous content is known" {
		t.Errorf("%+v", d)
	}
	for _, wrong := range []string{"", "resource=RDS", "resource=RDS/r&c=d"} {
		if w := ask(h, "GET", "/diff?"+wrong); w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d %s", wrong, w.Code, w.Body)
		}
	}
	if w := ask(h, "GET", "/content?resource=RDS/r&which=served&yaml=true"); !strings.Contains(w.Body.String(), `- name: a\n`) {
		t.Errorf("%s", w.Body)
	}
}

// What status says of problems, programs get, too: how bad, and since when.
func TestProblemsAreInTheStatus(t *testing.T) {
	began := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	state := &agent{
		ready: []Condition{{Name: "socket", Reason: "it was deleted"}},
		status: Status{Groups: []Group{{NodeID: "web-1", Types: []Type{{
			Type: "CDS", TypeURL: xds.ClusterType, Resources: map[string]int{"rejected": 2},
		}}}}},
		resources: []Resource{
			{Group: "web-1", Type: xds.ClusterType, Name: "a", Standing: xds.Nacked, Changed: began.Add(time.Minute)},
			{Group: "web-1", Type: xds.ClusterType, Name: "b", Standing: xds.Nacked, Changed: began},
			{Group: "web-2", Type: xds.ClusterType, Name: "b", Standing: xds.Nacked, Changed: began.Add(-time.Hour)},
			{Group: "web-1", Type: xds.ClusterType, Name: "c", Standing: xds.Acked, Changed: began.Add(-time.Hour)},
		},
	}
	s := server(t, Config{State: state, Addr: "unix:/a"})
	before := time.Now()
	ask(s.health(), "GET", "/readyz") // a probe notices it
	noticed := time.Now()
	var status Status
	if err := json.Unmarshal(ask(s.full(true), "GET", "/status.json").Body.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"error socket, for 0s: it was deleted",
		"error CDS: 2 resources NACKed by clients of node \"web-1\", for 1h. Clients accepted none before, and get none; `holdfast dump --admin unix:/a --type CDS` shows why; `holdfast resume --admin unix:/a --rejected` offers them again at once",
	}
	var got []string
	for _, p := range status.Found {
		got = append(got, string(p.Level)+" "+p.Text)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	if at := status.Found[0].Since; at.Before(before) || at.After(noticed) {
		t.Errorf("the first since %s", at)
	}
	if at := status.Found[1].Since; !at.Equal(began) {
		t.Errorf("the second since %s, want %s", at, began)
	}
	if status.Admin != "unix:/a" {
		t.Errorf("admin is %q", status.Admin)
	}
	// When it holds again, that is forgotten.
	state.ready[0] = Condition{Name: "socket", OK: true}
	ask(s.health(), "GET", "/readyz")
	state.ready[0] = Condition{Name: "socket", Reason: "again"}
	if c := s.conditions()[0]; c.Since.Before(noticed) {
		t.Errorf("since %s", c.Since)
	}
}

// A browser gets events as server-sent events and goes on after the last that it had; an agent that stops does not
// wait for it.
func TestEventsAreServedToABrowser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	log := events.New("")
	first := events.Event{Time: time.Now().Add(-time.Minute), Level: "INFO", Text: "first"}
	log.Record(first)
	log.Record(events.Event{Time: time.Now(), Level: "INFO", Text: "second"})
	s := server(t, Config{State: &agent{}, Addr: "unix:" + path, Events: log})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	open := func(last string) (lines *bufio.Scanner, end func()) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://holdfast/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		if last != "" {
			req.Header.Set("Last-Event-ID", last)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("Content-Type: %s", got)
		}
		return bufio.NewScanner(resp.Body), func() { _ = resp.Body.Close() }
	}
	next := func(lines *bufio.Scanner) (id, text string) {
		t.Helper()
		for lines.Scan() && lines.Text() != "" {
			if v, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				id = v
			}
			if v, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var e events.Event
				if err := json.Unmarshal([]byte(v), &e); err != nil {
					t.Fatal(err)
				}
				text = e.Text
			}
		}
		return id, text
	}
	lines, end := open("")
	id, text := next(lines)
	if text != "first" || id != first.Time.UTC().Format(time.RFC3339Nano) {
		t.Errorf("the first event is %q %q", id, text)
	}
	if _, text := next(lines); text != "second" {
		t.Errorf("the second event is %q", text)
	}
	end()
	lines, end = open(id)
	defer end()
	if _, text := next(lines); text != "second" {
		t.Errorf("after the first comes %q", text)
	}
	log.Record(events.Event{Time: time.Now(), Level: "WARN", Text: "third"})
	if _, text := next(lines); text != "third" {
		t.Errorf("then comes %q", text)
	}
	cancel()
	if lines.Scan() {
		t.Errorf("after the end: %q", lines.Text())
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What clients get in place of what they NACKed is in the line that says so.
func TestTheProblemOfANACKSaysWhatIsServedMeanwhile(t *testing.T) {
	for want, none := range map[string]int{"Meanwhile clients get what they accepted before;": 0, "Clients accepted none before, and get none;": 3, "accepted before, and nothing of 2 that are new;": 2} {
		s := Status{Groups: []Group{{NodeID: "a", Types: []Type{{Type: "CDS", Resources: map[string]int{"rejected": 2, "suspect": 1}, NotAcceptedNew: none}}}}}
		lines := s.Problems()
		if len(lines) != 2 || !strings.Contains(lines[0].Text, want) || !strings.Contains(lines[1].Text, want) {
			t.Errorf("want %q in %v", want, lines)
		}
	}
}
