package istio

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// principals are the SPIFFE IDs of client certificates by their names; those of an authority that nobody trusts have none.
var principals = map[string]string{
	"client": "spiffe://cluster.local/ns/default/sa/default", "frontend": "spiffe://cluster.local/ns/shop/sa/frontend",
	"former": "spiffe://old.example/ns/default/sa/default", "sleep": "spiffe://cluster.local/ns/default/sa/sleep",
	"long": "spiffe://cluster.local/ns/default-2/sa/default",
}

// explain asks holdfast-mesh what would happen to a request that comes to the workload, and fails the test if that is not
// what happened. It cannot know what a provider says, nor that a token is invalid.
func (w *world) explain(t *testing.T, g *group, c *testCase, r *request, admin string, is *outcome) {
	t.Helper()
	if strings.HasPrefix(g.Name, "authorizers_") || is.Status == "401" || is.Status == "400" || r.cert != "" && principals[r.cert] == "" || strings.Contains(r.text, "Authorization=") ||
		strings.Contains(r.text, "TOKEN") || r.from != "peer" || strings.HasPrefix(r.text, "OPTIONS") || strings.Contains(r.text, "x-other=nonsense") {
		return
	}
	query := url.Values{
		"proxy": {nodeOf(g.Proxy)["id"].(string)}, "inbound": {"true"}, "host": {r.url.Hostname()}, "port": {strconv.Itoa(r.port)}, "path": {r.path},
		"method": {r.method}, "source": {captures[r.from].source.String()}, "principal": {principals[r.cert]}, "claims": {r.claims}, "sni": {r.sni},
		"tcp": {strconv.FormatBool(r.method == "TCP")}, "header": {"host:" + r.url.Hostname()},
	}
	for _, h := range r.headers {
		if h[0] == "Host" {
			query["header"][0] = "host:" + h[1]
			continue
		}
		query.Add("header", h[0]+":"+h[1])
	}
	resp, err := http.Get("http://" + admin + "/explain?" + query.Encode())
	check(t, err)
	defer resp.Body.Close()
	var e struct {
		Outcome string
		Steps   []map[string]string
	}
	text := readAll(resp.Body)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%s: %s", r.text, text)
	}
	want := "allowed: "
	switch is.Status {
	case "403":
		want = "403: denied "
	case "closed":
		want = "closed: "
	}
	if !strings.HasPrefix(e.Outcome, want) {
		t.Errorf("%s: %s\n  explained as %q, and was %s\n  %s", c.Name, r.text, e.Outcome, is.Status, fmt.Sprint(e.Steps))
	}
}
