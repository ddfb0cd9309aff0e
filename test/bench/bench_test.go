package main

import (
	"bytes"
	"encoding/json"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// The targets pipe and relay are this program again, also where this program is the
// test.
func TestMain(m *testing.M) {
	runHelper(os.Args)
	os.Exit(m.Run())
}

// buildHoldfast returns the path of the holdfast of this tree.
func buildHoldfast(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holdfast")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/holdfast")
	build.Dir = envoytest.Root(t) // in the module of the product, with what that requires
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building holdfast: %v\n%s", err, said)
	}
	return path
}

// One tiny case of each kind, of every target. It runs the holdfast of this tree.
func TestEveryKindOfCaseDeliversWithEveryTarget(t *testing.T) {
	dir, holdfast := t.TempDir(), buildHoldfast(t)
	out := filepath.Join(dir, "results.jsonl")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	kinds := "^(delta-update-of-20|delta-update-of-20-in-turns|sotw-push-of-200|sotw-push-of-200-delta-client|delta-rate.*|clients-3|memory-500.*|cpu.*|reconnect.*|start.*|outage|client-never-acks|streams.*|scaling.*)$"
	var table, progress bytes.Buffer
	err = command(t.Context(), []string{"-quick", "-cases", kinds, "-holdfast", holdfast, "-out", out, "-plots", dir}, &table, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	t.Logf("\n%s", progress.String())
	results, err := readResults(out)
	if err != nil {
		t.Fatal(err)
	}
	of := make(map[string]float64)
	for _, r := range results {
		of[r.key()] = r.Median
		if !strings.Contains(table.String(), r.Case) {
			t.Errorf("the table does not show %s", r.Case)
		}
	}
	for _, key := range []string{
		"delta-update-of-20 p50 direct", "delta-update-of-20 p50 pipe", "delta-update-of-20 p50 holdfast",
		"delta-update-of-20-in-turns p50 direct", "delta-update-of-20-in-turns p99 pipe", "delta-update-of-20-in-turns p50 holdfast",
		"sotw-push-of-200-delta-client p99 holdfast", "delta-rate rate holdfast", "clients-3 all-full holdfast",
		"memory-500 heap holdfast", "memory-500-in-parts peak holdfast", "cpu-delta-updates per-1000 pipe", "cpu-sotw-push per-100MB holdfast",
		"reconnect-resending upstream holdfast", "reconnect-resending downstream direct", "start-with-200-stored first-answer holdfast",
		"outage reconnect-to-change holdfast", "scaling-streams-4 rss holdfast", "streams-5 time-per-stream pipe",
		"sotw-push-of-200 p50 relay", "delta-rate rate relay", "clients-3 all-full relay", "memory-500 rss relay", "cpu-sotw-push per-100MB relay",
		"reconnect-resending downstream relay", "start-empty first-answer relay", "scaling-streams-4 p50 relay",
	} {
		if of[key] <= 0 {
			t.Errorf("%s: %v, which nothing can be", key, of[key])
		}
	}
	// What holds whatever the machine does.
	for key, want := range map[string]float64{
		"clients-3 upstream-streams holdfast":     1,
		"streams-5 upstream-streams holdfast":     1,
		"reconnect-resending downstream holdfast": 0,
	} {
		if got, ok := of[key]; !ok || got != want {
			t.Errorf("%s: %v (measured: %v), want %v", key, got, ok, want)
		}
	}
	// The agent lets the control plane send one resource that it has, so that there is an answer.
	if got, ok := of["reconnect-honouring upstream holdfast"]; !ok || got > 1.5*bodySize {
		t.Errorf("after a reconnect the control plane sent %v bytes (measured: %v), want one resource of %d at most", got, ok, bodySize)
	}
	for _, c := range scalingCharts {
		f, err := os.Open(filepath.Join(dir, c.file))
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := png.DecodeConfig(f); err != nil {
			t.Errorf("%s: %v", c.file, err)
		}
		_ = f.Close()
	}
	// An agent that somebody names runs as the built-in ones do.
	err = command(t.Context(), []string{"-quick", "-cases", "^delta-update-of-20$", "-target", "direct",
		"-agent", "copier=" + self + " pipe {socket} {upstream}"}, &table, &progress)
	if err != nil || !strings.Contains(table.String(), "copier") {
		t.Errorf("a target of one's own: %v\n%s", err, progress.String())
	}
}

func TestATargetThatDoesNotDeliverFailsWithWhatWasAwaited(t *testing.T) {
	var table, progress bytes.Buffer
	err := command(t.Context(), []string{"-quick", "-cases", "^delta-update-of-20$", "-target", "direct",
		"-agent", "broken=false {socket} {upstream}"}, &table, &progress)
	if err == nil || !strings.Contains(err.Error(), "delta-update-of-20, broken: broken ended") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(table.String(), "direct") || strings.Contains(table.String(), "broken") {
		t.Errorf("want the figures of direct, and none of broken:\n%s", table.String())
	}
}

func TestCommandLineErrorsSayWhatIsWanted(t *testing.T) {
	dir := t.TempDir()
	notAProgram := filepath.Join(dir, "holdfast.txt")
	if err := os.WriteFile(notAProgram, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a case that there is not":   {[]string{"-cases", "nothing"}, "-list"},
		"a bad expression":           {[]string{"-cases", "("}, "-cases"},
		"a target that there is not": {[]string{"-target", "envoy"}, "-agent"},
		"an agent without a socket":  {[]string{"-target", "direct", "-agent", "a=b {upstream}"}, "{socket}"},
		"no binary":                  {[]string{"-holdfast", filepath.Join(dir, "holdfast")}, "make build"},
		"a folder for a binary":      {[]string{"-holdfast", dir}, "make build"},
		"a file that is no program":  {[]string{"-holdfast", notAProgram}, "make build"},
		"one file to compare":        {[]string{"-check", "a"}, "OLD NEW"},
		"a profile of no time":       {[]string{"-profile-seconds", "0"}, "-profile-seconds"},
		"a word too many":            {[]string{"fast"}, "fast"},
	} {
		var out bytes.Buffer
		err := command(t.Context(), c.args, &out, &out)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want one with %q", name, err, c.want)
		}
	}
}

