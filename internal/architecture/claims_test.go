package architecture

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// What the front page and the other pages say of the project itself: figures, counts, targets, pages, and what is not there yet. What they
// say of commands and flags is compared with the commands in cmd/.

// page returns a file of the repository.
func page(t *testing.T, name string) string {
	t.Helper()
	return read(t, filepath.Join(moduleRoot(t), filepath.FromSlash(name)))
}

// figure returns what a pattern captures in a page, at the last place where it matches: that of the newest measurement.
func figure(t *testing.T, name, pattern string) []string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(page(t, name), -1)
	if len(found) == 0 {
		t.Fatalf("%s has nothing like %s", name, pattern)
	}
	return found[len(found)-1][1:]
}

// rounded reports whether a figure of a page, such as "26", is a measured one, such as "25.6", in as many digits.
func rounded(said, measured string) bool {
	_, fraction, _ := strings.Cut(said, ".")
	m, err := strconv.ParseFloat(measured, 64)
	return err == nil && strconv.FormatFloat(m, 'f', len(fraction), 64) == said
}

func TestReadme_figuresAreThoseThatWereMeasured(t *testing.T) {
	said := figure(t, "README.md", `(\d+) MiB of memory idle and (\d+) with 10,000 resources \((\d+) and (\d+)\), (\d\.\d+) ms for one update \((\d\.\d+)\)`)
	memory := figure(t, "docs/performance.md", `(?m)^\| resident: idle; with 10,000; at most \| [^|]*\| ([\d.]+) MiB [^;|]*; ([\d.]+) [^|]*\| ([\d.]+) MiB; ([\d.]+);`)
	update := figure(t, "docs/performance.md", `(?m)^\| one update of 100 in turns, p50, \d+ rounds \| [^|]*\| ([\d.]+) ms [^|]*\| ([\d.]+) ms`)
	for i, measured := range append(memory, update...) {
		if !rounded(said[i], measured) {
			t.Errorf("README.md says %s where docs/performance.md has %s", said[i], measured)
		}
	}

	said = figure(t, "README.md", `needs (\d+) MiB\s+of memory \(istiod: (\d+), and (\d+) when all connect\) and, for a change of a route, a (\w+) of istiod's CPU time`)
	mesh := figure(t, "docs/performance.md", `(?m)^\| memory when all are connected, and at the end \| \d+ and (\d+) MiB \| (\d+) and (\d+) MiB`)
	if want := []string{mesh[0], mesh[2], mesh[1]}; !slices.Equal(said[:3], want) {
		t.Errorf("README.md says of memory %q, docs/performance.md %q", said[:3], want)
	}
	ratio, err := strconv.ParseFloat(figure(t, "docs/performance.md", `(?m)^\| route change \|.*\| ([\d.]+) \|$`)[0], 64)
	parts := map[string]float64{"tenth": 10, "eleventh": 11, "twelfth": 12, "fifteenth": 15, "twentieth": 20}
	if err != nil || math.Abs(1/ratio-parts[said[3]]) > 1 {
		t.Errorf("README.md says a %s, docs/performance.md %v", said[3], ratio)
	}
}

