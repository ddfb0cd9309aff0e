package deploy

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/dockerfile"
)

// entrypoint is the binary in the images.
const entrypoint = "/usr/local/bin/holdfast"

// version is what the images are built as.
const version = "v0.0.0-test"

// readDockerfile reads the Dockerfile at the root of the repository.
func readDockerfile(t testing.TB) dockerfile.Dockerfile {
	t.Helper()
	all, err := dockerfile.Read(root(t))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// arg returns the default of an ARG.
func arg(t testing.TB, all dockerfile.Dockerfile, stage, name string) string {
	t.Helper()
	value := all.Arg(stage, name)
	if value == "" {
		t.Fatalf("Dockerfile: stage %q has no ARG %s with a default", stage, name)
	}
	return value
}

// native is the root directory that the stage "build" makes for this machine; one for
// all tests, which TestMain removes.
var native struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if native.dir != "" {
		_ = os.RemoveAll(native.dir)
	}
	os.Exit(code)
}

// rootFS returns the directory that the stage "build" makes for this machine.
func rootFS(t testing.TB) string {
	t.Helper()
	all, repository := readDockerfile(t), root(t)
	native.once.Do(func() {
		if native.dir, native.err = os.MkdirTemp("", "holdfast-image-"); native.err == nil {
			native.err = all.Build(native.dir, repository, runtime.GOARCH, version)
		}
	})
	if native.err != nil {
		t.Fatal(native.err)
	}
	return native.dir
}

// binary returns the holdfast of the image for this machine.
func binary(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the image's binary is Linux'")
	}
	return filepath.Join(rootFS(t), entrypoint)
}

func TestTheImagesBinaryRunsAndSaysItsVersion(t *testing.T) {
	out, err := exec.Command(binary(t), "version", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Version string }
	if err := json.Unmarshal(out, &said); err != nil || said.Version != version {
		t.Errorf("holdfast version: %s (%v), want %s", out, err, version)
	}
}

func TestTheImagesBinariesAreStaticForBothArchitectures(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			dir := t.TempDir()
			if arch == runtime.GOARCH {
				dir = rootFS(t)
			} else if testing.Short() {
				t.Skip("-short: compiling everything for another architecture takes minutes")
			} else if err := readDockerfile(t).Build(dir, root(t), arch, version); err != nil {
				t.Fatal(err)
			}
			isStatic(t, filepath.Join(dir, entrypoint), machine)
			isStatic(t, filepath.Join(dir, entrypoint+"-mesh"), machine)
			isStatic(t, filepath.Join(dir, entrypoint+"-injector"), machine)
		})
	}
}

// isStatic checks that a program is for a machine, and needs nothing of the image.
func isStatic(t *testing.T, program string, machine elf.Machine) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if f.Machine != machine {
		t.Errorf("it is for %s", f.Machine)
	}
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("it needs an interpreter, and the image has none")
	}
	if libraries, _ := f.ImportedLibraries(); len(libraries) > 0 {
		t.Errorf("it needs %s, and the image has no library", libraries)
	}
	if f.Section(".symtab") != nil {
		t.Error("it is not stripped: -s -w are missing")
	}
}

func TestWhatTheImagesCopyIsMade(t *testing.T) {
	dir := rootFS(t)
	copied := make(map[string]int)
	for _, i := range readDockerfile(t) {
		if i.Op != "COPY" || !slices.Contains(i.Flags, "--from=build") {
			continue
		}
		from, _, _ := strings.Cut(i.Args, " ")
		below, ok := strings.CutPrefix(from, arg(t, readDockerfile(t), "build", "ROOTFS"))
		if !ok {
			t.Errorf("COPY %s is not of the stage's ROOTFS", i.Args)
		}
		if _, err := os.Stat(filepath.Join(dir, below)); err != nil {
			t.Errorf("COPY %s: %v", i.Args, err)
		}
		copied[i.Stage]++
	}
	if copied["holdfast"] == 0 || copied["with-envoy"] == 0 || copied["mesh"] == 0 {
		t.Errorf("the stages copy %v", copied)
	}
	authorities, err := os.ReadFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || !bytes.Contains(authorities, []byte("BEGIN CERTIFICATE")) {
		t.Errorf("the image has no authorities: %v", err)
	}
	users, err := os.ReadFile(filepath.Join(dir, "etc/passwd"))
	if err != nil || !strings.Contains(string(users), ":65532:65532:") {
		t.Errorf("the image has no user 65532: %q, %v", users, err)
	}
}

func TestRunsOfTheDockerfileAreThoseThatAreTested(t *testing.T) {
	all := readDockerfile(t)
	for _, i := range all {
		if i.Op != "RUN" {
			continue
		}
		if i.Stage != "build" {
			t.Errorf("stage %s has a RUN, which nobody tests: %s", i.Stage, i.Args)
		}
		if strings.Contains(i.Args, arg(t, all, "build", "ROOTFS")+"/") {
			t.Errorf("RUN %s: want $ROOTFS", i.Args)
		}
	}
	build := strings.Join(all.Of("build", "RUN"), "\n")
	for _, want := range []string{"CGO_ENABLED=0", "GOOS=$TARGETOS", "GOARCH=$TARGETARCH", "-trimpath", "-tags=grpcnotrace,disable_pgv", "-s -w", "main.version=$VERSION"} {
		if !strings.Contains(build, want) {
			t.Errorf("the build lacks %s", want)
		}
	}
	if from := slices.IndexFunc(all, func(i dockerfile.Instruction) bool { return i.Op == "FROM" && i.Stage == "build" }); !slices.Contains(all[from].Flags, "--platform=$BUILDPLATFORM") {
		t.Error("the stage build is not of $BUILDPLATFORM: another architecture would be emulated")
	}
	if all[len(all)-1].Stage != "holdfast" {
		t.Errorf("`docker build .` makes the stage %s", all[len(all)-1].Stage)
	}
}

