package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/agent/explain"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// served makes a resource of a node.
func served(node, typeURL, name string, body *anypb.Any) Resource {
	return Resource{Group: node, Type: typeURL, Name: name, Body: body, Standing: xds.Acked}
}

func meshOf(node string, clusters ...string) []Resource {
	route := func(name string, clusters ...string) Resource {
		config := xdstest.Route(name, "")
		config.VirtualHosts[0].Routes = nil
		for _, cluster := range clusters {
			config.VirtualHosts[0].Routes = append(config.VirtualHosts[0].Routes, &routev3.Route{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/" + cluster}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
			})
		}
		return served(node, xds.RouteType, name, xdstest.Pack(config))
	}
	return []Resource{
		served(node, xds.ListenerType, "l", xdstest.Pack(xdstest.Listener("l", 80, "r"))),
		served(node, xds.ClusterType, "c", xdstest.Pack(xdstest.Cluster("c", ""))),
		route("r", append([]string{"c"}, clusters...)...),
	}
}

func TestStatusNamesClustersThatAreNotThere(t *testing.T) {
	many := make([]string, 12)
	for i := range many {
		many[i] = fmt.Sprintf("m%02d", i)
	}
	complete := []Type{{Type: "CDS", TypeURL: xds.ClusterType, Knowledge: "complete"}}
	a := &agent{started: true, status: Status{Groups: []Group{
		{NodeID: "one", Types: complete}, {NodeID: "many", Types: complete}, {NodeID: "early", Types: []Type{{TypeURL: xds.ClusterType, Knowledge: "partial"}}},
	}}}
	a.resources = slices.Concat(meshOf("one", "gone", "gone"), meshOf("many", many...), meshOf("early", "gone"))
	bad := a.resources[2]
	bad.Name, bad.Good, bad.GoodVersion = "fallen back", meshOf("one")[2].Body, "v0"
	going := a.resources[2] // with its cluster, a moment later
	going.Name, going.Going = "going", true
	a.resources = append(a.resources, bad, going)
	groups := server(t, Config{State: a}).snapshot().Groups
	if want := []Dangling{{Type: "RDS", Name: "r", Cluster: "gone"}}; !slices.Equal(groups[0].Dangling, want) || groups[0].DanglingTotal != 1 {
		t.Errorf("got %v, %d, want %v", groups[0].Dangling, groups[0].DanglingTotal, want)
	}
	if len(groups[1].Dangling) != maxDangling || groups[1].DanglingTotal != len(many) {
		t.Errorf("got %d of %d", len(groups[1].Dangling), groups[1].DanglingTotal)
	}
	if groups[2].DanglingTotal != 0 {
		t.Error("what is not known yet is not missing")
	}
	text := ""
	for _, p := range (Status{Admin: "unix:/a", Groups: groups}).Problems() {
		text += string(p.Level) + " " + p.Text + "\n"
	}
	for _, want := range []string{
		"error RDS r leads to the cluster gone, which the control plane did not send: requests to it get 503, unless Envoy's bootstrap has it; `holdfast explain --admin unix:/a RDS/r` shows more",
		"… and 7 more clusters that are not there",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A route leads nowhere since it was changed, or since the cluster was removed, whichever is later.
func TestSinceWhenAClusterIsMissing(t *testing.T) {
	changed := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	route := meshOf("web", "gone")[2]
	route.Changed = changed
	s := server(t, Config{State: &agent{started: true}})
	if got := s.danglingSince(route, "gone"); !got.Equal(changed) {
		t.Errorf("since %s", got)
	}
	bubble.Test(t, func(t *testing.T) {
		log := events.New("")
		s := server(t, Config{State: &agent{started: true}, Events: log})
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() { _ = log.Run(ctx) })
		time.Sleep(time.Hour)
		route.Changed = time.Now().Add(-time.Minute)
		before := time.Now()
		log.Resource("web", xds.ClusterType, "other", events.Removed)
		log.Resource("web", xds.ClusterType, "gone", events.Removed)
		time.Sleep(time.Minute) // they are folded
		if got := s.danglingSince(route, "gone"); got.Before(before) || got.After(before.Add(time.Second)) {
			t.Errorf("since %s, and it was removed at %s", got, before)
		}
		if got := s.danglingSince(route, "never there"); !got.Equal(route.Changed) {
			t.Errorf("since %s", got)
		}
		cancel()
		ended.Wait()
	})
	if line := (Status{Now: changed.Add(time.Hour), Groups: []Group{{Dangling: []Dangling{{"RDS", "r", "gone", changed}}}}}).Problems()[0]; !line.Since.Equal(changed) || !strings.Contains(line.Text, "did not send, for 1h: requests") {
		t.Errorf("%+v", line)
	}
}

func TestNamesInCommandsAreQuotedForAShell(t *testing.T) {
	for name, want := range map[string]string{"RDS/http.8080": "RDS/http.8080", "RDS/inbound|80||": "'RDS/inbound|80||'", "RDS/it's": `'RDS/it'\''s'`, "LDS/0.0.0.0_80": "LDS/0.0.0.0_80",
		"LDS/l\n<b>\"'\x1b": `$'LDS/l\n<b>"\'\x1b'`} {
		if got := quoted(name); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestExplainAnswersForEachNode(t *testing.T) {
	a := &agent{started: true, resources: append(meshOf("b", "gone"), meshOf("a")...)}
	h := server(t, Config{State: a}).full(true)
	get := func(query string) (all []*explain.Explanation) {
		t.Helper()
		w := ask(h, http.MethodGet, "/explain?"+query)
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", query, w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := get("")
	if len(all) != 2 || all[0].Node != "a" || len(all[0].Dangling) != 1 || len(all[1].Dangling) != 2 || len(all[1].Listeners) != 1 {
		t.Errorf("got %+v", all)
	}
	if one := get("node=b&host=h&path=/gone"); len(one) != 1 || one[0].Answers.Answers[0].Outcome != "503: the cluster gone is not known" {
		t.Errorf("got %+v", one)
	}
	if one := get("node=b&type=CDS&name=c"); one[0].Resource.Name != "c" || one[0].Referrers[0] != "RDS/r" {
		t.Errorf("got %+v", one[0])
	}
	a.status.Groups = []Group{{NodeID: "a", NotServedFrom: time.Now().Add(-time.Hour)}, {NodeID: "b", NotServedFrom: time.Now().Add(time.Hour)}}
	if all := get("host=h"); len(all[0].Notes) != 1 || len(all[1].Notes) != 0 || !strings.HasPrefix(all[0].Text(), "Not served to clients that connected after ") {
		t.Errorf("what is too stale: %q, %q", all[0].Notes, all[1].Notes)
	}
	if none := get("node=c"); len(none) != 0 {
		t.Errorf("got %+v", none)
	}
	for query, want := range map[string]string{
		"x=y": "unknown parameter", "type=CDS": "both a type and a name", "name=a": "both a type and a name", "type=XDS&name=a": "unknown type", "host=h&port=0": "want 1 to 65535",
		"host=h&port=70000": "want 1 to 65535", "host=h&header=x": "want NAME:VALUE", "host=h&header=:x": "want NAME:VALUE", "host=h&scheme=ftp": "want http or https",
	} {
		if w := ask(h, http.MethodGet, "/explain?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s, want %s", query, w.Code, w.Body, want)
		}
	}
}

func TestAQueryIsWhatTheClientAsked(t *testing.T) {
	for _, q := range []ExplainQuery{
		{}, {Node: "n", Type: "CDS", Name: "a/b"},
		{Host: "h:80", Path: "/a?b=c&d", Method: "POST", Scheme: "https", Port: 8443},
	} {
		got, err := explainQuery(q.values())
		if err != nil || fmt.Sprint(got) != fmt.Sprint(q) {
			t.Errorf("got %v, %v, want %v", got, err, q)
		}
	}
}