func TestReadme_countsWhatIsThere(t *testing.T) {
	cases, err := filepath.Glob(filepath.Join(moduleRoot(t), "test/peers/istio/testdata/cases/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range cases {
		for documents := yaml.NewDecoder(strings.NewReader(read(t, file))); ; {
			var group struct{ Cases []struct{ Name string } }
			if err := documents.Decode(&group); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			n += len(group.Cases)
		}
	}
	if said := figure(t, "README.md", `against istiod's in\s+([\d,]+) cases`)[0]; strings.ReplaceAll(said, ",", "") != strconv.Itoa(n) {
		t.Errorf("README.md says %s cases, and there are %d", said, n)
	}
	words := strings.Fields("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen")
	entries := strings.Count(page(t, "docs/glossary.md"), "\n**")
	if said := figure(t, "README.md", `the (\w+) words of holdfast's own`)[0]; slices.Index(words, said) != entries {
		t.Errorf("README.md says %s words, and docs/glossary.md has %d", said, entries)
	}
}

func TestReadme_leadsToEveryPage(t *testing.T) {
	readme := page(t, "README.md")
	pages, err := filepath.Glob(filepath.Join(moduleRoot(t), "docs/*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages: %v", len(pages), err)
	}
	for _, p := range pages {
		if name := filepath.Base(p); !strings.Contains(readme, "[") || !strings.Contains(readme, "(docs/"+name+")") {
			t.Errorf("README.md does not lead to docs/%s", name)
		}
	}
}

// The versions of Envoy that pages name are those that the tests try.
func TestPagesNameTheEnvoysThatAreTried(t *testing.T) {
	matrix := strings.Fields(figure(t, "Makefile", `(?m)^ENVOY_MATRIX *\?= (.*)$`)[0])
	minor := func(v string) string { return v[:strings.LastIndex(v, ".")] }
	first, last := minor(matrix[0]), minor(matrix[len(matrix)-1])
	if want := "Envoy " + first + " to " + last + " pass"; !strings.Contains(page(t, "docs/run.md"), want) {
		t.Errorf("docs/run.md does not say %q", want)
	}
	var minors []string
	for _, v := range matrix {
		minors = append(minors, minor(v))
	}
	if want := "Envoy " + strings.Join(minors[:len(minors)-1], ", ") + " and " + last + "."; !strings.Contains(page(t, "docs/compatibility.md"), want) {
		t.Errorf("docs/compatibility.md does not say %q", want)
	}
}

// A page does not ask readers to verify with a key that they cannot have, nor names an image of a release that no release has.
func TestReadme_promisesWhatCanBeDone(t *testing.T) {
	readme := page(t, "README.md")
	_, err := os.Stat(filepath.Join(moduleRoot(t), "holdfast.pub"))
	if noKey := strings.Contains(readme, "has no signing key yet"); noKey != os.IsNotExist(err) || noKey == strings.Contains(readme, "holdfast.pub") {
		t.Errorf("README.md says that there is no key: %v, and of holdfast.pub: %v", noKey, err)
	}
	if noKey := strings.Contains(page(t, "docs/releasing.md"), "The project has no key yet"); noKey != os.IsNotExist(err) {
		t.Errorf("docs/releasing.md says that there is no key: %v, and of holdfast.pub: %v", noKey, err)
	}
	images := figure(t, "docs/releasing.md", `the images (.*) as OCI layouts`)[0]
	of := figure(t, "README.md", `(?s)\*\*Images\*\* (.*?) are archives`)[0]
	quoted := regexp.MustCompile("`([a-z-]+)`")
	names := func(text string) (names []string) {
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		return names
	}
	if a, b := names(images), names(of); !slices.Equal(a, b) || len(a) < 4 {
		t.Errorf("docs/releasing.md names the images %q, README.md %q", a, b)
	}
}

// targets returns the targets of the Makefile, those with a pattern also in their forms.
func targets(t *testing.T) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9 /%-]+):(?:[^=]|$)`).FindAllStringSubmatch(page(t, "Makefile"), -1) {
		for _, name := range strings.Fields(m[1]) {
			found[name] = true
		}
	}
	for _, v := range strings.Fields(figure(t, "Makefile", `(?m)^ENVOY_MATRIX *\?= (.*)$`)[0]) {
		found["e2e-"+v] = true
	}
	if !found["check"] || !found["demo-20"] || len(found) < 30 {
		t.Fatalf("targets %v", slices.Sorted(maps.Keys(found)))
	}
	return found
}

// parts returns the parts of test-all.
func parts(t *testing.T) (names []string) {
	t.Helper()
	newest := figure(t, "Makefile", `(?m)^ENVOY_VERSION *\?= (.*)$`)[0]
	for _, name := range strings.Fields(strings.ReplaceAll(figure(t, "Makefile", `(?m)^parts +:= (.*)$`)[0], "$(filter-out e2e-$(ENVOY_VERSION),$(matrix))", "MATRIX")) {
		if name != "MATRIX" {
			names = append(names, name)
			continue
		}
		for _, v := range strings.Fields(figure(t, "Makefile", `(?m)^ENVOY_MATRIX *\?= (.*)$`)[0]) {
			if v != newest {
				names = append(names, "e2e-"+v)
			}
		}
	}
	return names
}

var makeCommand = regexp.MustCompile("(?m)(?:`|^    |^        |&& |; |\\bsudo )make ((?:[a-z][a-z0-9./-]*(?: |\\b))+)")

