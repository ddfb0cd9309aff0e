package admin

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

func TestTheStatusSaysFirstWhatIsWrong(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	before := func(d time.Duration) time.Time { return now.Add(-d) }
	s := Status{
		Version: "v1", Started: before(50 * time.Hour), Now: now,
		Conditions: []Condition{{Name: "socket", OK: true}, {Name: "upstream", Reason: "no control plane answers"}},
		Groups: []Group{{
			NodeID: "web-1\x1b[2J", Cluster: "web", UserAgent: "envoy",
			Contact: before(200 * time.Second), Restored: 3, Fallback: &Fallback{Since: before(10 * time.Second), Until: before(-time.Hour), Suspects: []Suspect{{"CDS", "a"}, {"LDS", "b"}, {"LDS", "c"}, {"RDS", "d"}}}, ShortLives: 3,
			Upstreams: []Upstream{
				{Name: "cp-a:18000", Active: true, Since: before(3 * time.Minute), LastMessage: before(200 * time.Second), Attempts: 7, LastError: "connection\nrefused"},
				{Name: "cp-b:18000", Priority: 1, Route: "through the proxy http://proxy.test:3128"},
			},
			Types: []Type{
				{Type: "CDS", TypeURL: xds.ClusterType, Knowledge: "complete", Resources: map[string]int{"accepted": 11, "rejected": 1}, Subscriptions: 1, NotAcceptedNames: []string{"a"}, NotAcceptedReason: "web-1: Proto constraint validation failed", Withheld: 5, ChangesWithheld: 2, Had: 12, WithheldSince: before(10 * time.Second), WithheldUntil: before(-50 * time.Second), LastUpdate: before(0)},
				{Type: "EDS", TypeURL: xds.EndpointType, Knowledge: "unknown", Subscriptions: 3, Leased: 2},
			},
		}},
		Streams: []Stream{{ID: 4, NodeID: "web-1", Protocol: "delta", Since: before(59 * time.Second), Types: []string{"CDS", "LDS"}, Subscriptions: 2}},
		Files:   []FileError{{Name: "a.yaml", Error: "line 3: unknown field"}},
		Storage: &Storage{
			Dir: "/state", Generation: 7, Bytes: 1234, Committed: before(time.Minute), Since: before(time.Minute), Error: "no space left",
			Aside: []string{"state-6.log.corrupt"}, NotStored: map[string]int{"it holds a secret": 2},
			Missing: []NotStored{{Type: "RDS", Name: "a\x1b", Reason: "it holds a secret"}, {Type: "SDS", Name: "b", Reason: "it holds a secret"}},
		},
	}
	const want = `holdfast v1, up 2d2h: NOT READY

Problems
  upstream: no control plane answers
  node "web-1\x1b[2J": Envoy crashed repeatedly: 4 resources held back for 10s, until the control plane changes them, ` + "`holdfast resume`" + `, or 2026-11-21T13:00:00Z: CDS a, LDS b, LDS c, 1 more
  node "web-1\x1b[2J": Envoy disconnected 3 times in a row within a minute of its start: look at its log, it may be crashing
  CDS: 1 resource NACKed by clients of node "web-1\x1b[2J" (a): web-1: Proto constraint validation failed. Meanwhile clients get what they accepted before; ` + "`holdfast dump --type CDS`" + ` shows why; ` + "`holdfast resume --rejected`" + ` offers them again at once
  state on disk: changes are in memory only, since 1m ago: no space left
  upstream cp-a:18000: not connected for 3m, 7 attempts: connection refused; ` + "`holdfast events`" + ` shows how it went
  CDS: had 12 clusters, the control plane sends 7 since 11:59:50, which looks like an accident: clients keep what they have until it confirms that, for which it is asked in 50s; ` + "`holdfast dump --type CDS` shows what (removal_held_back); `holdfast resume --removals`" + ` confirms it at once
  CDS: 2 changes held back, because of clusters to which they led and whose removal is held back; both take effect together; ` + "`holdfast dump --type CDS` shows which (change_held_back), and `holdfast diff CDS/NAME served held`" + ` what changes
  state on disk: state-6.log.corrupt was set aside and is not used: delete it, or stop holdfast and rename it back
  file a.yaml: line 3: unknown field (its last valid content stays in use)

Node "web-1\x1b[2J", cluster "web", envoy
3 resources restored from disk, not confirmed by a control plane yet; last contact 3m20s ago.
  UPSTREAM    PRIORITY  STATE                               SINCE  LAST MESSAGE
  cp-a:18000  0         disconnected, its resources in use  3m     3m20s ago
  cp-b:18000  1         not tried                           -      never
  cp-b:18000 is reached through the proxy http://proxy.test:3128.

  TYPE  KNOWN     CACHED  ACKED  PENDING  SUSPECT  NACKED  SUBSCRIBED  LEASED  LAST UPDATE
  CDS   complete  12      11     0        0        1       1           0       0s ago
  EDS   unknown   0       0      0        0        0       3           2       never

CACHED: resources in the cache, by the clients' answer to their newest version: ACKED, NACKED,
PENDING (none yet) or SUSPECT (in a NACKed response with others). LEASED: names of disconnected clients.

Last known good in /state: generation 7, 1234 bytes, written 1m ago
  not stored, so missing after a restart without the control plane: 2 records: it holds a secret
    RDS "a\x1b", SDS "b"
  with --state-key-file, resources that hold a secret are stored too, encrypted

Clients
  STREAM  NODE   FROM    PROTOCOL  SINCE  SUBSCRIBED  TYPES
  4       web-1  socket  delta     59s    2           CDS LDS
`
	var b strings.Builder
	if err := s.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestAnEmptyStatusIsSaidInWords(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var b strings.Builder
	if err := (Status{Version: "v1", Started: now, Now: now}).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	const want = "holdfast v1, up 0s: ready\n\nNo client has connected yet, and no node is configured (--bootstrap, --node-id).\n\nNo client is connected.\n"
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}

// An upstream that was never there has no time since when it is not.
func TestAnUpstreamThatNeverConnectedIsSaidInWords(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for want, since := range map[string]time.Time{
		"upstream a:1: never connected, 2 attempts: refused; `holdfast events` shows how it went":      {},
		"upstream a:1: not connected for 5s, 2 attempts: refused; `holdfast events` shows how it went": now.Add(-5 * time.Second),
	} {
		var b strings.Builder
		s := Status{Now: now, Groups: []Group{{Upstreams: []Upstream{{Name: "a:1", Attempts: 2, LastError: "refused", Since: since}}}}}
		if err := s.WriteText(&b); err != nil || !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %q in\n%s%v", want, b.String(), err)
		}
	}
}

