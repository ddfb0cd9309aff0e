package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/server"
)

// answering runs a command on a server that answers every path with a value.
func answering(t *testing.T, answer any, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(answer) }))
	defer web.Close()
	var out, errs bytes.Buffer
	root := newRoot(&out, &errs)
	root.SetArgs(append(args, "--admin", strings.TrimPrefix(web.URL, "http://")))
	code = cli.Exit(&errs, "holdfast-mesh", root.ExecuteContext(t.Context()))
	return code, out.String(), errs.String()
}

func TestStatus_FailsIfSomethingIsWrong(t *testing.T) {
	warning := config.Report{Code: config.UnknownHost, Severity: "warning", File: "f.yaml", Line: 3, Kind: string(config.VirtualService), Namespace: "shop", Name: "vs", Field: "spec", Message: "m"}
	for name, tc := range map[string]struct {
		status mesh.Status
		args   string
		code   int
	}{
		"ready":              {mesh.Status{Ready: true}, "", 0},
		"not ready":          {mesh.Status{NotReady: "it starts"}, "", 1},
		"a problem":          {mesh.Status{Ready: true, Problems: []string{"p"}}, "", 1},
		"a warning":          {mesh.Status{Ready: true, WarningCount: 1, Warnings: []config.Report{warning}}, "", 0},
		"a warning, strict":  {mesh.Status{Ready: true, WarningCount: 1, Warnings: []config.Report{warning}}, "--strict", 1},
		"for programs":       {mesh.Status{Ready: true}, "-o json", 0},
		"a problem, in YAML": {mesh.Status{Ready: true, Problems: []string{"p"}}, "-o yaml", 1},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := answering(t, tc.status, append([]string{"status"}, strings.Fields(tc.args)...)...)
			if code != tc.code || stdout == "" || stderr != "" {
				t.Errorf("exit code %d, want %d\n%s%s", code, tc.code, stdout, stderr)
			}
		})
	}
}

func TestStatus_SaysHowAServerIs(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	proxy := func(states ...string) (p server.ProxyStatus) {
		for _, state := range states {
			p.Types = append(p.Types, server.TypeStatus{State: state})
		}
		return p
	}
	var out bytes.Buffer
	err := write(&out, "table", nil, func(w io.Writer) {
		statusTable(w, mesh.Status{
			Version: "v1", Started: start, NotReady: "it starts", Store: mesh.StoreStatus{Kind: "etcd", Name: "http://etcd:2379", Revision: 7, Away: "timeout", Since: &start},
			Documents: map[string]int{"Service": 2, "VirtualService": 10}, Pushes: 12, MaxProxies: 9,
			Proxies:  []server.ProxyStatus{proxy("SYNCED", "NACKED", "STALE"), proxy("SYNCED", "STALE"), proxy("SYNCED"), proxy()},
			Problems: []string{"a problem"}, WarningCount: 3, Suppressed: 2,
			Warnings: []config.Report{{Code: config.UnknownHost, Severity: "warning", File: "f.yaml", Line: 3, Kind: string(config.VirtualService), Namespace: "shop", Name: "vs", Field: "spec", Message: "m"}},
		}, start.Add(90*time.Second))
	})
	const want = `VERSION    v1, running for 1m30s
READY      no: it starts
STORE      etcd http://etcd:2379, revision 7, which does not answer since 2026-01-01T00:00:00Z: timeout
DOCUMENTS  12: VirtualService 10, Service 2
PROXIES    4 of 9 connected: 2 SYNCED, 1 STALE, 1 NACKED
PUSHES     12
PROBLEMS   1
WARNINGS   3, and 2 suppressed by documents

a problem
f.yaml:3: VirtualService shop/vs: spec: warning: m [HM0201]
2 more warnings
`
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
}

func TestGet_ShowsWhatIsWrongWithADocument(t *testing.T) {
	docs := []mesh.Document{{APIVersion: "networking.istio.io/v1", Kind: "VirtualService", Namespace: "shop", Name: "vs", Origin: "f.yaml:1", Problems: []config.Report{
		{Code: config.UnknownHost, Severity: "warning", File: "f.yaml", Line: 3, Kind: string(config.VirtualService), Namespace: "shop", Name: "vs", Message: "m"},
	}}}
	code, stdout, stderr := answering(t, docs, "get")
	if want := "KIND            NAMESPACE  NAME  ORIGIN\nVirtualService  shop       vs    f.yaml:1\n\nf.yaml:3: VirtualService shop/vs: warning: m [HM0201]\n"; code != 0 || stdout != want {
		t.Errorf("%d %s\n%s\nwant\n%s", code, stderr, stdout, want)
	}
}
