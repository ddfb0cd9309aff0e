package main

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

// scripts are those that packages run, and the users that they make.
//
//go:embed packages
var scripts embed.FS

// maintainer is whom packages name. There is no mailing list, so it is the place where reports are read: dpkg, apt and RPM take an
// URL there, and only Debian's policy for its own archive wants an address of mail.
const maintainer = "holdfast developers <https://" + repository + "/issues>"

// linuxPackage is a package for Debian and for RPM, with the program of the same name.
type linuxPackage struct {
	name        string
	summary     string
	description string
	units       map[string]string // the name in the package: the file in deploy/systemd
	configs     map[string]string // the path in the package: the file in deploy/systemd
	dirs        []string
}

// linuxPackages are all packages.
var linuxPackages = []linuxPackage{
	{
		name: "holdfast", summary: "xDS agent that keeps an Envoy configured while its control plane is away",
		description: "holdfast runs beside Envoy, gets its configuration (xDS) from a control plane, and keeps the last one on\ndisk, so that Envoy keeps it and starts with it while no control plane answers.",
		units:       map[string]string{"holdfast.service": "holdfast.service", "holdfast@.service": "holdfast@.service", "holdfast-envoy.service": "envoy.service"},
		configs:     map[string]string{"/etc/holdfast/holdfast.yaml": "holdfast.yaml"},
	},
	{
		name: "holdfast-mesh", summary: "control plane for Envoy with Istio's API",
		description: "holdfast-mesh reads documents of Istio's API from a directory or from etcd, and configures Envoys and\nprograms with gRPC by xDS.",
		units:       map[string]string{"holdfast-mesh.service": "holdfast-mesh.service"},
		configs:     map[string]string{"/etc/holdfast-mesh/holdfast-mesh.env": "holdfast-mesh.env"},
		dirs:        []string{"/etc/holdfast-mesh/documents"},
	},
}

// packagedUnit is a unit of deploy/systemd for a package, which puts programs into /usr/bin. Envoy is in /usr/bin or in
// /usr/local/bin, depending on where it came from: systemd and holdfast look in both.
func packagedUnit(unit string) string {
	return strings.NewReplacer("/usr/local/bin/holdfast", "/usr/bin/holdfast", "/usr/local/bin/envoy", "envoy").Replace(unit)
}

// packaging is what packages of one architecture are made of.
type packaging struct {
	source, work string
	version      string // with a v
	at           time.Time
	arch         string
	programs     map[string][]byte
	completions  map[string]completions
	manuals      map[string][]byte
	notices      []byte
}

// formats are the kinds of packages, with their file names. A pre-release has no "~" in the name of its file, as is usual for
// Debian: sites that serve releases replace it.
var formats = []struct {
	packager nfpm.Packager
	name     string
	zsh      string // where zsh looks for completions
	license  string
	file     func(name, version, arch string) string
}{
	{deb.Default, "deb", "/usr/share/zsh/vendor-completions/", "/usr/share/doc/%s/copyright", func(name, version, arch string) string {
		return fmt.Sprintf("%s_%s_%s.deb", name, version, arch)
	}},
	{rpm.DefaultRPM, "rpm", "/usr/share/zsh/site-functions/", "/usr/share/licenses/%s/LICENSE", func(name, version, arch string) string {
		return fmt.Sprintf("%s-%s-1.%s.rpm", name, version, map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch])
	}},
}

// packages makes the packages of one architecture, by the names of their files.
func packages(in packaging) (map[string][]byte, error) {
	all := make(map[string][]byte)
	for _, p := range linuxPackages {
		for _, format := range formats {
			contents, err := packageFiles(in, p, format.zsh, fmt.Sprintf(format.license, p.name))
			if err != nil {
				return nil, fmt.Errorf("package %s: %w", p.name, err)
			}
			info, err := packageInfo(in, p, format.name, contents)
			if err != nil {
				return nil, fmt.Errorf("package %s: %w", p.name, err)
			}
			var out bytes.Buffer
			if err := format.packager.Package(info, &out); err != nil {
				return nil, fmt.Errorf("package %s, %s: %w", p.name, format.name, err)
			}
			all[format.file(p.name, strings.TrimPrefix(in.version, "v"), in.arch)] = out.Bytes()
		}
	}
	return all, nil
}

// packaged is a file of a package.
type packaged struct {
	entry
	config bool
}

