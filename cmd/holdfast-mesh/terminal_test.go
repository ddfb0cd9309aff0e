package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/change"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/mesh/inspect"
	"github.com/holdfast-xds/holdfast/mesh/replica"
	"github.com/holdfast-xds/holdfast/mesh/server"
)

// evil is what a terminal would obey, and what would look like a line of the command.
const evil = "x\x1b[2J\u009b31m\u202e\r\nREADY  yes"

// fit fails the test if a terminal would obey something in a text, or if a line is not the command's own.
func fit(t *testing.T, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("a terminal would obey %q of\n%q", text[i:min(len(text), i+8)], text)
	}
	if strings.Contains("\n"+text, "\nREADY  yes") {
		t.Errorf("a text has made a line of its own:\n%s", text)
	}
	if !strings.Contains(text, "x\uFFFD[2J") {
		t.Errorf("the text itself is not shown:\n%s", text)
	}
}

const escapes = `apiVersion: networking.istio.io/v1
kind: "Virtual\e[31mService\u202e"
metadata: {name: "x\e[2J", namespace: red}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: "x\e[2J\nREADY  yes", namespace: red}
spec: {hosts: ["a\e[31m.b"], "foo\e[1m": 1, http: [{name: "\u202eabc", route: [{destination: {host: "nope.\u202etest"}}]}]}
`

func TestATerminalObeysNoDocument(t *testing.T) {
	file := filepath.Join(t.TempDir(), "esc.yaml")
	if err := os.WriteFile(file, []byte(escapes), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"validate", file}, {"apply", "--etcd", "http://127.0.0.1:1", "-f", file}} {
		var out, errs bytes.Buffer
		execute(context.Background(), &out, &errs, args)
		fit(t, out.String()+errs.String())
	}
	var out, errs bytes.Buffer
	execute(context.Background(), &out, &errs, []string{"validate", "-o", "json", file})
	var reports []config.Report
	if err := json.Unmarshal(out.Bytes(), &reports); err != nil || len(reports) == 0 || !strings.Contains(reports[0].Name+reports[len(reports)-1].Name, "\x1b[2J") {
		t.Errorf("JSON does not say what the document says: %v\n%s", err, out.String())
	}
}

func TestATerminalObeysNoServer(t *testing.T) {
	key := config.Key{Kind: config.VirtualService, Namespace: "red", Name: evil}
	report := config.Problem{Code: config.UnknownHost, Key: key, Severity: config.SeverityWarning, Message: evil}.Report()
	proxy := server.ProxyStatus{Node: evil, Type: "sidecar" + evil, Namespace: evil, Types: []server.TypeStatus{{Type: "CDS", State: evil, Reason: evil, Patches: []string{evil}}}}
	for name, tc := range map[string]struct {
		answer any
		args   []string
	}{
		"status":   {mesh.Status{Version: evil, NotReady: evil, Documents: map[string]int{evil: 1}, Problems: []string{evil}, Warnings: []config.Report{report}}, []string{"status"}},
		"proxies":  {mesh.Fleet{Problem: evil, Proxies: []replica.Proxy{{ProxyStatus: proxy}}}, []string{"proxies"}},
		"replicas": {mesh.Fleet{Replicas: []replica.Record{{ID: evil, Version: evil}}}, []string{"replicas"}},
		"get":      {[]mesh.Document{{Kind: "VirtualService", Namespace: "red", Name: evil, Origin: evil, Spec: json.RawMessage(`{}`), Problems: []config.Report{report}}}, []string{"get"}},
		"explain":  {inspect.Explanation{Warnings: []string{evil}, Steps: []inspect.Step{{Kind: evil, Name: evil, Document: evil, Detail: evil}}, Outcome: evil}, []string{"explain", "--proxy", "a", "b"}},
		"diff":     {mesh.DiffResponse{Problems: []string{evil}, Proxies: []mesh.ProxyDifference{{Node: evil, Differences: []inspect.Difference{{Type: evil, Name: evil, What: evil, Text: "x\x1b[2J"}}}}}, []string{"diff", os.DevNull}},
	} {
		t.Run(name, func(t *testing.T) {
			_, stdout, stderr := answering(t, tc.answer, tc.args...)
			fit(t, stdout+stderr)
		})
	}
	// YAML keeps the text, and escapes it.
	_, stdout, _ := answering(t, []mesh.Document{{Kind: "VirtualService", Name: "x\u202e\x1b", Spec: json.RawMessage(`{}`)}}, "get", "-o", "yaml")
	if !strings.Contains(stdout, `name: "x\u202e\e"`) {
		t.Errorf("%s", stdout)
	}
	var b bytes.Buffer
	if err := printChange(&b, etcd.Change{Stored: etcd.Stored{Key: key, Author: config.Author{Name: evil}, Problems: []config.Problem{{Key: key, Message: evil}}}}); err != nil {
		t.Error(err)
	}
	fit(t, b.String())
	b.Reset()
	if err := carryOut(t.Context(), &b, nil, &change.Plan{Actions: []change.Action{{Key: key, Verb: change.Created}}}, true); err != nil {
		t.Error(err)
	}
	fit(t, b.String())
}