func TestImagesAreLabelledAndNotRoots(t *testing.T) {
	all := readDockerfile(t)
	for stage, image := range map[string]struct{ entrypoint, ports string }{
		"holdfast": {entrypoint, fmt.Sprint(healthPort)}, "with-envoy": {entrypoint, fmt.Sprint(healthPort)},
		"mesh": {entrypoint + "-mesh", "15010 15012 15020"},
	} {
		labels := strings.Join(all.Of(stage, "LABEL"), " ")
		for _, name := range []string{"title", "description", "source", "version", "revision", "licenses"} {
			if !regexp.MustCompile(`org\.opencontainers\.image\.` + name + `="[^"]+"`).MatchString(labels) {
				t.Errorf("stage %s: no label %s", stage, name)
			}
		}
		for op, want := range map[string]string{"USER": "65532:65532", "EXPOSE": image.ports, "ENTRYPOINT": `["` + image.entrypoint + `"]`} {
			if got := all.Of(stage, op); !slices.Equal(got, []string{want}) {
				t.Errorf("stage %s: %s %q, want %q", stage, op, got, want)
			}
		}
	}
}

func TestManifestsAgreeWithTheImages(t *testing.T) {
	all := readDockerfile(t)
	official := arg(t, all, "", "ENVOY_IMAGE")
	if !strings.HasSuffix(official, "-v"+envoytest.Version) {
		t.Errorf("ENVOY_IMAGE is %s, and tests run Envoy %s", official, envoytest.Version)
	}
	for _, d := range built(t) {
		for _, c := range containers(d.pod(t).Spec.Template.Spec) {
			if c.Name == "envoy" && !strings.HasPrefix(d.name, "istio") && c.Image != official {
				t.Errorf("%s: Envoy is %s, want that of the Dockerfile, %s", d.name, c.Image, official)
			}
			if !isHoldfast(c) {
				continue
			}
			if len(c.Command) > 0 {
				t.Errorf("%s: container %s: command %q instead of the entrypoint", d.name, c.Name, c.Command)
			}
			if *c.SecurityContext.RunAsUser != 65532 {
				t.Errorf("%s: container %s runs as %d, the image as 65532", d.name, c.Name, *c.SecurityContext.RunAsUser)
			}
			if child := slices.Contains(c.Args, "--"); child != strings.HasPrefix(c.Image, "holdfast-envoy:") {
				t.Errorf("%s: container %s: image %s: runs Envoy: %t", d.name, c.Name, c.Image, child)
			} else if child && c.Args[slices.Index(c.Args, "--")+1] != "/usr/local/bin/envoy" {
				t.Errorf("%s: container %s: Envoy's image has it in /usr/local/bin", d.name, c.Name)
			}
		}
	}
}

func TestTheImagesGoIsRecentEnough(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	wanted := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(mod)
	has := arg(t, readDockerfile(t), "", "GO_VERSION")
	if wanted == nil || compareVersions(has, string(wanted[1])) < 0 {
		t.Errorf("GO_VERSION is %s, and go.mod wants %s", has, wanted[1])
	}
}

// compareVersions compares versions of numbers and dots.
func compareVersions(a, b string) int {
	number := func(s string) (n []int) {
		for part := range strings.SplitSeq(s, ".") {
			var one int
			_, _ = fmt.Sscan(part, &one)
			n = append(n, one)
		}
		return n
	}
	return slices.Compare(number(a), number(b))
}

func TestNothingThatIsCompiledIsKeptFromTheBuild(t *testing.T) {
	ignored, err := os.ReadFile(filepath.Join(root(t), ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{if .Module}}{{if .Module.Main}}{{range .GoFiles}}{{$.Dir}}/{{.}}\n{{end}}{{range .EmbedFiles}}{{$.Dir}}/{{.}}\n{{end}}{{end}}{{end}}{{end}}", "./cmd/holdfast")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(out))
	if len(files) < 50 {
		t.Fatalf("only %d files are compiled: %s", len(files), out)
	}
	for _, file := range files {
		name, err := filepath.Rel(root(t), file)
		if err != nil {
			t.Fatal(err)
		}
		for pattern := range strings.Lines(string(ignored)) {
			pattern = strings.TrimSpace(pattern)
			if pattern == "" || strings.HasPrefix(pattern, "#") {
				continue
			}
			if matches(pattern, filepath.ToSlash(name)) {
				t.Errorf("%s is compiled, and .dockerignore leaves it out by %s", name, pattern)
			}
		}
	}
}

// matches reports whether a pattern of .dockerignore, of those that this one has, leaves
// a file out.
func matches(pattern, name string) bool {
	rest, anywhere := strings.CutPrefix(pattern, "**/")
	parts := strings.Split(name, "/")
	if !anywhere {
		parts = parts[:1]
	}
	return slices.ContainsFunc(parts, func(part string) bool {
		ok, _ := filepath.Match(rest, part)
		return ok
	})
}