// packageFiles returns what a package has, by path.
func packageFiles(in packaging, p linuxPackage, zsh, licensePath string) (map[string]packaged, error) {
	all := make(map[string]packaged)
	add := func(at string, mode fs.FileMode, data []byte) {
		all[at] = packaged{entry: entry{mode: mode, data: data}}
	}
	add("/usr/bin/"+p.name, executable, in.programs[p.name])
	units := filepath.Join(in.source, "deploy", "systemd")
	for name, file := range p.units {
		text, err := os.ReadFile(filepath.Join(units, file))
		if err != nil {
			return nil, err
		}
		add("/usr/lib/systemd/system/"+name, regular, []byte(packagedUnit(string(text))))
	}
	for at, file := range p.configs {
		text, err := os.ReadFile(filepath.Join(units, file))
		if err != nil {
			return nil, err
		}
		all[at] = packaged{entry: entry{mode: regular, data: text}, config: true}
	}
	for _, dir := range p.dirs {
		all[dir] = packaged{entry: entry{mode: directory, dir: true}}
	}
	users, err := scripts.ReadFile("packages/" + p.name + ".sysusers")
	if err != nil {
		return nil, err
	}
	add("/usr/lib/sysusers.d/"+p.name+".conf", regular, users)
	for name, page := range in.manuals {
		if manualOf(name) != p.name {
			continue
		}
		zipped, err := gzipOf(page)
		if err != nil {
			return nil, err
		}
		add("/usr/share/man/man1/"+name+".gz", regular, zipped)
	}
	for shell, dir := range map[string]string{"bash": "/usr/share/bash-completion/completions/", "zsh": zsh, "fish": "/usr/share/fish/vendor_completions.d/"} {
		i := slices.IndexFunc(shells, func(s struct {
			name string
			file func(string) string
		}) bool {
			return s.name == shell
		})
		add(dir+shells[i].file(p.name), regular, in.completions[p.name][shell])
	}
	text, err := os.ReadFile(filepath.Join(in.source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	if path.Base(licensePath) == "copyright" {
		text = append([]byte("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: holdfast\nSource: https://"+repository+"\n\nFiles: *\nCopyright: the holdfast authors\nLicense: Apache-2.0\n The text is below, and in /usr/share/common-licenses/Apache-2.0. Licenses of what the program contains are in\n third-party-licenses.txt.gz beside this file.\n\n"), text...)
	}
	add(licensePath, regular, text)
	zipped, err := gzipOf(in.notices)
	if err != nil {
		return nil, err
	}
	add("/usr/share/doc/"+p.name+"/third-party-licenses.txt.gz", regular, zipped)
	return all, nil
}

// manualOf returns the command that a manual page, such as holdfast-run.1, is of.
func manualOf(page string) string {
	program := "holdfast"
	for _, name := range allCommands {
		if len(name) > len(program) && (page == name+".1" || strings.HasPrefix(page, name+"-")) {
			program = name
		}
	}
	return program
}

// packageInfo describes a package for nfpm, which reads the files from a folder that this function writes.
func packageInfo(in packaging, p linuxPackage, format string, all map[string]packaged) (*nfpm.Info, error) {
	stage := filepath.Join(in.work, format, in.arch, p.name)
	var contents files.Contents
	for _, at := range slices.Sorted(maps.Keys(all)) {
		f := all[at]
		content := &files.Content{Destination: at, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: in.at}}
		if f.dir {
			content.Type = files.TypeDir
		} else {
			if err := put(stage, "root"+at, f.data, f.mode); err != nil {
				return nil, err
			}
			content.Source = filepath.Join(stage, "root"+at)
			if f.config {
				content.Type = files.TypeConfigNoReplace
			}
		}
		contents = append(contents, content)
	}
	script := func(name string) (string, error) {
		text, err := scripts.ReadFile("packages/" + p.name + "." + name)
		if err != nil {
			return "", err
		}
		return filepath.Join(stage, name), put(stage, name, text, executable)
	}
	info := &nfpm.Info{
		Name: p.name, Arch: in.arch, Platform: "linux", Version: in.version, Section: "net", Priority: "optional", Maintainer: maintainer,
		Vendor: "holdfast", Homepage: "https://" + repository, License: license, MTime: in.at, DisableGlobbing: true,
		Description: p.summary + "\n" + p.description,
		Overridables: nfpm.Overridables{
			Contents: contents, Umask: 0o022, Recommends: []string{"ca-certificates"},
			RPM: nfpm.RPM{Summary: p.summary, BuildHost: "holdfast", Compression: "gzip", Packager: maintainer},
			Deb: nfpm.Deb{Compression: "gzip"},
		},
	}
	var err error
	for name, to := range map[string]*string{"postinst": &info.Scripts.PostInstall, "prerm": &info.Scripts.PreRemove, "postrm": &info.Scripts.PostRemove} {
		if *to, err = script(name); err != nil {
			return nil, err
		}
	}
	if format == "deb" {
		info.Depends = []string{"passwd"} // useradd, where there is no systemd-sysusers
	} else {
		info.Release = "1"
		info.Depends = []string{"/usr/sbin/useradd"}
	}
	return nfpm.WithDefaults(info), nil
}