func TestPagesNameTargetsThatThereAre(t *testing.T) {
	found, seen := targets(t), 0
	root := moduleRoot(t)
	for _, file := range append(files(t, root, ".md"), files(t, root, ".go")...) {
		if strings.HasSuffix(file, "CHANGELOG.md") || strings.Contains(file, "internal/architecture") {
			continue
		}
		for _, m := range makeCommand.FindAllStringSubmatch(read(t, file), -1) {
			for _, name := range strings.Fields(m[1]) {
				if seen++; !found[name] {
					t.Errorf("%s names `make %s`, and the Makefile has no such target", file, name)
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("only %d targets were found: the pattern is wrong", seen)
	}
}

type workflow struct {
	Jobs map[string]struct {
		Strategy struct {
			Matrix struct {
				Part    []string
				Include []struct{ Name, Run string }
			}
		}
		Steps []struct{ Uses, Run string }
	}
}

// The workflows play the tiers: nightly all parts of test-all, and each change what .ci/run plays. What they use is pinned by its digest.
func TestWorkflowsPlayTheTiers(t *testing.T) {
	root, found := moduleRoot(t), targets(t)
	all, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(all) < 2 {
		t.Fatalf("workflows %q: %v", all, err)
	}
	pinned := regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40}$`)
	var nightly, onChange []string
	for _, file := range all {
		var w workflow
		if err := yaml.Unmarshal([]byte(read(t, file)), &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for name, job := range w.Jobs {
			nightly = append(nightly, job.Strategy.Matrix.Part...)
			for _, leg := range job.Strategy.Matrix.Include {
				_, command, ok := strings.Cut(leg.Run, "make ")
				if !ok {
					t.Errorf("%s: %s runs %q", file, leg.Name, leg.Run)
				}
				for _, target := range strings.Fields(command) {
					if !strings.Contains(target, "=") {
						onChange = append(onChange, target)
					}
				}
			}
			runs := slices.ContainsFunc(job.Steps, func(s struct{ Uses, Run string }) bool {
				return len(job.Strategy.Matrix.Part) > 0 && strings.Contains(s.Run, "make test-all PARTS=${{ matrix.part }}") ||
					len(job.Strategy.Matrix.Include) > 0 && s.Run == "${{ matrix.run }}"
			})
			if !runs {
				t.Errorf("%s: the job %s does not run what its matrix says", file, name)
			}
			for _, step := range job.Steps {
				if step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s uses %s, which is not pinned by a digest", file, step.Uses)
				}
			}
		}
	}
	if want := parts(t); !slices.Equal(nightly, want) {
		t.Errorf("every night there are the parts\n%q\nand test-all has\n%q", nightly, want)
	}
	var ci []string
	for _, m := range regexp.MustCompile(`(?m)(?:^| )step ([a-z0-9-]+)(?: \|\||$)`).FindAllStringSubmatch(page(t, ".ci/run"), -1) {
		if m[1] == "test" { // as jobs of its own
			ci = append(ci, strings.Fields(figure(t, "Makefile", `(?m)^test: (.*) ##`)[0])...)
			continue
		}
		ci = append(ci, m[1])
	}
	for _, target := range append(append(slices.Clone(nightly), onChange...), ci...) {
		if !found[target] {
			t.Errorf("the Makefile has no target %s", target)
		}
	}
	slices.Sort(ci)
	slices.Sort(onChange)
	if !slices.Equal(slices.Compact(onChange), slices.Compact(ci)) {
		t.Errorf("for a change GitHub plays\n%q\nand .ci/run\n%q", onChange, ci)
	}
}

