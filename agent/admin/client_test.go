package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An agent that has nothing at a path is too old for the command; one that says itself what it does not know is not.
func TestAClientSaysThatAnAgentIsTooOld(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /rehearsal", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /history", func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusNotFound, "no client has the node \"web-9\"\n")
	})
	agent := httptest.NewServer(mux)
	defer agent.Close()
	c := Client{Addr: strings.TrimPrefix(agent.URL, "http://")}
	for name, tc := range map[string]struct {
		ask  func() error
		want string
	}{
		"an unknown path":   {func() error { _, err := c.Status(t.Context()); return err }, c.Addr + " has no GET /status.json: the command needs an agent of its own version (`holdfast version`, `holdfast status`)"},
		"an unknown action": {func() error { return c.Freeze(t.Context(), FreezeRequest{}) }, c.Addr + " has no POST /freeze: what changes something needs the agent's Unix socket as --admin, and an agent of this version (`holdfast version`, `holdfast status`)"},
		"an unknown method": {func() error { _, err := c.RehearseLive(t.Context(), 1); return err }, "has no POST /rehearsal: what changes"},
		"an unknown node":   {func() error { _, err := c.History(t.Context(), HistoryFilter{Node: "web-9"}); return err }, `answers 404 Not Found to /history: no client has the node "web-9"`},
	} {
		if err := tc.ask(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
