package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// marker is a file in the folder of a release: this program made it, and may empty it.
const marker = ".made-by-holdfast-release"

// making is a release that is being made.
type making struct {
	options
	log       io.Writer
	source    source
	toolchain string
	signer    *signer // nil: nothing is signed
	work      string  // a temporary folder

	programs    []program
	completions map[string]completions
	manuals     map[string][]byte
	notices     []byte
	fetchedAll  []part
	files       map[string][]byte // what was made, by name
}

// release makes everything, and writes it to the folder of the release at the end.
func release(o options, log io.Writer) (err error) {
	m := &making{options: o, log: log, files: make(map[string][]byte)}
	if o.key != "" {
		if m.signer, err = readSigner(o.key); err != nil {
			return err
		}
	}
	if err := mayWrite(o.dist); err != nil {
		return err
	}
	if m.work, err = os.MkdirTemp("", "holdfast-release-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.work)) }()
	if m.source, err = export(o.repository, filepath.Join(m.work, "source"), o.dirty, o.epoch); err != nil {
		return err
	}
	if m.toolchain, err = goVersion(m.source.dir); err != nil {
		return err
	}
	if err := checkToolchain(m.toolchain); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"programs", m.buildAll}, {"archives", m.archives}, {"packages", m.packages}, {"images", m.images},
		{"chart", m.chart}, {"lists of parts", m.sboms}, {"provenance and checksums", m.seal},
	} {
		m.say("%s", step.name)
		if err := step.run(); err != nil {
			return err
		}
	}
	return m.write()
}

func (m *making) say(format string, args ...any) { _, _ = fmt.Fprintf(m.log, format+"\n", args...) }

// mayWrite returns an error if a folder has files that this program has not made.
func mayWrite(dist string) error {
	entries, err := os.ReadDir(dist)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dist, marker)); err != nil {
		return fmt.Errorf("%s is not empty, and no release was made there: name another folder with DIST=, or empty it yourself", dist)
	}
	return nil
}

// buildAll builds the commands for all platforms, and has what is made of them: completions, by the programs for this machine,
// manual pages and licenses.
func (m *making) buildAll() error {
	here := platform{runtime.GOOS, runtime.GOARCH}
	wanted := m.platforms
	if !slices.Contains(wanted, here) {
		wanted = append(slices.Clone(wanted), here)
	}
	for _, p := range wanted {
		dir := filepath.Join(m.work, "bin", p.dashed())
		built, err := buildCommands(m.source.dir, dir, m.toolchain, m.version, allCommands, p)
		if err != nil {
			return err
		}
		if p == here {
			m.completions = make(map[string]completions)
			for _, c := range allCommands {
				if m.completions[c], err = completionsOf(filepath.Join(dir, c)); err != nil {
					return err
				}
			}
		}
		if slices.Contains(m.platforms, p) {
			m.programs = append(m.programs, built...)
		}
	}
	pages, err := entriesOf(filepath.Join(m.source.dir, "docs", "man"))
	if err != nil {
		return err
	}
	m.manuals = make(map[string][]byte)
	for _, page := range pages {
		if strings.HasSuffix(page.name, ".1") {
			m.manuals[page.name] = page.data
		}
	}
	m.notices, err = notices(m.source.dir, m.toolchain, m.programs)
	return err
}

// of returns the programs of a platform.
func (m *making) of(p platform) (programs []program) {
	for _, one := range m.programs {
		if one.platform == p {
			programs = append(programs, one)
		}
	}
	return programs
}

// archives makes one archive for each platform, with all programs.
func (m *making) archives() error {
	var common []entry
	for _, name := range []string{"LICENSE", "README.md"} {
		data, err := os.ReadFile(filepath.Join(m.source.dir, name))
		if err != nil {
			return err
		}
		common = append(common, entry{name: name, mode: regular, data: data})
	}
	common = append(common, entry{name: "third-party-licenses.txt", mode: regular, data: m.notices})
	for name, page := range m.manuals {
		common = append(common, entry{name: "man/" + name, mode: regular, data: page})
	}
	for command, all := range m.completions {
		for _, shell := range shells {
			common = append(common, entry{name: "completions/" + shell.name + "/" + shell.file(command), mode: regular, data: all[shell.name]})
		}
	}
	units, err := entriesOf(filepath.Join(m.source.dir, "deploy", "systemd"))
	if err != nil {
		return err
	}
	for _, p := range m.platforms {
		entries := slices.Clone(common)
		for _, one := range m.of(p) {
			entries = append(entries, entry{name: one.command, mode: executable, data: one.data})
		}
		if p.os == "linux" {
			entries = append(entries, below("systemd", units)...)
		}
		name := "holdfast-" + m.version + "-" + p.dashed()
		if m.files[name+".tar.gz"], err = tarGzip(below(name, entries), m.source.time); err != nil {
			return err
		}
	}
	return nil
}

// packages makes the packages for Debian and RPM.
func (m *making) packages() error {
	for _, p := range linuxOf(m.platforms) {
		programs := make(map[string][]byte)
		for _, one := range m.of(p) {
			programs[one.command] = one.data
		}
		made, err := packages(packaging{
			source: m.source.dir, work: filepath.Join(m.work, "packages"), version: m.version, at: m.source.time, arch: p.arch,
			programs: programs, completions: m.completions, manuals: m.manuals, notices: m.notices,
		})
		if err != nil {
			return err
		}
		maps.Copy(m.files, made)
	}
	return nil
}

