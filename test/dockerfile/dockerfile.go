// Package dockerfile reads the Dockerfile of this repository, and does what its stage "build" does without a container
// engine, for tests.
package dockerfile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Instruction is one of a Dockerfile.
type Instruction struct {
	Stage string // "" before the first FROM
	Op    string
	Flags []string // --mount=…, --from=…
	Args  string
}

// Dockerfile is its instructions, in order.
type Dockerfile []Instruction

// Read reads the Dockerfile at the root of a repository.
func Read(repository string) (Dockerfile, error) {
	data, err := os.ReadFile(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		return nil, err
	}
	return parse(string(data)), nil
}

func parse(text string) Dockerfile {
	var (
		all   Dockerfile
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
		i := Instruction{Op: strings.ToUpper(op), Args: strings.TrimSpace(args)}
		for strings.HasPrefix(i.Args, "--") {
			flag, rest, _ := strings.Cut(i.Args, " ")
			i.Flags, i.Args = append(i.Flags, flag), strings.TrimSpace(rest)
		}
		if i.Op == "FROM" {
			words := strings.Fields(i.Args)
			stage = words[len(words)-1]
		}
		i.Stage = stage
		all = append(all, i)
	}
	return all
}

// Of returns the arguments of an instruction in a stage.
func (d Dockerfile) Of(stage, op string) (args []string) {
	for _, i := range d {
		if i.Stage == stage && i.Op == op {
			args = append(args, i.Args)
		}
	}
	return args
}

// Arg returns the default of an ARG, "" if it has none.
func (d Dockerfile) Arg(stage, name string) string {
	for _, a := range d.Of(stage, "ARG") {
		if value, ok := strings.CutPrefix(a, name+"="); ok {
			return value
		}
	}
	return ""
}

// Build runs the commands of the stage "build" of a repository into a directory that stands for its ROOTFS. They are for
// Linux on an architecture, and the programs say that they are of a version.
func (d Dockerfile) Build(dir, repository, arch, version string) error {
	for _, command := range d.Of("build", "RUN") {
		cmd := exec.Command("sh", "-ec", command)
		cmd.Dir = repository // WORKDIR, with what COPY . . puts there
		cmd.Env = append(os.Environ(), "ROOTFS="+dir, "TARGETOS=linux", "TARGETARCH="+arch, "VERSION="+version)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("RUN %s: %w\n%s", command, err, out)
		}
	}
	return nil
}
