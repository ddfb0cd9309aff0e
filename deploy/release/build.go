package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// program is a command built for a platform.
type program struct {
	command  string
	platform platform
	data     []byte
	info     *debug.BuildInfo
}

// goVersion returns the version of Go that a release is built with, such as go1.26.8: that of the Dockerfile.
func goVersion(source string) (string, error) {
	data, err := os.ReadFile(filepath.Join(source, "Dockerfile"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\S+)$`).FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("no ARG GO_VERSION with a default in the Dockerfile, which is the version of Go for a release")
	}
	return "go" + string(m[1]), nil
}

// checkToolchain returns an error if this program runs with another Go than the pinned one, whose compression and archives
// could differ.
func checkToolchain(pinned string) error {
	if running := runtime.Version(); running != pinned {
		return fmt.Errorf("a release is made with %s, and this is %s: call `make release`, which runs it with GOTOOLCHAIN=%s", pinned, running, pinned)
	}
	return nil
}

// goEnv is the environment of every go command: nothing of the caller's settings changes the result.
func goEnv(toolchain string, more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOMODCACHE", "GOCACHE", "GOPATH", "GOTMPDIR", "GOAUTH", "GONOSUMCHECK", "GOINSECURE":
			return false // where modules come from; go.sum says what they are
		}
		return strings.HasPrefix(name, "GO") || strings.HasPrefix(name, "CGO")
	})
	return append(env, append([]string{"GOTOOLCHAIN=" + toolchain, "GOENV=off", "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0"}, more...)...)
}

// buildCommands builds commands for a platform out of a source tree; it writes them to dir.
func buildCommands(source, dir, toolchain, version string, commands []string, p platform) ([]program, error) {
	if err := os.MkdirAll(dir, directory); err != nil {
		return nil, err
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace,disable_pgv", "-ldflags", "-s -w -buildid= -X main.version=" + version, "-o", dir + string(filepath.Separator)}
	for _, c := range commands {
		args = append(args, "./cmd/"+c)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = source
	cmd.Env = goEnv(toolchain, "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0")
	if _, err := output(cmd); err != nil {
		return nil, err
	}
	var built []program
	for _, c := range commands {
		data, err := os.ReadFile(filepath.Join(dir, c))
		if err != nil {
			return nil, err
		}
		info, err := buildinfo.Read(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("%s for %s: %w", c, p, err)
		}
		built = append(built, program{command: c, platform: p, data: data, info: info})
	}
	return built, nil
}

// shells are those for which there are completions, with the name that each gives the file of a command.
var shells = []struct {
	name string
	file func(command string) string
}{
	{"bash", func(c string) string { return c }},
	{"zsh", func(c string) string { return "_" + c }},
	{"fish", func(c string) string { return c + ".fish" }},
}

// completions are the scripts of a command, by shell.
type completions map[string][]byte

// completionsOf asks a program of this machine for its completions.
func completionsOf(program string) (completions, error) {
	all := make(completions)
	for _, shell := range shells {
		cmd := exec.Command(program, "completion", shell.name)
		cmd.Env = []string{} // no variable of the caller is a default in the script
		out, err := output(cmd)
		if err != nil {
			return nil, err
		}
		all[shell.name] = out
	}
	return all, nil
}

// notices returns the licenses of everything that is in the programs beside holdfast itself: licenses of the modules, as they
// stand in the module cache, and Go's.
func notices(source, toolchain string, programs []program) ([]byte, error) {
	versions := make(map[string]bool)
	for _, p := range programs {
		for _, dep := range p.info.Deps {
			m := module(dep)
			versions[m.Path+"@"+m.Version] = true
		}
	}
	cmd := exec.Command("go", "mod", "download", "-json")
	cmd.Dir = source
	cmd.Env = goEnv(toolchain)
	out, err := output(cmd)
	if err != nil {
		return nil, err
	}
	type mod struct{ Path, Version, Dir string }
	var mods []mod
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var m mod
		if err := d.Decode(&m); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		if versions[m.Path+"@"+m.Version] {
			delete(versions, m.Path+"@"+m.Version)
			mods = append(mods, m)
		}
	}
	if len(versions) > 0 {
		return nil, fmt.Errorf("modules that go.mod does not name are in the programs: %v", versions)
	}
	cmd = exec.Command("go", "env", "GOROOT")
	cmd.Env = goEnv(toolchain)
	if out, err = output(cmd); err != nil {
		return nil, err
	}
	mods = append(mods, mod{Path: "the Go standard library", Version: toolchain, Dir: strings.TrimSpace(string(out))})
	slices.SortFunc(mods, func(a, b mod) int { return strings.Compare(a.Path, b.Path) })
	var text bytes.Buffer
	fmt.Fprintf(&text, "Licenses of the software that the programs of holdfast contain.\n")
	for _, m := range mods {
		files, err := licenses(m.Dir)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s %s has no file with a license, so it cannot be distributed", m.Path, m.Version)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&text, "\n%s\n%s %s: %s\n\n%s\n", strings.Repeat("=", 80), m.Path, m.Version, filepath.Base(file), bytes.TrimSpace(data))
		}
	}
	return text.Bytes(), nil
}

var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents)([-.].*)?$`)

// licenses returns the files of a folder that have a license or a notice.
func licenses(dir string) (files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type().IsRegular() && licenseFile.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// module is the module that is really built: a replacement, if there is one.
func module(m *debug.Module) *debug.Module {
	if m.Replace != nil {
		return m.Replace
	}
	return m
}
