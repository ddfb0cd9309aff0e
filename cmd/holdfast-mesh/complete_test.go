package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/replica"
	"github.com/holdfast-xds/holdfast/mesh/server"
)

// What a shell completes comes from the server that the variables name, as for the command itself.
func TestKindsNamesAndProxiesAreCompleted(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		switch r.URL.Path {
		case "/documents":
			answer = []mesh.Document{{Kind: "VirtualService", Namespace: "shop", Name: r.URL.Query().Get("kind")}}
		case "/proxies":
			answer = mesh.Fleet{Proxies: []replica.Proxy{{ProxyStatus: server.ProxyStatus{Node: "web-1"}}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer web.Close()
	t.Setenv("HOLDFAST_MESH_ADMIN", strings.TrimPrefix(web.URL, "http://"))
	for line, want := range map[string]string{
		"get virtuals":               "virtualservice",
		"edit kubernetesg":           "kubernetesgateway",
		"get vs |":                   "shop/VirtualService",
		"get -n shop vs |":           "VirtualService",
		"explain --proxy |":          "web-1",
		"diff --proxy |":             "web-1",
		"get --output |":             "yaml",
		"validate -o |":              "json",
		"serve --log-level |":        "debug",
		"serve --document-age |":     "creation-timestamp",
		"get nosuchkind |":           "",
		"get vs shop/VirtualService": "",
	} {
		t.Run(line, func(t *testing.T) {
			var out, errs strings.Builder
			root := newRoot(&out, &errs)
			args := append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Fields(line)...)
			if i := slices.Index(args, "|"); i >= 0 {
				args[i] = ""
			}
			root.SetArgs(args)
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(out.String(), "\n")
			if want == "" && len(lines) > 2 && !strings.HasPrefix(line, "get vs shop") || want != "" && !slices.Contains(lines, want) {
				t.Errorf("%q, want %q\n%s", lines, want, errs.String())
			}
		})
	}
}
