package architecture

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ours loads the packages of this module, and of those below it.
func ours(t *testing.T) []*pkg {
	t.Helper()
	root := filepath.Join("..", "..")
	if !strings.HasPrefix(read(t, filepath.Join(root, "go.mod")), "module "+module+"\n") {
		t.Fatalf("go.mod does not begin with module %s: the rules would judge nothing", module)
	}
	pkgs, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	self := slices.IndexFunc(pkgs, func(p *pkg) bool { return p.path == "internal/architecture" })
	if self < 0 || len(pkgs[self].docs) != 1 {
		t.Fatal("the packages were not found: not even this one")
	}
	return pkgs
}

func TestEveryPackageHasExactlyOnePackageComment(t *testing.T) {
	for _, p := range ours(t) {
		if problem := docProblem(p); problem != "" {
			t.Error(problem)
		}
	}
}

func TestImportsFollowTheOrderOfThePackages(t *testing.T) {
	for _, p := range ours(t) {
		for _, problem := range importProblems(p) {
			t.Error(problem)
		}
	}
}

func TestProtocolMachinesHaveNoGoroutineAndNoClock(t *testing.T) {
	for _, p := range ours(t) {
		for _, problem := range machineProblems(p) {
			t.Error(problem)
		}
	}
}

func TestTheModuleRequiresOnlyWhatTheProductNeeds(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var mod goMod
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Require) == 0 {
		t.Fatalf("go.mod requires nothing: %s", out)
	}
	for _, problem := range requireProblems(mod, ours(t)) {
		t.Error(problem)
	}
}

func TestTheCheckOfPackageCommentsCanFail(t *testing.T) {
	const with, without = "// Package p is.\npackage p\n", "package p\n"
	const apart, directive = "// Copyright.\n\npackage p\n", "//go:build linux\npackage p\n"
	for _, tc := range []struct {
		name  string
		files []string
		fails bool
	}{
		{"one of two", []string{with, without}, false},
		{"only tests", nil, false},
		{"none", []string{without, without}, true},
		{"two", []string{with, with}, true},
		{"a comment apart from the clause", []string{apart}, true},
		{"a directive is no comment", []string{directive}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if problem := docProblem(source(t, "p", tc.files...)); (problem != "") != tc.fails {
				t.Errorf("problem %q, want one: %v", problem, tc.fails)
			}
		})
	}
}

func TestTheCheckOfImportsCanFail(t *testing.T) {
	for _, tc := range []struct {
		from, imports string
		fails         bool
	}{
		{"agent", "cmd/holdfast", true},
		{"test/e2e", "cmd/holdfast", true},
		{"cmd/holdfast", "agent", false},
		{"cmd/holdfast", "cmd/holdfast/flags", false},
		{"agent", "upstream", false},
		{"agent", "agent/cache", false},

		{"internal/xds", "internal/xds/wire", false},
		{"internal/xds", "agent", true},
		{"internal/xds/wire", "bootstrap", true},
		{"internal/xdstest", "internal/xds", false},

		{"upstream", "upstream/session", false},
		{"upstream", "internal/xds", false},
		{"upstream", "downstream", true},
		{"upstream/session", "downstream/session", true},
		{"upstream", "agent/cache", true},
		{"upstreams", "downstream", false},
		{"downstream", "upstream", true},
		{"downstream", "agent", true},
		{"sds", "bootstrap", true},
		{"bootstrap", "sds/istio", true},

		{"agent/cache", "internal/xds", false},
		{"agent/cache", "internal/wake", false},
		{"agent/cache", "agent/store", true},
		{"agent/cache", "upstream", true},
		{"agent/store", "agent/store/frame", false},
		{"agent/store", "downstream/session", true},
		{"agent/admin", "agent/cache", false},

		{"mesh/service", "mesh/config", false},
		{"mesh/server", "downstream/session", false},
		{"mesh/server", "agent/cache", false},
		{"mesh/service", "internal/xds", false},
		{"mesh/server", "agent", true},
		{"mesh/server", "agent/admin", true},
		{"mesh/server", "upstream", true},
		{"mesh/config/dir", "sds/files", true},
		{"mesh/proxy", "bootstrap", true},
		{"agent", "mesh/config", true},
		{"cmd/holdfast", "mesh", true},
		{"cmd/holdfast-mesh", "mesh", false},
		{"cmd/holdfast-mesh/flags", "mesh/config", false},
		{"test/mesh", "mesh/service", false},
		{"cmd/holdfast", "internal/injector", true},
		{"cmd/holdfast-injector", "internal/injector", false},
		{"cmd/holdfast", "k8s.io/client-go/rest", true},
		{"internal/inject", "k8s.io/client-go/kubernetes/typed/core/v1", true},
		{"internal/injector", "k8s.io/client-go/rest", false},
		{"mesh/config", "k8s.io/client-go/rest", true},
		{"cmd/holdfast-injector", "k8s.io/klog/v2", false},
		{"downstream", "mesh/push", true},
		{"mesh/push/queue", "sync", true},

		{"agent", "deploy/release", true},
		{"test/release", "deploy/release", true},
		{"deploy/release", "deploy/release/sbom", false},

		{"agent", "internal/xdstest", true},
		{"internal/xds", "internal/xdstest", true},
		{"cmd/holdfast", "internal/envoytest", true},
		{"internal/xdstest", "internal/envoytest", false},
		{"test/demo", "internal/envoytest", false},

		{"upstream/session", "time", false},
		{"upstream/session", "google.golang.org/grpc/codes", false},
		{"downstream/session", "google.golang.org/grpc/status", false},
		{"downstream/session", "google.golang.org/genproto/googleapis/rpc/status", false},
		{"downstream/session", "nettle", false},
		{"downstream/session", "net", true},
		{"downstream/session", "net/netip", true},
		{"downstream/session", "os", true},
		{"downstream/session", "google.golang.org/grpc", true},
		{"upstream/session", "google.golang.org/grpc/metadata", true},
		{"upstream/session", "sync", true},
		{"upstream/session", "sync/atomic", true},
		{"upstream/session", "context", true},
		{"upstream/session", "math/rand", true},
		{"upstream/session/wire", "math/rand/v2", true},
		{"upstream", "context", false},
	} {
		t.Run(tc.from+" imports "+tc.imports, func(t *testing.T) {
			imported := tc.imports
			if tree, _, _ := strings.Cut(tc.imports, "/"); slices.Contains([]string{"cmd", "agent", "upstream", "downstream", "sds", "bootstrap", "internal", "mesh", "test", "deploy"}, tree) {
				imported = module + "/" + tc.imports
			}
			p := source(t, tc.from, "package p\n\nimport _ \""+imported+"\"\n")
			if problems := importProblems(p); (len(problems) > 0) != tc.fails {
				t.Errorf("problems %q, want some: %v", problems, tc.fails)
			}
		})
	}
}

