package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// debianPins are the packages of Debian in the image with Envoy.
//
//go:embed debian.txt
var debianPins string

// debian is where packages of Debian come from.
type debian struct {
	dir       string // of downloads
	snapshots string // URL of Debian's snapshots
	// newer allows the package that the archive has now, if the pinned one can be had nowhere.
	newer bool
	say   func(format string, args ...any)
}

// pin is a package of Debian.
type pin struct{ name, version, arch, sha256, license string }

// file is the name that apt-get gives the package.
func (p pin) file() string { return fmt.Sprintf("%s_%s_%s.deb", p.name, p.version, p.arch) }

func (p pin) String() string {
	return strings.Join([]string{p.name, p.version, p.arch, p.sha256, p.license}, " ")
}

// upstream is the version without Debian's revision, which is all that changes in a release of Debian.
func (p pin) upstream() string { return p.version[:max(0, strings.LastIndex(p.version, "-"))] }

// parsePins reads lines of name, version, architecture, sha256 and license.
func parsePins(text string) (pins []pin, err error) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 5 || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(f[3]) {
			return nil, fmt.Errorf("debian.txt: %q: want name, version, architecture, sha256 and license", line)
		}
		pins = append(pins, pin{f[0], f[1], f[2], f[3], f[4]})
	}
	return pins, nil
}

// fetch has a package of Debian in the folder of downloads and returns it: the pinned one, by apt-get while Debian's archive has
// it, and from Debian's snapshots afterwards. The package that it returns is another one only with newer.
func (d debian) fetch(p pin) (pin, error) {
	at := filepath.Join(d.dir, p.file())
	if _, err := os.Stat(at); err != nil {
		_, notInArchive := aptDownload(d.dir, p.name+"="+p.version, p.arch)
		var notInSnapshots error
		if notInArchive != nil {
			notInSnapshots = d.fromSnapshots(p)
		}
		if notInSnapshots != nil && d.newer {
			newer, err := current(d.dir, p)
			if err == nil {
				d.say("  %s %s for %s can be had no more: the image has %s, which Debian's archive has now", p.name, p.version, p.arch, newer.version)
			}
			return newer, err
		}
		if notInSnapshots != nil {
			return pin{}, fmt.Errorf("%s can be had neither from Debian's archive, which keeps the newest version only, nor from its snapshots: put it into %s, pin what Debian has now with `make debian-pins`, take that for once with RELEASEFLAGS=-newer-debian, or leave the image with Envoy out with RELEASEFLAGS=-without-envoy: %w",
				p.file(), d.dir, errors.Join(notInArchive, notInSnapshots))
		}
	}
	sum, err := sumOf(at)
	if err != nil {
		return pin{}, err
	}
	if sum != p.sha256 {
		return pin{}, fmt.Errorf("%s: its sha256 is %s, want %s: remove the file and try again", at, sum, p.sha256)
	}
	return p, nil
}

// current has the package that Debian's archive has now in a folder, and returns it. apt-get has checked it: Debian signs the lists
// of packages, which have their hashes.
func current(dir string, p pin) (pin, error) {
	file, err := aptDownload(dir, p.name, p.arch)
	if err != nil {
		return pin{}, err
	}
	newer := p
	f := strings.Split(strings.TrimSuffix(file, ".deb"), "_")
	if len(f) != 3 || f[0] != p.name || f[2] != p.arch {
		return pin{}, fmt.Errorf("apt-get has downloaded %s for %s on %s", file, p.name, p.arch)
	}
	if newer.version, err = url.PathUnescape(f[1]); err != nil { // apt escapes colons
		return pin{}, err
	}
	if newer.upstream() != p.upstream() {
		return pin{}, fmt.Errorf("the archive of this machine's apt-get has %s %s, and pinned is %s: it is not that of Debian 12", p.name, newer.version, p.version)
	}
	newer.sha256, err = sumOf(filepath.Join(dir, file))
	return newer, err
}