// images makes the images, for each an OCI layout with all architectures and an archive for Docker for each one, and the SBOM of
// that with Envoy.
func (m *making) images() error {
	platforms := linuxOf(m.platforms)
	if len(platforms) == 0 {
		return nil
	}
	in := imaging{source: m.source.dir, work: m.work, version: m.version, commit: m.source.commit, at: m.source.time, notices: m.notices}
	certificates, err := ownModule("golang.org/x/crypto/x509roots/fallback")
	if err != nil {
		return err
	}
	var digests strings.Builder
	for _, i := range images {
		if i.envoy && m.withoutEnvoy {
			continue
		}
		built := make(map[platform]v1.Image)
		lines := ""
		for _, p := range platforms {
			at := slices.IndexFunc(m.programs, func(one program) bool { return one.platform == p && one.command == i.command })
			if at < 0 {
				return fmt.Errorf("image %s: there is no program %s", i.name, i.command)
			}
			if i.envoy {
				if in.envoy, err = envoyFor(m.source.dir, debian{dir: m.fetched, snapshots: m.snapshots, newer: m.newerDebian, say: m.say}, p.arch); err != nil {
					return err
				}
				m.fetchedAll = append(m.fetchedAll, in.envoy.parts...)
			}
			if built[p], err = in.build(i, m.programs[at]); err != nil {
				return err
			}
			if m.files[i.name+"-"+m.version+"-"+p.dashed()+".docker.tar"], err = dockerArchive(i, m.version, built[p]); err != nil {
				return err
			}
			digest, err := built[p].Digest()
			if err != nil {
				return err
			}
			lines += digestLine(i, m.version, p.String(), digest)
			if i.envoy {
				of, err := sbomOf(m.programs[at], m.version, m.source.time)
				if err != nil {
					return err
				}
				list, err := imageSBOM(of, i, p, digest.String(), m.version, in.envoy.parts, certificates, m.source.time)
				if err != nil {
					return err
				}
				if m.files[i.name+"-"+m.version+"-"+p.dashed()+".image.cdx.json"], err = marshal(list); err != nil {
					return err
				}
			}
		}
		archive, digest, err := in.ociLayout(i, built, platforms)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.name, err)
		}
		m.files[i.name+"-"+m.version+".oci.tar"] = archive
		digests.WriteString(digestLine(i, m.version, "index", digest) + lines)
	}
	m.files["image-digests.txt"] = []byte(digests.String())
	return nil
}

// ownModule returns a module that is in this program.
func ownModule(path string) (*debug.Module, error) {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, dep := range info.Deps {
			if dep.Path == path {
				return dep, nil
			}
		}
	}
	return nil, fmt.Errorf("this program was built without information on its module %s: build it with `make release`", path)
}

func (m *making) chart() error {
	file, data, err := chart(m.source.dir, m.version, m.source.time)
	if err != nil {
		return err
	}
	if file == "" {
		m.say("  there is no deploy/chart")
		return nil
	}
	m.files[file] = data
	return nil
}

// sboms makes the list of parts of each program.
func (m *making) sboms() error {
	for _, p := range m.programs {
		list, err := sbomOf(p, m.version, m.source.time)
		if err != nil {
			return err
		}
		if m.files[p.command+"-"+m.version+"-"+p.platform.dashed()+".cdx.json"], err = marshal(list); err != nil {
			return err
		}
	}
	return nil
}

// seal makes the provenance and the checksums, and signs both.
func (m *making) seal() error {
	from := provenance(origin{
		version: m.version, builder: m.builder, toolchain: m.toolchain, source: m.source, platforms: m.platforms,
		withoutEnvoy: m.withoutEnvoy, newerDebian: m.newerDebian, fetched: m.fetchedAll,
	}, m.files)
	text, err := marshal(from)
	if err != nil {
		return err
	}
	name := "holdfast-" + m.version + ".provenance.json"
	m.files[name] = text
	if m.signer != nil {
		sealed, err := m.signer.seal(statementType, text)
		if err != nil {
			return err
		}
		if m.files[strings.TrimSuffix(name, ".json")+".dsse.json"], err = marshal(sealed); err != nil {
			return err
		}
	}
	sums := checksums(m.files)
	m.files["SHA256SUMS"] = sums
	if m.signer == nil {
		m.say("  nothing is signed, because there is no key: give one with SIGNING_KEY=FILE")
		return nil
	}
	m.files["SHA256SUMS.sig"], err = m.signer.detached(sums)
	m.say("  signed with the key %s", m.signer.id)
	return err
}

// checksums lists the sums of files as sha256sum does.
func checksums(files map[string][]byte) []byte {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(files)) {
		out = fmt.Appendf(out, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	return out
}

// write writes everything to the folder of the release, which is emptied first.
func (m *making) write() error {
	if err := mayWrite(m.dist); err != nil {
		return err
	}
	if err := os.RemoveAll(m.dist); err != nil {
		return err
	}
	if err := os.MkdirAll(m.dist, directory); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.dist, marker), nil, regular); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		if err := os.WriteFile(filepath.Join(m.dist, name), m.files[name], regular); err != nil {
			return err
		}
		m.say("  %10d  %s", len(m.files[name]), name)
	}
	m.say("%s of %s is in %s", m.version, m.source.commit, m.dist)
	return nil
}