func TestAStateDirectoryThatIsNotOpenNeedsNoReason(t *testing.T) {
	want := "state on disk: changes are in memory only until the state directory is open"
	if got := (&Storage{}).problems(time.Now()); len(got) != 1 || got[0].Text != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What a line says to type must work as it stands.
func TestHintsNameTheAgentThatTheyAreAbout(t *testing.T) {
	s := Status{Groups: []Group{{
		Types:     []Type{{Type: "CDS", Resources: map[string]int{"rejected": 1}, Errors: 1, LastUpdate: time.Unix(1, 0)}},
		Fallback:  &Fallback{Suspects: []Suspect{{"CDS", "a"}}},
		Upstreams: []Upstream{{Name: "file:/conf", Active: true, Connected: true}},
	}}}
	text := func(addr string) string {
		var b strings.Builder
		s.Admin = addr
		_ = s.WriteText(&b)
		return b.String()
	}
	for addr, hints := range map[string][]string{
		"":            {"`holdfast dump --type CDS` shows why", "`holdfast dump --type CDS` shows the errors", "`holdfast resume`"},
		DefaultAddr:   {"`holdfast dump --type CDS` shows why", "`holdfast dump --type CDS` shows the errors", "`holdfast resume`"},
		"unix:/x/y.s": {"`holdfast dump --admin unix:/x/y.s --type CDS` shows why", "`holdfast dump --admin unix:/x/y.s --type CDS` shows the errors", "`holdfast resume --admin unix:/x/y.s`"},
	} {
		for _, hint := range hints {
			if got := text(addr); !strings.Contains(got, hint) {
				t.Errorf("--admin %q: no %s in\n%s", addr, hint, got)
			}
		}
	}
	if strings.Contains(text(""), "never") {
		t.Errorf("a directory that is in use has never said anything:\n%s", text(""))
	}
}

func TestTheStatusNamesResourcesThatTheControlPlaneDidNotProvide(t *testing.T) {
	failed := func(group, name, err string) Resource {
		return Resource{Group: group, Type: xds.RouteType, Name: name, Error: err}
	}
	a := &agent{
		status: Status{Groups: []Group{{NodeID: "web-1", Types: []Type{{Type: "RDS", TypeURL: xds.RouteType, Errors: 4}, {Type: "CDS", TypeURL: xds.ClusterType}}}}},
		resources: []Resource{
			failed("web-2", "another", "x"), failed("web-1", "fine", ""),
			failed("web-1", "a", "x"), failed("web-1", "b", "x"), failed("web-1", "c", "x"), failed("web-1", "d", "x"),
		},
	}
	got := ask(server(t, Config{State: a}).full(false), "GET", "/").Body.String()
	if want := "RDS: control plane did not provide 4 requested resources (a, b, c, …): x; `holdfast dump --type RDS` shows the errors\n"; !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}

func TestTheStateOfAnUpstreamIsWhatIsKnownOfIt(t *testing.T) {
	now := time.Now()
	for want, u := range map[string]Upstream{
		"not tried":                          {},
		"not in use":                         {Since: now, LastMessage: now},
		"disconnected":                       {Since: now, LastMessage: now, LastError: "EOF"},
		"connected, not answered":            {Connected: true},
		"connected":                          {Connected: true, LastMessage: now},
		"connected, in use":                  {Connected: true, Active: true},
		"disconnected, its resources in use": {Active: true},
		"in use, silent for too long":        {Connected: true, Active: true, Stale: true},
	} {
		if got := u.state(); got != want {
			t.Errorf("%+v is %q, want %q", u, got, want)
		}
	}
}

// No Envoy is no problem while it may be restarting, and an error after a minute.
func TestAMissingEnvoyIsAProblem(t *testing.T) {
	now := time.Unix(1e9, 0)
	for ago, want := range map[time.Duration]string{
		0:                "",
		59 * time.Second: "",
		time.Minute:      "no Envoy is connected, for 1m: nothing takes what is served. ",
		2 * time.Hour:    "no Envoy is connected, for 2h: ",
	} {
		s := Status{Now: now}
		if ago > 0 {
			s.NoEnvoySince = now.Add(-ago)
		}
		found := s.Problems()
		switch {
		case want == "" && len(found) > 0, want != "" && len(found) != 1:
			t.Errorf("%s: %+v", ago, found)
		case want != "" && (found[0].Level != Failing || !strings.HasPrefix(found[0].Text, want) || !found[0].Since.Equal(s.NoEnvoySince)):
			t.Errorf("%s: %+v, want %q", ago, found[0], want)
		}
	}
}

// A client's words may be long: a line has their beginning, and says whose they are.
func TestTheClientsWordsAreShownInStatus(t *testing.T) {
	group := Group{NodeID: "n", Types: []Type{{
		Type: "LDS", Resources: map[string]int{"rejected": 3, "suspect": 2}, NotAcceptedNames: []string{"a", "b", "c"}, NotAcceptedReason: strings.Repeat("ä", maxShown),
	}}}
	for _, problem := range (Status{Groups: []Group{group}}).Problems() {
		if !strings.Contains(problem.Text, `node "n" (a, b, c, …): ää`) || len(problem.Text) > maxShown+300 || !strings.Contains(problem.Text, "ä…") || !utf8.ValidString(problem.Text) {
			t.Errorf("%s", problem.Text)
		}
	}
}