// aptDownload fetches a package, NAME or NAME=VERSION, of any architecture into a folder, and returns the name of the file. The lists
// of the machine are for its own architecture only, so it has some of its own. Packages that are not signed are an error, however
// the machine is set up.
func aptDownload(dir, name, arch string) (file string, err error) {
	state, err := os.MkdirTemp(dir, "apt-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	for _, name := range []string{"state/lists/partial", "cache/archives/partial", "got"} {
		if err := os.MkdirAll(filepath.Join(state, name), directory); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(filepath.Join(state, "status"), nil, regular); err != nil {
		return "", err
	}
	options := []string{"-qq", "-o", "Dir::State=" + filepath.Join(state, "state"), "-o", "Dir::State::status=" + filepath.Join(state, "status"),
		"-o", "Dir::Cache=" + filepath.Join(state, "cache"), "-o", "APT::Architecture=" + arch, "-o", "APT::Architectures=" + arch, "-o", "APT::Sandbox::User=root",
		"-o", "Acquire::AllowInsecureRepositories=false", "-o", "APT::Get::AllowUnauthenticated=false"}
	for _, command := range [][]string{{"update"}, {"download", name}} {
		cmd := exec.Command("apt-get", append(slices.Clone(options), command...)...)
		cmd.Dir = filepath.Join(state, "got")
		if _, err := output(cmd); err != nil {
			return "", err
		}
	}
	got, err := filepath.Glob(filepath.Join(state, "got", "*.deb"))
	if err != nil || len(got) != 1 {
		return "", fmt.Errorf("apt-get download %s for %s: it has downloaded %q", name, arch, got)
	}
	file = filepath.Base(got[0])
	return file, os.Rename(got[0], filepath.Join(dir, file))
}

// maxPackage bounds a package from the snapshots, in bytes.
const maxPackage = 64 << 20

var sha1Hex = regexp.MustCompile(`^[0-9a-f]{40}$`)

// fromSnapshots fetches a package from Debian's snapshots, which keep every version, by their API
// (https://salsa.debian.org/snapshot-team/snapshot/blob/master/API). Whoever calls checks the hash.
func (d debian) fromSnapshots(p pin) error {
	text, err := get(d.snapshots+"/mr/binary/"+url.PathEscape(p.name)+"/"+url.PathEscape(p.version)+"/binfiles", 1<<20)
	if err != nil {
		return err
	}
	var files struct {
		Result []struct{ Hash, Architecture string } `json:"result"`
	}
	if err := json.Unmarshal(text, &files); err != nil {
		return fmt.Errorf("%s: %w", d.snapshots, err)
	}
	for _, f := range files.Result {
		if f.Architecture != p.arch || !sha1Hex.MatchString(f.Hash) {
			continue
		}
		data, err := get(d.snapshots+"/file/"+f.Hash, maxPackage)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(d.dir, p.file()), data, regular)
	}
	return fmt.Errorf("%s has no %s", d.snapshots, p.file())
}

// get returns what an URL answers, at most so many bytes.
func get(from string, limit int64) (data []byte, err error) {
	resp, err := (&http.Client{Timeout: 2 * time.Minute}).Get(from)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", from, resp.Status)
	}
	if data, err = io.ReadAll(io.LimitReader(resp.Body, limit+1)); err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s: it is longer than %d bytes", from, limit)
	}
	return data, err
}

// pinAgain pins what Debian's archive has now in a file of pins, and says what has changed.
func pinAgain(file string, out io.Writer) (err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "holdfast-debian-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return repin(file, string(text), func(p pin) (pin, error) { return current(dir, p) }, out)
}

// repin writes a file of pins again, with what latest returns for each; the rest of its text stays.
func repin(file, text string, latest func(pin) (pin, error), out io.Writer) error {
	pins, err := parsePins(text)
	if err != nil {
		return err
	}
	changed := text
	for _, p := range pins {
		now, err := latest(p)
		if err != nil {
			return err
		}
		state := "is the newest"
		if now != p {
			state = "becomes " + now.version
			line := regexp.MustCompile(`(?m)^[ \t]*` + strings.Join(strings.Fields(regexp.QuoteMeta(p.String())), `[ \t]+`) + `[ \t]*$`)
			changed = line.ReplaceAllLiteralString(changed, now.String())
		}
		if _, err := fmt.Fprintf(out, "%s %s for %s %s\n", p.name, p.version, p.arch, state); err != nil {
			return err
		}
	}
	if changed == text {
		return nil
	}
	return os.WriteFile(file, []byte(changed), regular)
}
