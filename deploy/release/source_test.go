package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestVersions(t *testing.T) {
	for version, ok := range map[string]bool{
		"v0.1.0": true, "v0.1.0-rc.1": true, "v10.20.30-a-b.c": true,
		"": false, "0.1.0": false, "v0.1": false, "v01.1.0": false, "v0.1.0+meta": false, "v0.1.0-": false, "977685e": false, "v0.1.0-3-g977685e-dirty!": false,
	} {
		if err := checkVersion(version); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestPlatforms(t *testing.T) {
	for list, want := range map[string]string{
		"": "[darwin/amd64 darwin/arm64 linux/amd64 linux/arm64]", "linux/arm64, linux/amd64": "[linux/amd64 linux/arm64]",
		"linux/amd64,linux/amd64": "[linux/amd64]", "windows/amd64": "", "linux": "",
	} {
		got, err := parsePlatforms(list)
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "linux/arm64") {
				t.Errorf("%q: %v, %v", list, got, err)
			}
			continue
		}
		var names []string
		for _, p := range got {
			names = append(names, p.String())
		}
		if err != nil || "["+strings.Join(names, " ")+"]" != want {
			t.Errorf("%q: %s, %v", list, names, err)
		}
	}
}

// repositoryWith is a git repository with one commit of a file.
func repositoryWith(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, command := range []string{
		"git init -q", "printf one > file", "printf '#!/bin/sh\n' > script", "chmod 0700 script", "git add .",
		"git -c user.name=n -c user.email=e commit -q -m m --date @1700000000",
	} {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=@1700000000 +0000", "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	return dir
}

func TestAReleaseIsMadeOfTheCommit(t *testing.T) {
	repository := repositoryWith(t)
	if err := os.WriteFile(filepath.Join(repository, "new"), []byte("n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s, err := export(repository, dir, false, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.commit) != 40 || s.changed || s.time.Unix() != 1700000000 {
		t.Errorf("the source is %+v", s)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != "one" {
		t.Errorf("file: %s, %v", text, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "script")); err != nil || info.Mode() != 0o755 {
		t.Errorf("script: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a file that is not in the commit was exported")
	}
	if s, err = export(repository, t.TempDir(), false, "5"); err != nil || s.time.Unix() != 5 {
		t.Errorf("with SOURCE_DATE_EPOCH=5: %v, %v", s.time, err)
	}
	if _, err = export(repository, t.TempDir(), false, "yesterday"); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("with SOURCE_DATE_EPOCH=yesterday: %v", err)
	}
}

func TestChangesAreNoRelease(t *testing.T) {
	repository := repositoryWith(t)
	if err := os.WriteFile(filepath.Join(repository, "file"), []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repository, "new"), []byte("n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := export(repository, t.TempDir(), false, ""); err == nil || !strings.Contains(err.Error(), " M file") || !strings.Contains(err.Error(), "commit them") {
		t.Errorf("the error is %v", err)
	}
	dir := t.TempDir()
	s, err := export(repository, dir, true, "")
	if err != nil || !s.changed {
		t.Fatalf("%+v, %v", s, err)
	}
	for name, want := range map[string]string{"file": "two", "new": "n"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); string(text) != want {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
	if _, err := export(t.TempDir(), t.TempDir(), false, ""); err == nil {
		t.Error("a folder without a repository was exported")
	}
}

func TestAFolderOfSomebodyElseIsNotEmptied(t *testing.T) {
	dir := t.TempDir()
	if err := mayWrite(dir); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	if err := mayWrite(filepath.Join(dir, "none")); err != nil {
		t.Errorf("a folder that does not exist: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := mayWrite(dir); err == nil || !strings.Contains(err.Error(), "DIST=") {
		t.Errorf("a folder with a file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, marker), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := mayWrite(dir); err != nil {
		t.Errorf("a folder of this program: %v", err)
	}
}
