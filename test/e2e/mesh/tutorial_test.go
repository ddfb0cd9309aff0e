package mesh

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tutorial"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(envoytest.Root(t), "docs", "mesh.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func blocks(t *testing.T, text string) []tutorial.Block {
	t.Helper()
	all, err := tutorial.Blocks(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The tutorial works as it is written, but for ports, the directory and the path of Envoy.
func TestTheTutorialPrintsWhatItSays(t *testing.T) {
	text := page(t)
	dir, err := os.MkdirTemp("", "holdfast-tutorial-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	all := blocks(t, text)
	if len(all) < 10 || all[0].Commands != "make build envoy\n" {
		t.Fatalf("the tutorial has %d blocks, the first is %q", len(all), all[0].Commands)
	}
	text = strings.ReplaceAll(text, "/tmp/holdfast-mesh", dir+"/all")
	text = strings.ReplaceAll(text, ".envoy/envoy-"+envoytest.Version, envoytest.Binary(t))
	for _, port := range []int{8000, 8081, 8082, 15000, 15010, 15014} {
		free, err := testbed.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`(\D)`+strconv.Itoa(port)+`\b`).ReplaceAllString(text, "${1}"+strconv.Itoa(free))
		switch port { // those that commands have by default are given to them
		case 15000:
			text = strings.Replace(text, "bin/holdfast bootstrap ", fmt.Sprintf("bin/holdfast bootstrap --envoy-admin 127.0.0.1:%d ", free), 1)
		case 15010:
			text = strings.Replace(text, "bin/holdfast-mesh serve ", fmt.Sprintf("bin/holdfast-mesh serve --listen 127.0.0.1:%d ", free), 1)
		case 15014:
			for _, command := range []string{"serve", "get", "proxies", "explain", "diff"} {
				text = regexp.MustCompile(`(bin/holdfast-mesh `+command+`)\b`).ReplaceAllString(text, fmt.Sprintf("$1 --admin 127.0.0.1:%d", free))
			}
		}
	}
	sh := tutorial.NewShell(t, envoytest.Root(t))
	sh.FollowAll(blocks(t, text)[1:], limit, filepath.Join(dir, "all")) // `make` has run the first one
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// rows returns what the rows of the table under a heading name in their first column.
func rows(t *testing.T, text, heading string) (names []string) {
	t.Helper()
	_, section, ok := strings.Cut(text, heading+"\n")
	if !ok {
		t.Fatalf("no heading %q", heading)
	}
	section = regexp.MustCompile(`(?s)\n###? .*`).ReplaceAllString(section, "")
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cell := strings.Split(line, "|")[1]
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// differ fails the test if two lists have other members.
func differ(t *testing.T, what string, page, program []string) {
	t.Helper()
	slices.Sort(page)
	slices.Sort(program)
	if len(program) == 0 || !slices.Equal(slices.Compact(page), slices.Compact(program)) {
		t.Errorf("%s: docs/mesh.md has\n%q\nholdfast-mesh has\n%q", what, page, program)
	}
}

func TestThePageHasTheFlagsMetricsAndKindsOfTheProgram(t *testing.T) {
	text := page(t)
	flags, documented := flagsOf(t, "serve"), []string(nil)
	for _, name := range rows(t, text, "### Flags of serve") {
		if flag, _, _ := strings.Cut(name, " "); strings.HasPrefix(flag, "--") {
			documented = append(documented, flag)
		}
	}
	differ(t, "flags", documented, flags)

	w := newWorld(t)
	w.startMesh()
	w.startEnvoy() // counters with labels are there once they count
	w.answers(w.request(), "200 v1")
	w.write("route", w.route(0, 100))
	w.answers(w.request(), "200 v2")
	_, body, err := testbed.Get("http://" + w.admin + "/metrics")
	w.check(err)
	var metrics []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(body, -1) {
		metrics = append(metrics, m[1])
	}
	metrics = append(metrics, "pilot_total_xds_rejects", "holdfast_mesh_clients_refused_total", "holdfast_mesh_envoyfilter_failures_total")                                                                   // nothing was NACKed, nobody refused, no patch left out
	metrics = append(metrics, "holdfast_mesh_store_up", "holdfast_mesh_store_revision", "holdfast_mesh_store_removals_held", "holdfast_mesh_store_invalid_documents", "holdfast_mesh_store_unused_documents") // with etcd: test/peers/etcd
	differ(t, "metrics", rows(t, text, "## Metrics"), metrics)

	var kinds []string
	for _, s := range config.Schemas {
		name := s.Kind.Short()
		switch s.Kind {
		case config.MeshConfig:
			name = "ConfigMap"
		case config.MeshNetworks:
			continue // in the same ConfigMap
		}
		kinds = append(kinds, name)
	}
	documented = slices.DeleteFunc(rows(t, text, "## Documents"), func(name string) bool { return strings.Contains(name, "/") })
	differ(t, "kinds", documented, kinds)
}

// flagsOf returns the flags in the help of a command.
func flagsOf(t *testing.T, command string) (flags []string) {
	t.Helper()
	_, help, _ := run(t, command, "--help")
	for _, m := range regexp.MustCompile(`(?m)^  (?:-\w, )?(--[a-z-]+)`).FindAllStringSubmatch(help, -1) {
		if m[1] != "--flags-file" { // which all have
			flags = append(flags, m[1])
		}
	}
	return flags
}

func TestThePageHasTheFlagsOfEveryCommand(t *testing.T) {
	text := page(t)
	_, section, _ := strings.Cut(text, "### Flags of the other commands\n")
	section, _, _ = strings.Cut(section, "\n### ")
	documented := make(map[string][]string) // by command
	ticked := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, command := range ticked.FindAllStringSubmatch(cells[2], -1) {
			for _, name := range ticked.FindAllStringSubmatch(cells[1], -1) {
				if flag, _, _ := strings.Cut(name[1], " "); strings.HasPrefix(flag, "--") {
					documented[command[1]] = append(documented[command[1]], flag)
				}
			}
		}
	}
	_, help, _ := run(t, "--help")
	_, list, _ := strings.Cut(help, "\nCommands\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+) `).FindAllStringSubmatch(list, -1) {
		command := m[1]
		if command == "help" || command == "serve" {
			continue
		}
		if !strings.Contains(text, "\n    holdfast-mesh "+command) {
			t.Errorf("the page does not list %s", command)
		}
		var own []string
		ofStore := 0
		for _, flag := range flagsOf(t, command) {
			if strings.HasPrefix(flag, "--etcd") || flag == "--secret-key-file" {
				ofStore++
			} else {
				own = append(own, flag)
			}
		}
		if ofStore != 0 && ofStore != 8 {
			t.Errorf("%s has %d of the flags of etcd", command, ofStore)
		}
		slices.Sort(own)
		slices.Sort(documented[command])
		if !slices.Equal(own, documented[command]) {
			t.Errorf("flags of %s: docs/mesh.md has\n%q\nholdfast-mesh has\n%q", command, documented[command], own)
		}
	}
}
