package admin

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// changes records what it is asked for.
type changes struct {
	freezes   []FreezeRequest
	rollbacks []RollbackRequest
}

func (c *changes) Freeze(q FreezeRequest) error {
	if q.Reason == "again" {
		return errors.New("it is frozen already")
	}
	c.freezes = append(c.freezes, q)
	return nil
}

func (c *changes) OfferAgain(q OfferRequest) ([]Offer, error) {
	if len(q.Names) > 0 && q.Names[0] == "CDS/none" {
		return nil, errors.New("resume --rejected: CDS/none is not rejected")
	}
	return []Offer{{Node: "n", Type: "LDS", Name: "bad", Reason: fmt.Sprint("because ", q.Names, q.DryRun)}}, nil
}

func (c *changes) RollBack(q RollbackRequest) ([]Rollback, error) {
	c.rollbacks = append(c.rollbacks, q)
	return nil, nil
}

func (c *changes) History(HistoryFilter) []NameHistory { return nil }

func (c *changes) Contents(_ string, _ xds.Key, which string) ([]Content, error) {
	if which == "unknown" {
		return nil, errors.New("it is not known")
	}
	return nil, nil
}

func TestRequestsAreReadAsTheyAreSent(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	freeze := FreezeRequest{Reason: "a & b", Types: []string{xds.ClusterType, xds.RouteType}, For: 2 * time.Hour, ACK: true}
	if got, err := freezeRequest(freeze.values()); err != nil || !reflect.DeepEqual(got, freeze) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, q := range []RollbackRequest{
		{To: at, Names: []string{"CDS/a b", "RDS/c/d"}, Reason: "why", Partial: true, DryRun: true},
		{Version: "1", Names: []string{"CDS/a"}}, {},
	} {
		if got, err := rollbackRequest(q.values(), at); err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v, %v; want %+v", got, err, q)
		}
	}
}

func TestOnlyTheOwnerFreezesAndRollsBack(t *testing.T) {
	c := &changes{}
	h := server(t, Config{State: &agent{}, Changes: c}).full(true)
	for _, path := range []string{"/freeze", "/rollback", "/offer-again"} {
		if got := askAs(h, false, "POST", path); got.Code != 403 {
			t.Errorf("a reader gets %d to %s", got.Code, path)
		}
	}
	if len(c.freezes)+len(c.rollbacks) > 0 {
		t.Errorf("%+v", c)
	}
}

func TestWhatWasRejectedIsOfferedAgainByAnOwner(t *testing.T) {
	h := server(t, Config{State: &agent{}, Changes: &changes{}}).full(true)
	for query, want := range map[string]struct {
		code int
		text string
	}{
		"":                              {200, `because [] false`},
		"?resource=LDS%2Fbad":           {200, `because [LDS/bad] false`},
		"?resource=LDS%2Fbad&dry_run=1": {200, `because [LDS/bad] true`},
		"?resource=CDS%2Fnone":          {409, "CDS/none is not rejected"},
		"?resource=bad":                 {400, "unknown type"},
		"?dry_run=perhaps":              {400, "want true or false"},
		"?reason=none":                  {400, "unknown parameter"},
	} {
		if got := askAs(h, true, "POST", "/offer-again"+query); got.Code != want.code || !strings.Contains(got.Body.String(), want.text) {
			t.Errorf("%q: %d %s, want %d %q", query, got.Code, got.Body, want.code, want.text)
		}
	}
}

func TestNamesOfResources(t *testing.T) {
	for text, want := range map[string]xds.Key{
		"CDS/a":   {Type: xds.ClusterType, Name: "a"},
		"rds/a/b": {Type: xds.RouteType, Name: "a/b"},
		"type.googleapis.com/envoy.config.cluster.v3.Cluster/a": {Type: xds.ClusterType, Name: "a"},
		"my.Type/a": {Type: "type.googleapis.com/my.Type", Name: "a"},
	} {
		if got, err := ParseName(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "CDS", "CDS/", "XDS/a", "/a"} {
		if got, err := ParseName(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestTheLineOfAFreezeHasEverything(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := &Freeze{Since: at, By: "uid 0", Reason: "bad.", All: true, Names: []string{"CDS/a", "CDS/b", "CDS/c", "CDS/d"}, Until: at.Add(time.Hour),
		RolledBack: true, RolledBackTo: at.Add(-time.Hour), NotStored: 1, Volatile: true, Waiting: map[string]int{"CDS": 1}}
	got := f.Line(at.Add(2*time.Hour), " --admin x")
	const want = "rolled back to 2026-01-02T02:04:05Z and frozen since 2026-01-02T03:04:05Z by uid 0: bad; " +
		"everything but endpoints and secrets, CDS/a, CDS/b, CDS/c, 1 more name; 1 change waits; `holdfast resume --admin x` ends it; " +
		"a restart of the agent ends it, too, because there is no --state-dir; a restart of the agent ends it for 1 resource that cannot be stored; it was meant to end 1h ago"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	s := Status{Groups: []Group{{NodeID: "web", Freeze: f}}, Now: at}
	if p := s.Problems(); len(p) != 1 || p[0].Level != Degraded || !strings.HasPrefix(p[0].Text, `node "web": rolled back to`) {
		t.Errorf("%+v", p)
	}
}

func TestEventsAreFiltered(t *testing.T) {
	log := events.New("")
	log.Record(events.Event{Time: time.Now(), Text: "one", Type: "CDS", Name: "a"})
	log.Record(events.Event{Time: time.Now(), Text: "two", Type: "RDS", Names: []string{"a"}})
	h := server(t, Config{State: &agent{}, Events: log}).full(true)
	for query, want := range map[string][]string{
		"": {"one", "two"}, "?type=CDS": {"one"}, "?name=a": {"one", "two"}, "?name=b": nil, "?since=0s": nil, "?type=rds&name=a": {"two"}, "?node=x": nil,
	} {
		got := ask(h, "GET", "/events"+query)
		var texts []string
		for line := range strings.Lines(got.Body.String()) {
			for _, text := range []string{"one", "two"} {
				if strings.Contains(line, `"text":"`+text+`"`) {
					texts = append(texts, text)
				}
			}
		}
		if got.Code != 200 || !reflect.DeepEqual(texts, want) {
			t.Errorf("%s: %d %q, want %q", query, got.Code, texts, want)
		}
	}
}
