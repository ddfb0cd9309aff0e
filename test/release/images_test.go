package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var imageNames = []string{"holdfast", "holdfast-envoy", "holdfast-mesh", "holdfast-injector"}

// loaded is the image of a Docker archive.
func loaded(t *testing.T, name string) v1.Image {
	t.Helper()
	img, err := tarball.ImageFromPath(filepath.Join(dist(t), name+"-"+version+"-linux-amd64.docker.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return img
}

func TestLayoutsAreValidAndTheirDigestsAreListed(t *testing.T) {
	digests := read(t, dist(t), "image-digests.txt")
	for _, name := range imageNames {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			untar(t, filepath.Join(dist(t), name+"-"+version+".oci.tar"), dir)
			all, err := layout.ImageIndexFromPath(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(all); err != nil {
				t.Error(err)
			}
			top, err := all.IndexManifest()
			if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != version {
				t.Fatalf("%+v, %v", top, err)
			}
			if line := name + ":" + version + "  index  " + top.Manifests[0].Digest.String() + "\n"; !strings.Contains(digests, line) {
				t.Errorf("no line %s in\n%s", line, digests)
			}
			index, err := all.ImageIndex(top.Manifests[0].Digest)
			if err != nil {
				t.Fatal(err)
			}
			manifest, err := index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			fromDocker, err := loaded(t, name).ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			same := false
			for _, m := range manifest.Manifests {
				if line := name + ":" + version + "  " + m.Platform.String() + "  " + m.Digest.String() + "\n"; !strings.Contains(digests, line) {
					t.Errorf("no line %s in\n%s", line, digests)
				}
				img, err := index.Image(m.Digest)
				if err != nil {
					t.Fatal(err)
				}
				config, err := img.ConfigName()
				if err != nil {
					t.Fatal(err)
				}
				same = same || config == fromDocker
			}
			if !same {
				t.Error("the archive for Docker is of another image")
			}
		})
	}
}

// Each image is unpacked, and its programs run in it as its user.
func TestImagesRunAsTheirUser(t *testing.T) {
	for _, name := range imageNames {
		t.Run(name, func(t *testing.T) {
			img := loaded(t, name)
			config, err := img.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.MkdirTemp("", "holdfast-image-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			files := mutate.Extract(img)
			unpack(t, files, dir)
			if err := files.Close(); err != nil {
				t.Fatal(err)
			}
			in := func(args ...string) string {
				return run(t, "chroot", append([]string{"--userspec=" + config.Config.User, "--groups=", dir}, args...)...)
			}
			if out := in(append(slices.Clone(config.Config.Entrypoint), "version")...); !strings.Contains(out, version) {
				t.Errorf("version: %s", out)
			}
			if out := in(append(slices.Clone(config.Config.Entrypoint), config.Config.Cmd...)...); !strings.Contains(out, "holdfast") {
				t.Errorf("help: %s", out)
			}
			if name != "holdfast-envoy" {
				return
			}
			if out := in("/usr/local/bin/envoy", "--version"); !strings.Contains(out, "/1.40.0/") {
				t.Errorf("Envoy: %s", out)
			}
			in("/usr/local/bin/holdfast", "bootstrap", "--node-id", "n", "--node-cluster", "c", "--out", "/run/holdfast/envoy.yaml")
			out := in("/usr/local/bin/envoy", "--mode", "validate", "--config-path", "/run/holdfast/envoy.yaml")
			if !strings.Contains(out, "OK") {
				t.Errorf("Envoy: %s", out)
			}
		})
	}
}

// An archive of a release has no names of users of the machine that made it, and packages no files that only root may read.
func TestPackagesAreReadableByEverybody(t *testing.T) {
	for _, name := range []string{"holdfast", "holdfast-mesh"} {
		out, err := exec.Command("dpkg-deb", "--contents", filepath.Join(dist(t), name+"_0.1.0_amd64.deb")).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); f[1] != "root/root" || f[0] != "-rw-r--r--" && f[0] != "-rwxr-xr-x" && f[0] != "drwxr-xr-x" {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}