// What docs/mesh.md says is not there yet is not there. A new item needs a check here, and one that is there now goes from the page.
func TestMesh_whatIsNotThereYet(t *testing.T) {
	_, section, _ := strings.Cut(page(t, "docs/mesh.md"), "\n## What is not there yet\n")
	checks := map[string]func() error{
		"Identity by default.": func() error {
			return has(page(t, "docs/mesh.md"), "| `--ca CA` | none |", "| `--token-issuer URL` | none |")
		},
		"Kubernetes.": func() error {
			for _, p := range ours(t) {
				for imported := range p.imports {
					if strings.HasPrefix(p.path, "mesh") && strings.HasPrefix(imported, "k8s.io/client-go") {
						return fmt.Errorf("%s imports %s", p.path, imported)
					}
				}
			}
			return nil
		},
		"DNS.": func() error {
			for _, file := range files(t, filepath.Join(moduleRoot(t), "mesh"), ".go") {
				if strings.Contains(read(t, file), "NameTable") {
					return fmt.Errorf("%s has a name table", file)
				}
			}
			return nil
		},
		"Wasm.": func() error {
			return has(page(t, "mesh/config/schema.go"), `"extensions.istio.io/WasmPlugin":        "proxies are not extended"`)
		},
	}
	items := regexp.MustCompile(`(?m)^- \*\*(.*?)\*\*`).FindAllStringSubmatch(section, -1)
	for _, m := range items {
		check, ok := checks[m[1]]
		if !ok {
			t.Errorf("docs/mesh.md says %q is not there yet: add a check of it", m[1])
			continue
		}
		delete(checks, m[1])
		if err := check(); err != nil {
			t.Errorf("docs/mesh.md says %q is not there yet: %v", m[1], err)
		}
	}
	if len(checks) > 0 {
		t.Errorf("docs/mesh.md does not say any more that these are not there: %q", slices.Sorted(maps.Keys(checks)))
	}
}

func has(text string, wanted ...string) error {
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			return fmt.Errorf("there is no %q", w)
		}
	}
	return nil
}

// The image for pods of Istio, which users make of the release's, is the one that the Dockerfile makes.
func TestIstio_imageIsThatOfTheDockerfile(t *testing.T) {
	instructions := func(text string) (all []string) {
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			switch word, _, _ := strings.Cut(line, " "); word {
			case "COPY", "USER", "EXPOSE", "ENTRYPOINT", "CMD":
				all = append(all, strings.ReplaceAll(line, " /out/", " /"))
			}
		}
		return all
	}
	_, said, _ := strings.Cut(page(t, "docs/istio.md"), "<<'END'\n")
	said, _, _ = strings.Cut(said, " END\n")
	_, stage, _ := strings.Cut(page(t, "Dockerfile"), " AS with-envoy\n")
	stage, _, _ = strings.Cut(stage, "\nFROM ")
	if got, want := instructions(said), instructions(stage); !slices.Equal(got, want) || len(want) < 6 {
		t.Errorf("docs/istio.md makes the image by\n%s\nand the Dockerfile by\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Each row of the table of invariants, and each room, is where docs/architecture.md says it is.
func TestArchitecture_placesExist(t *testing.T) {
	root, text := moduleRoot(t), page(t, "docs/architecture.md")
	exists := func(path string) {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(path))); err != nil {
			t.Errorf("docs/architecture.md: %s does not exist", path)
		}
	}
	rows := regexp.MustCompile(`(?m)^\| I\d+ \|[^|]*\| (.*) \|$`).FindAllStringSubmatch(text, -1)
	if len(rows) < 12 {
		t.Fatalf("%d rows of invariants", len(rows))
	}
	for _, row := range rows {
		dir := ""
		for _, place := range strings.Split(row[1], ", ") {
			if found := regexp.MustCompile("^`([^`]+)`(?: (\\S+\\.go))?$").FindStringSubmatch(place); found != nil {
				dir, place = found[1], found[2]
			}
			exists(dir + "/" + place)
		}
	}
	_, rooms, _ := strings.Cut(text, "      agent/cache  ")
	rooms, _, _ = strings.Cut(rooms, "      agent/store  ")
	listed := regexp.MustCompile(`(?m)^        (\w+)  `).FindAllStringSubmatch(rooms, -1)
	var names []string
	for _, room := range listed {
		names = append(names, room[1])
	}
	entries, err := os.ReadDir(filepath.Join(root, "agent", "cache"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != "testdata" && !slices.Contains(names, e.Name()) {
			t.Errorf("docs/architecture.md does not list agent/cache/%s", e.Name())
		}
	}
	for _, name := range names {
		exists("agent/cache/" + name)
	}
}
