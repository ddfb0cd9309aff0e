package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// source is the exported source tree that a release is made of.
type source struct {
	dir     string
	commit  string // 40 hexadecimal digits
	changed bool   // it has changes that are not in the commit
	time    time.Time
}

// versions are those of semantic versioning, with a v and without metadata: a "+" may not stand in a tag of an image.
var versions = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// checkVersion returns what is wrong with the version of a release.
func checkVersion(version string) error {
	if version == "" {
		return errors.New("no version: give one, as in `make release VERSION=v0.1.0`")
	}
	if !versions.MatchString(version) {
		return fmt.Errorf("version %q: want vMAJOR.MINOR.PATCH, and -PRERELEASE behind it if it is one, such as v0.1.0 or v0.1.0-rc.1", version)
	}
	return nil
}

// export copies what a repository has at its HEAD into dir. Changes that are not committed are an error, or with dirty are
// exported too. The time is epoch, the value of SOURCE_DATE_EPOCH in seconds since 1970, or else that of the commit.
func export(repository, dir string, dirty bool, epoch string) (source, error) {
	s := source{dir: dir}
	head, err := git(repository, "rev-parse", "HEAD")
	if err != nil {
		return s, fmt.Errorf("a release is made of a commit, and %s has none: %w", repository, err)
	}
	s.commit = strings.TrimSpace(string(head))
	status, err := git(repository, "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return s, err
	}
	s.changed = len(status) > 0
	if s.changed && !dirty {
		return s, fmt.Errorf("these files differ from the commit %.12s: commit them, or make what is not a release with DIRTY=1:\n%s", s.commit, status)
	}
	if s.time, err = timeOf(repository, epoch); err != nil {
		return s, err
	}
	if dirty {
		return s, exportTree(repository, dir)
	}
	archive, err := git(repository, "archive", "--format=tar", s.commit)
	if err != nil {
		return s, err
	}
	return s, unpack(archive, dir)
}

// timeOf returns the time that everything in the release has.
func timeOf(repository, epoch string) (time.Time, error) {
	if epoch == "" {
		out, err := git(repository, "log", "-1", "--format=%ct")
		if err != nil {
			return time.Time{}, err
		}
		epoch = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q: want seconds since 1970", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// exportTree copies the files of the working tree that git knows or would add.
func exportTree(repository, dir string) error {
	list, err := git(repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.Trim(string(list), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(repository, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		}
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			continue // nothing that is built is a link
		}
		data, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			return err
		}
		if err := put(dir, name, data, info.Mode()); err != nil {
			return err
		}
	}
	return nil
}

// unpack writes the regular files of a tar archive of git.
func unpack(archive []byte, dir string) error {
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := put(dir, header.Name, data, header.FileInfo().Mode()); err != nil {
			return err
		}
	}
}

// put writes a file below dir, which must be its place.
func put(dir, name string, data []byte, mode fs.FileMode) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%s: it would be outside of the folder", name)
	}
	if mode&0o111 != 0 {
		mode = executable
	} else {
		mode = regular
	}
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(at), directory); err != nil {
		return err
	}
	if err := os.WriteFile(at, data, mode); err != nil {
		return err
	}
	return os.Chmod(at, mode) // whatever the umask is
}

func git(repository string, args ...string) ([]byte, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = repository
	return output(cmd)
}

// output runs a command and returns its standard output; an error has its standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
