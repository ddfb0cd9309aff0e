package admin

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// rehearsed returns the rehearsal of a state.
func rehearsed(t *testing.T, state *agent) (r Rehearsal) {
	t.Helper()
	got := ask(server(t, Config{State: state}).full(true), "GET", "/rehearsal")
	if err := json.Unmarshal(got.Body.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, got.Body)
	}
	return r
}

func losses(r Rehearsal) (out []string) {
	for _, l := range r.Losses {
		out = append(out, l.After+": "+l.What+": "+l.Why)
	}
	return out
}

func TestARehearsalOfAnAgentThatLosesNothing(t *testing.T) {
	body := &anypb.Any{TypeUrl: xds.ClusterType}
	r := rehearsed(t, &agent{
		status: Status{Groups: []Group{{NodeID: "web", Types: []Type{{Type: "CDS", TypeURL: xds.ClusterType, Knowledge: "complete", Subscriptions: 1}}}}, Storage: &Storage{Durable: true}},
		resources: []Resource{
			{Group: "web", Type: xds.ClusterType, Name: "a", Body: body}, {Group: "web", Type: xds.ClusterType, Name: "b", Body: body},
			{Group: "web", Type: xds.ClusterType, Name: "frozen away", Body: body, Frozen: true},
		},
	})
	if r.Lost() || len(r.Groups) != 1 || r.Groups[0].Served["CDS"] != 2 || r.Groups[0].Stored["CDS"] != 2 {
		t.Errorf("%+v", r)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "Nothing would be missing.") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func TestARehearsalNamesWhatIsMissingAndWhatEnds(t *testing.T) {
	at := time.Now().Add(time.Hour).UTC().Round(time.Second)
	body := &anypb.Any{TypeUrl: xds.ClusterType}
	r := rehearsed(t, &agent{
		status: Status{
			Groups: []Group{{
				NodeID: "web", NotServedFrom: at.Add(time.Minute), Dangling: []Dangling{{"RDS", "r", "gone"}}, Freeze: &Freeze{NotStored: 1},
				Types: []Type{{Type: "RDS", Knowledge: "by name", Errors: 1}, {Type: "LDS", Knowledge: "unknown", Subscriptions: 1}},
			}},
			Storage: &Storage{Durable: true, NotStored: map[string]int{"no key": 1}, Missing: []NotStored{{"CDS", "secret", "no key"}}, Lost: []NotStored{{"SDS", "old", "no key"}}},
		},
		resources: []Resource{
			{Group: "web", Type: xds.ClusterType, Name: "secret", Body: body}, {Group: "web", Type: xds.ClusterType, Name: "ends", Body: body, Deadline: at},
			{Group: "web", Type: xds.RouteType, Name: "r", Error: "no"},
		},
	})
	want := []string{
		"the loss of the control plane: 1 requested RDS resource (r): the control plane did not provide them",
		"the loss of the control plane: all LDS: the control plane has never answered for this type",
		"the loss of the control plane: the cluster gone: RDS r leads to it, and the control plane did not send it",
		"a restart of the agent: the freeze of 1 resource: they cannot be stored",
		"a restart of the agent: CDS secret: not stored: no key",
		"the loss of the control plane: SDS old: it was not stored before the last restart, and is missing already: no key",
	}
	if got := losses(r); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if g := r.Groups[0]; g.Served["CDS"] != 2 || g.Stored["CDS"] != 1 {
		t.Errorf("%+v", g)
	}
	if len(r.Ends) != 2 || r.Ends[0].What != "CDS ends" || !r.Ends[0].At.Equal(at) || r.Ends[1].What != "--max-stale" {
		t.Errorf("%+v", r.Ends)
	}
	// More than the status names.
	r = rehearsed(t, &agent{status: Status{Groups: []Group{{NodeID: "web"}}, Storage: &Storage{Durable: true, NotStored: map[string]int{"no key": 30}, Missing: []NotStored{{"CDS", "a", "no key"}}}}})
	if r.Groups[0].Stored != nil || !slices.Equal(losses(r), []string{"a restart of the agent: CDS a, 29 more: not stored: no key"}) {
		t.Errorf("%+v, %q", r.Groups[0], losses(r))
	}
	// Without a disk.
	if r = rehearsed(t, &agent{}); !slices.Equal(losses(r), []string{"a restart of the agent: everything: there is no --state-dir: what is served is in memory only"}) {
		t.Errorf("%q", losses(r))
	}
	if r = rehearsed(t, &agent{status: Status{Storage: &Storage{Error: "full", Since: at}}}); len(r.Losses) != 1 || !strings.HasSuffix(losses(r)[0], ": full") {
		t.Errorf("%q", losses(r))
	}
}
