package main

import (
	"io"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/inspect"
)

func TestAnExplanationBeginsWithItsWarnings(t *testing.T) {
	there := &inspect.Explanation{Outcome: "allowed", Warnings: []string{"of the server"}}
	var b strings.Builder
	explanationTable(&b, &inspect.Explanation{
		Outcome: "it goes on", Warnings: []string{"of the client"}, Steps: []inspect.Step{{Kind: "listener"}}, Servers: []inspect.Server{{Proxy: "web-1", Explanation: there}},
	})
	if want := "warning: of the client\nlistener\t\t\t\n→ it goes on\n\nat web-1\nwarning: of the server\n→ allowed\n"; b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestExplainRefusesClaimsThatAreNoObject(t *testing.T) {
	for _, claims := range []string{"null", "[1]", "{"} {
		c := newExplain(io.Discard)
		c.SetArgs([]string{"--proxy", "a", "--admin", "127.0.0.1:1", "--claims", claims, "a:80"})
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.HasPrefix(err.Error(), "--claims: want an object of JSON: ") {
			t.Errorf("%s: %v", claims, err)
		}
	}
}
