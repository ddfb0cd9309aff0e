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
)

// entrypoint is the binary in the images.
const entrypoint = "/usr/local/bin/holdfast"

// version is what the images are built as.
const version = "v0.0.0-test"

// instruction is one of a Dockerfile.
type instruction struct {
	stage string // "" before the first FROM
	op    string
	flags []string // --mount=…, --from=…
	args  string
}

// dockerfile reads the Dockerfile at the root of the repository.
func dockerfile(t testing.TB) []instruction {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	return parseDockerfile(string(data))
}

func parseDockerfile(text string) []instruction {
	var (
		all   []instruction
		stage string
		whole string
	)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if part, more := strings.CutSuffix(line, "\\"); more {
			whole += part
			continue
		}
		op, args, _ := strings.Cut(whole+line, " ")
		whole = ""
		i := instruction{op: strings.ToUpper(op), args: strings.TrimSpace(args)}
		for strings.HasPrefix(i.args, "--") {
			flag, rest, _ := strings.Cut(i.args, " ")
			i.flags, i.args = append(i.flags, flag), strings.TrimSpace(rest)
		}
		if i.op == "FROM" {
			words := strings.Fields(i.args)
			stage = words[len(words)-1]
		}
		i.stage = stage
		all = append(all, i)
	}
	return all
}

// of returns the arguments of an instruction in a stage.
func of(all []instruction, stage, op string) (args []string) {
	for _, i := range all {
		if i.stage == stage && i.op == op {
			args = append(args, i.args)
		}
	}
	return args
}

// arg returns the default of an ARG.
func arg(t testing.TB, all []instruction, stage, name string) string {
	t.Helper()
	for _, a := range of(all, stage, "ARG") {
		if value, ok := strings.CutPrefix(a, name+"="); ok {
			return value
		}
	}
	t.Fatalf("Dockerfile: stage %q has no ARG %s with a default", stage, name)
	return ""
}

// buildStage runs the commands of the stage "build" into a directory that stands for its
// ROOTFS.
func buildStage(dir, repository, arch string, all []instruction) error {
	for _, command := range of(all, "build", "RUN") {
		cmd := exec.Command("sh", "-ec", command)
		cmd.Dir = repository // WORKDIR, with what COPY . . puts there
		cmd.Env = append(os.Environ(), "ROOTFS="+dir, "TARGETOS=linux", "TARGETARCH="+arch, "VERSION="+version)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("RUN %s: %w\n%s", command, err, out)
		}
	}
	return nil
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
	all, repository := dockerfile(t), root(t)
	native.once.Do(func() {
		if native.dir, native.err = os.MkdirTemp("", "holdfast-image-"); native.err == nil {
			native.err = buildStage(native.dir, repository, runtime.GOARCH, all)
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
			} else if err := buildStage(dir, root(t), arch, dockerfile(t)); err != nil {
				t.Fatal(err)
			}
			isStatic(t, filepath.Join(dir, entrypoint), machine)
			isStatic(t, filepath.Join(dir, entrypoint+"-mesh"), machine)
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
	for _, i := range dockerfile(t) {
		if i.op != "COPY" || !slices.Contains(i.flags, "--from=build") {
			continue
		}
		from, _, _ := strings.Cut(i.args, " ")
		below, ok := strings.CutPrefix(from, arg(t, dockerfile(t), "build", "ROOTFS"))
		if !ok {
			t.Errorf("COPY %s is not of the stage's ROOTFS", i.args)
		}
		if _, err := os.Stat(filepath.Join(dir, below)); err != nil {
			t.Errorf("COPY %s: %v", i.args, err)
		}
		copied[i.stage]++
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
	all := dockerfile(t)
	for _, i := range all {
		if i.op != "RUN" {
			continue
		}
		if i.stage != "build" {
			t.Errorf("stage %s has a RUN, which nobody tests: %s", i.stage, i.args)
		}
		if strings.Contains(i.args, arg(t, all, "build", "ROOTFS")+"/") {
			t.Errorf("RUN %s: want $ROOTFS", i.args)
		}
	}
	build := strings.Join(of(all, "build", "RUN"), "\n")
	for _, want := range []string{"CGO_ENABLED=0", "GOOS=$TARGETOS", "GOARCH=$TARGETARCH", "-trimpath", "-s -w", "main.version=$VERSION"} {
		if !strings.Contains(build, want) {
			t.Errorf("the build lacks %s", want)
		}
	}
	if from := slices.IndexFunc(all, func(i instruction) bool { return i.op == "FROM" && i.stage == "build" }); !slices.Contains(all[from].flags, "--platform=$BUILDPLATFORM") {
		t.Error("the stage build is not of $BUILDPLATFORM: another architecture would be emulated")
	}
	if all[len(all)-1].stage != "holdfast" {
		t.Errorf("`docker build .` makes the stage %s", all[len(all)-1].stage)
	}
}

func TestImagesAreLabelledAndNotRoots(t *testing.T) {
	all := dockerfile(t)
	for stage, image := range map[string]struct{ entrypoint, ports string }{
		"holdfast": {entrypoint, fmt.Sprint(healthPort)}, "with-envoy": {entrypoint, fmt.Sprint(healthPort)},
		"mesh": {entrypoint + "-mesh", "15010 15012 15014"},
	} {
		labels := strings.Join(of(all, stage, "LABEL"), " ")
		for _, name := range []string{"title", "description", "source", "version", "revision", "licenses"} {
			if !regexp.MustCompile(`org\.opencontainers\.image\.` + name + `="[^"]+"`).MatchString(labels) {
				t.Errorf("stage %s: no label %s", stage, name)
			}
		}
		for op, want := range map[string]string{"USER": "65532:65532", "EXPOSE": image.ports, "ENTRYPOINT": `["` + image.entrypoint + `"]`} {
			if got := of(all, stage, op); !slices.Equal(got, []string{want}) {
				t.Errorf("stage %s: %s %q, want %q", stage, op, got, want)
			}
		}
	}
}

func TestManifestsAgreeWithTheImages(t *testing.T) {
	all := dockerfile(t)
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
	has := arg(t, dockerfile(t), "", "GO_VERSION")
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