func TestCheckMarksWhatLiesOutsideOfBothRanges(t *testing.T) {
	dir := t.TempDir()
	older, newer := filepath.Join(dir, "old"), filepath.Join(dir, "new")
	one := func(name string, median, low, high float64) result {
		return result{Case: name, Metric: "p50", Target: "pipe", Unit: "ms", summary: summary{Median: median, Min: low, Max: high, N: 3}}
	}
	if err := writeResults(older, []result{one("same", 10, 9, 12), one("slower", 10, 9, 11), one("left", 1, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	if err := writeResults(newer, []result{one("same", 11, 10, 13), one("slower", 20, 19, 21), one("added", 1, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := check(&out, older, newer); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"same": "+10.0%", "slower": "+100.0% *", "left": "gone", "added": "new", "1": "marked *:"}
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		if len(fields) == 0 || want[fields[0]] == "" {
			continue
		}
		if text := strings.Join(fields, " "); !strings.Contains(text, want[fields[0]]) || fields[0] == "same" && strings.Contains(text, "*") {
			t.Errorf("want %q in: %s", want[fields[0]], text)
		}
		delete(want, fields[0])
	}
	if len(want) > 0 {
		t.Errorf("no line for %v in:\n%s", want, out.String())
	}
	for _, files := range [][2]string{{older, filepath.Join(dir, "none")}, {filepath.Join(dir, "none"), newer}} {
		if err := check(&out, files[0], files[1]); err == nil {
			t.Errorf("comparing %v: no error", files)
		}
	}
}

func TestAResultsFileIsReadAsItWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	written := []result{
		{Case: "a", Metric: "p50", Target: "direct", Unit: "ms", summary: summarize([]float64{1, 2, 4}), Machine: machine{CPUs: 2, Go: "go", Kernel: "6"}},
		{Case: "a", Metric: "p50", Target: "pipe", Unit: "ms", summary: summarize([]float64{4}), Machine: machine{CPUs: 2, Go: "go", Kernel: "6"}},
		{Case: "a", Metric: "p50", Target: "relay", Unit: "ms", summary: summarize([]float64{5}), Machine: machine{CPUs: 2, Go: "go", Kernel: "6"}},
		{Case: "a-delta", Versus: "a", Metric: "p50", Target: "holdfast", Unit: "ms", summary: summarize([]float64{8}), Machine: machine{CPUs: 2, Go: "go", Kernel: "6"}},
	}
	compare(written)
	if written[1].Direct != 2 || written[3].Direct != 4 || written[3].Pipe != 2 || written[3].Relay != 1.6 || written[0].Pipe != 0.5 {
		t.Errorf("the ratios are %+v", written)
	}
	if err := writeResults(path, written); err != nil {
		t.Fatal(err)
	}
	read, err := readResults(path)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(written)
	b, _ := json.Marshal(read)
	if !bytes.Equal(a, b) {
		t.Errorf("written %s\nread    %s", a, b)
	}
	for _, key := range []string{`"case"`, `"target"`, `"unit"`, `"median"`, `"min"`, `"max"`, `"n"`, `"ratio_direct"`, `"ratio_pipe"`, `"ratio_relay"`, `"cpus"`, `"go"`, `"kernel"`} {
		if !bytes.Contains(a, []byte(key)) {
			t.Errorf("no %s in %s", key, a)
		}
	}
	if err := os.WriteFile(path, []byte("{}\nnot json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readResults(path); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a damaged file: %v", err)
	}
}
