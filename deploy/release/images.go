package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// image is an image of the release. A test compares the table with the Dockerfile.
type image struct {
	name        string // also that of its files
	command     string // the program, and the entry point
	stage       string // of the Dockerfile
	title       string
	description string
	ports       []string
	dirs        []string // that belong to the user
	envoy       bool
}

// imageUser is the user and group of all images, 65532.
const imageUser = 65532

// images are all images; one is made if its command is.
var images = []image{
	{
		name: "holdfast", command: "holdfast", stage: "holdfast", title: "holdfast",
		description: "A sidecar-local xDS agent that keeps an Envoy configured when its control plane does not answer",
		ports:       []string{"15020"}, dirs: []string{"run/holdfast", "var/lib/holdfast"},
	},
	{
		name: "holdfast-envoy", command: "holdfast", stage: "with-envoy", title: "holdfast with Envoy",
		description: "A sidecar-local xDS agent, and the Envoy that it runs",
		ports:       []string{"15020"}, dirs: []string{"run/holdfast", "var/lib/holdfast"}, envoy: true,
	},
	{
		name: "holdfast-mesh", command: "holdfast-mesh", stage: "mesh", title: "holdfast-mesh",
		description: "A control plane with Istio's API that reads a directory of documents",
		ports:       []string{"15010", "15012", "15020"},
	},
	{
		name: "holdfast-injector", command: "holdfast-injector", stage: "injector", title: "holdfast-injector",
		description: "A mutating webhook that adds holdfast and Envoy to pods",
		ports:       []string{"15014", "15017"},
	},
}

// authorities returns the CA certificates of the images in PEM: Mozilla's list, as golang.org/x/crypto/x509roots/fallback has it
// in the version of go.mod. The Dockerfile copies those of the machine that builds, which are not the same everywhere. CAs that
// Mozilla trusts only for certificates from before a date are left out, because PEM cannot say so.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a Buffer does not fail
		}
	}
	return all.Bytes()
}

// system are the files beside the program that every image has.
func system(licenseText, notices []byte) []entry {
	return []entry{
		{name: "etc/passwd", mode: regular, data: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{name: "etc/group", mode: regular, data: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: regular, data: authorities()},
		{name: "usr/share/doc/holdfast/LICENSE", mode: regular, data: licenseText},
		{name: "usr/share/doc/holdfast/third-party-licenses.txt", mode: regular, data: notices},
	}
}

// layer is a layer of files that is compressed once.
type layer struct {
	plain, compressed []byte
	diffID, digest    v1.Hash
}

func newLayer(entries []entry, at time.Time) (*layer, error) {
	plain, err := tarOf(entries, at)
	if err != nil {
		return nil, err
	}
	compressed, err := gzipOf(plain)
	if err != nil {
		return nil, err
	}
	return &layer{plain: plain, compressed: compressed, diffID: hashOf(plain), digest: hashOf(compressed)}, nil
}

func hashOf(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

func (l *layer) Digest() (v1.Hash, error) { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error) { return l.diffID, nil }
func (l *layer) Size() (int64, error)     { return int64(len(l.compressed)), nil }
func (l *layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.compressed)), nil
}
func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.plain)), nil
}
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

// imaging is what images are made of.
type imaging struct {
	source, work    string
	version, commit string
	at              time.Time
	notices         []byte
	envoy           *envoyParts // of the architecture; nil without the image
}

// build makes the image of one architecture.
func (in imaging) build(i image, p program) (v1.Image, error) {
	licenseText, err := os.ReadFile(filepath.Join(in.source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	base := system(licenseText, in.notices)
	history := []string{"users, CA certificates and licenses"}
	groups := [][]entry{base}
	if i.envoy {
		groups = [][]entry{append(base, in.envoy.system...), in.envoy.program}
		history = []string{"users, CA certificates, licenses, and Debian's C library", "Envoy " + in.envoy.version}
	}
	own := []entry{{name: "usr/local/bin/" + i.command, mode: executable, data: p.data}}
	for _, dir := range i.dirs {
		own = append(own, entry{name: dir, dir: true, mode: directory, uid: imageUser, gid: imageUser})
	}
	groups, history = append(groups, own), append(history, i.command+" "+in.version)

	created := v1.Time{Time: in.at}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for n, group := range groups {
		l, err := newLayer(group, in.at)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", i.name, err)
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l, MediaType: types.OCILayer, History: v1.History{Created: created, CreatedBy: "holdfast release: " + history[n]}}); err != nil {
			return nil, fmt.Errorf("image %s: %w", i.name, err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.platform.os, p.platform.arch, created
	config.Config = in.config(i)
	return mutate.ConfigFile(img, config)
}

// config is what the Dockerfile says of an image.
func (in imaging) config(i image) v1.Config {
	ports := make(map[string]struct{})
	for _, port := range i.ports {
		ports[port+"/tcp"] = struct{}{}
	}
	return v1.Config{
		User:         fmt.Sprintf("%d:%d", imageUser, imageUser),
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, // as BuildKit sets it
		Entrypoint:   []string{"/usr/local/bin/" + i.command},
		Cmd:          []string{"help"},
		WorkingDir:   "/",
		ExposedPorts: ports,
		Labels: map[string]string{
			"org.opencontainers.image.title":       i.title,
			"org.opencontainers.image.description": i.description,
			"org.opencontainers.image.source":      "https://" + repository,
			"org.opencontainers.image.version":     in.version,
			"org.opencontainers.image.revision":    in.commit,
			"org.opencontainers.image.licenses":    license,
			"org.opencontainers.image.created":     in.at.Format(time.RFC3339),
		},
	}
}

// dockerArchive is an image for `docker load`.
func dockerArchive(i image, version string, img v1.Image) ([]byte, error) {
	tag, err := name.NewTag(i.name + ":" + version)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := tarball.Write(tag, img, &out); err != nil {
		return nil, fmt.Errorf("image %s: %w", i.name, err)
	}
	return out.Bytes(), nil
}

// ociLayout returns a tar archive of an OCI layout with one index of the images of all architectures, and the digest of the index,
// which a registry shows too.
func (in imaging) ociLayout(i image, built map[platform]v1.Image, order []platform) ([]byte, v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range order {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: built[p], Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}})
	}
	digest, err := index.Digest()
	if err != nil {
		return nil, digest, err
	}
	dir := filepath.Join(in.work, "layout", i.name)
	if err := os.MkdirAll(dir, directory); err != nil {
		return nil, digest, err
	}
	at, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return nil, digest, err
	}
	err = at.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": in.version,
		"io.containerd.image.name":          "docker.io/library/" + i.name + ":" + in.version,
	}))
	if err != nil {
		return nil, digest, err
	}
	entries, err := entriesOf(dir)
	if err != nil {
		return nil, digest, err
	}
	archive, err := tarOf(entries, in.at)
	return archive, digest, err
}

// entriesOf reads the files below a directory, which are then readable for everybody.
func entriesOf(dir string) (entries []entry, err error) {
	err = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, at)
		entries = append(entries, entry{name: filepath.ToSlash(relative), mode: regular, data: data})
		return err
	})
	return entries, err
}

// digestLine is a line of the list of digests.
func digestLine(i image, version, of string, digest v1.Hash) string {
	return strings.Join([]string{i.name + ":" + version, of, digest.String()}, "  ") + "\n"
}
