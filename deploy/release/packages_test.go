package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A package's unit differs from that of deploy/systemd in where programs are, and in nothing else.
func TestUnitsOfPackagesStartThePackagesPrograms(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range linuxPackages {
		for name, file := range p.units {
			seen[file] = true
			before, after := strings.Split(read(t, "deploy", "systemd", file), "\n"), strings.Split(packagedUnit(read(t, "deploy", "systemd", file)), "\n")
			for i := range before {
				if before[i] != after[i] && !regexp.MustCompile(`^Exec(Start|StartPre)=(/usr/bin/holdfast(-mesh)? |envoy )`).MatchString(after[i]) {
					t.Errorf("%s: %q became %q", name, before[i], after[i])
				}
			}
			if text := strings.Join(after, "\n"); strings.Contains(text, "/usr/local") || !strings.Contains(text, "ExecStart=") {
				t.Errorf("%s:\n%s", name, text)
			}
		}
		for _, file := range p.configs {
			seen[file] = true
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, "deploy", "systemd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !seen[e.Name()] {
			t.Errorf("no package has deploy/systemd/%s", e.Name())
		}
	}
}

// What units name must be made by the package: users, directories, files of settings.
func TestPackagesHaveWhatTheirUnitsName(t *testing.T) {
	for _, p := range linuxPackages {
		users, err := scripts.ReadFile("packages/" + p.name + ".sysusers")
		if err != nil {
			t.Fatal(err)
		}
		postinst, err := scripts.ReadFile("packages/" + p.name + ".postinst")
		if err != nil {
			t.Fatal(err)
		}
		prerm, err := scripts.ReadFile("packages/" + p.name + ".prerm")
		if err != nil {
			t.Fatal(err)
		}
		for name, file := range p.units {
			unit := packagedUnit(read(t, "deploy", "systemd", file))
			for _, m := range regexp.MustCompile(`(?m)^(User|StateDirectory)=(.*)$`).FindAllStringSubmatch(unit, -1) {
				if m[1] == "User" && (!strings.Contains(string(users), "\nu "+m[2]+" ") && !strings.HasPrefix(string(users), "u "+m[2]+" ") || !strings.Contains(string(postinst), m[2])) {
					t.Errorf("%s: user %s is not made", name, m[2])
				}
				if m[1] == "StateDirectory" && !strings.Contains(string(postinst), "/var/lib/"+m[2]+"\n") {
					t.Errorf("%s: /var/lib/%s is not made", name, m[2])
				}
			}
			for _, config := range regexp.MustCompile(`/etc/\S+`).FindAllString(regexp.MustCompile(`(?m)^#.*$`).ReplaceAllString(unit, ""), -1) {
				if p.configs[config] == "" {
					t.Errorf("%s: %s is not in the package", name, config)
				}
			}
			if stops := strings.Replace(name, "@.", "@*.", 1); !strings.Contains(string(prerm), stops) || !strings.Contains(string(prerm), name) {
				t.Errorf("%s is not stopped and disabled when the package is removed", name)
			}
		}
		for _, config := range p.configs {
			for _, dir := range regexp.MustCompile(`/etc/holdfast-mesh/documents`).FindAllString(read(t, "deploy", "systemd", config), -1) {
				if !slices.Contains(p.dirs, dir) {
					t.Errorf("%s names %s, which is not in the package", config, dir)
				}
			}
		}
	}
}

func TestEachManualPageIsOfOnePackage(t *testing.T) {
	for page, want := range map[string]string{"holdfast.1": "holdfast", "holdfast-run.1": "holdfast", "holdfast-mesh.1": "holdfast-mesh", "holdfast-mesh-serve.1": "holdfast-mesh", "holdfast-injector-serve.1": "holdfast-injector"} {
		if got := manualOf(page); got != want {
			t.Errorf("%s is of %s", page, got)
		}
	}
}