func TestTheCheckOfWhatIsRequiredCanFail(t *testing.T) {
	const imports = "package p\n\nimport _ \"example.com/a/v2/b\"\n"
	for _, tc := range []struct {
		from  string
		mod   goMod
		fails bool
	}{
		{"agent", goMod{Require: []required{{Path: "example.com/a/v2"}}}, false},
		{"agent", goMod{Require: []required{{Path: "example.com/a/v2"}, {Path: "example.com/c"}}}, true},
		{"agent", goMod{Require: []required{{Path: "example.com/c", Indirect: true}}}, false},
		{"agent", goMod{Require: []required{{Path: "go.uber.org/goleak"}}}, false},
		{"test/e2e", goMod{Require: []required{{Path: "example.com/a/v2"}}}, true},
		{"deploy/release", goMod{Require: []required{{Path: "example.com/a/v2"}}}, true},
		{"internal/xdstest", goMod{Require: []required{{Path: "example.com/a/v2"}}}, true},
		{"agent", goMod{Tool: []struct{ Path string }{{"example.com/a/v2/b"}}}, true},
	} {
		t.Run(fmt.Sprint(tc.from, tc.mod), func(t *testing.T) {
			if problems := requireProblems(tc.mod, []*pkg{source(t, tc.from, imports)}); (len(problems) > 0) != tc.fails {
				t.Errorf("problems %q, want some: %v", problems, tc.fails)
			}
		})
	}
}

func TestTheCheckOfProtocolMachinesCanFail(t *testing.T) {
	for body, fails := range map[string]bool{
		"var d time.Duration; d = 3 * time.Second; _ = d": false,
		"var at time.Time; _ = at.Add(1)":                 false,
		"_ = time.Now()":                                  true,
		"now := time.Now; _ = now":                        true,
		"time.AfterFunc(0, nil)":                          true,
		"go f()":                                          true,
		"_ = make(chan int)":                              true,
		"select {}":                                       true,
		"<-c":                                             true,
		"c <- 1":                                          true,
	} {
		t.Run(body, func(t *testing.T) {
			text := "package p\n\nfunc f() { " + body + " }\n"
			if problems := machineProblems(source(t, "downstream/session", text)); (len(problems) > 0) != fails {
				t.Errorf("problems %q, want some: %v", problems, fails)
			}
			if problems := machineProblems(source(t, "downstream", text)); len(problems) > 0 {
				t.Errorf("a package that is no machine has problems: %q", problems)
			}
		})
	}
}

func TestTheLoaderFindsWhatCountsAndNothingElse(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"root.go":              "// Package root is.\npackage root\n",
		"a/a.go":               "package a\n\nimport _ \"" + module + "/b\"\n",
		"a/a_test.go":          "// Package a is not.\npackage a\n\nimport _ \"os\"\n",
		"a/a_windows.go":       "package a\n\nimport _ \"net\"\n",
		"t/t_test.go":          "package t\n",
		"a/testdata/x/x.go":    "this is no Go",
		".hidden/x.go":         "this is no Go",
		"_old/x.go":            "this is no Go",
		"vendor/other/pack.go": "this is no Go",
		"docs/page.md":         "no package",
		"test/own/go.mod":      "module " + module + "/test/own\n",
		"test/own/own.go":      "package own\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pkgs, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, p := range pkgs {
		paths = append(paths, p.path)
	}
	if got := strings.Join(paths, " "); got != ". a t test/own" {
		t.Fatalf("packages %s", got)
	}
	a, tests := pkgs[1], pkgs[2] // what is in a module of its own counts too
	if len(a.imports) != 2 || a.imports["./b"] == nil || a.imports["net"] == nil || len(a.docs) != 0 || a.files != 2 {
		t.Errorf("a is %+v", a)
	}
	if tests.files != 0 {
		t.Errorf("t is %+v", tests)
	}
}
