package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/holdfast-xds/holdfast/test/dockerfile"
	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// The images of the manifests have two versions, for replacing one.
const (
	Version     = "v0.1.0"
	NextVersion = "v0.1.1"
	// Agnhost is the image of applications; it has the program /load, too.
	Agnhost = "registry.k8s.io/e2e-test-images/agnhost:2.53"
	// Curl is the image of the application of docs/getting-started.md.
	Curl = "docker.io/curlimages/curl:8.16.0"
)

// Dist is the folder of the release whose images run.
var Dist string

// images are those of others that the pods of all tests need.
func images() ([]cluster.Image, error) {
	recipe, err := dockerfile.Read(Repository())
	if err != nil {
		return nil, err
	}
	envoy, err := EnvoyFiles()
	if err != nil {
		return nil, err
	}
	// The application of docs/getting-started.md: what it uses of that image is this machine's.
	applications := []string{"/usr/bin/curl", "/usr/bin/sleep"}
	curl, err := cluster.Libraries(applications...)
	if err != nil {
		return nil, err
	}
	for _, program := range applications {
		curl = append(curl, cluster.File{Path: program, From: program, Mode: 0o755})
	}
	tmp := cluster.File{Path: "/tmp", Dir: true, Mode: os.ModeSticky | 0o777}
	return []cluster.Image{
		{Names: []string{Curl}, Files: curl, User: "100:101", Entrypoint: []string{"/usr/bin/curl"}},
		{Names: []string{"localhost/pause:1"}, Files: []cluster.File{{Path: "/pause", From: filepath.Join(Programs, "pause")}}, User: "65535:65535", Entrypoint: []string{"/pause"}},
		{Names: []string{Agnhost}, Files: []cluster.File{tmp, {Path: "/agnhost", From: filepath.Join(components(), "agnhost")}, {Path: "/load", From: filepath.Join(Programs, "load")}}, Entrypoint: []string{"/agnhost"}},
		{Names: []string{"localhost/coredns:1"}, Files: []cluster.File{{Path: "/coredns", From: filepath.Join(components(), "coredns")}}, Entrypoint: []string{"/coredns"}},
		{Names: []string{recipe.Arg("", "ENVOY_IMAGE")}, Files: append([]cluster.File{tmp}, envoy...), User: "101:101", Entrypoint: []string{"/usr/local/bin/envoy"}},
	}, nil
}

// loadRelease gives the node holdfast's images as `make release` makes them: its archives for docker. RELEASES names a
// folder that has the release already, in "dist", where test/release leaves it; otherwise it is made.
func loadRelease(node *cluster.Cluster, dir string) error {
	releases := os.Getenv("RELEASES")
	dist := filepath.Join(releases, "dist")
	if _, err := os.Stat(filepath.Join(dist, "SHA256SUMS")); releases == "" || err != nil {
		dist = filepath.Join(dir, "dist")
		program := filepath.Join(Repository(), "bin", "release")
		out, err := exec.Command(program, "-repository", Repository(), "-dist", dist, "-version", Version, "-platforms", "linux/"+runtime.GOARCH, "-dirty", "-newer-debian").CombinedOutput()
		if err != nil {
			return fmt.Errorf("making the release with %s, which `make bin/release` builds: %w\n%s", program, err, out)
		}
	}
	Dist = dist
	// holdfast-istio takes Envoy out of Istio's proxy image; the tests' is the same Envoy.
	for image, names := range map[string][]string{"holdfast": {"holdfast"}, "holdfast-envoy": {"holdfast-envoy", "holdfast-istio"}, "holdfast-mesh": {"holdfast-mesh"}, "holdfast-injector": {"holdfast-injector"}} {
		const registry = "docker.io/library/"
		loaded := registry + image + ":" + Version
		var further []string
		for _, name := range names {
			for _, version := range []string{Version, NextVersion} {
				if tag := registry + name + ":" + version; tag != loaded {
					further = append(further, tag)
				}
			}
		}
		if err := node.Load(filepath.Join(dist, image+"-"+Version+"-linux-"+runtime.GOARCH+".docker.tar"), loaded, further...); err != nil {
			return err
		}
	}
	return nil
}

// EnvoyFiles are what Envoy's own image has, as far as holdfast's images need it.
func EnvoyFiles() ([]cluster.File, error) {
	envoy := os.Getenv("ENVOY")
	if envoy == "" {
		return nil, fmt.Errorf("ENVOY is not set: run `make cluster`, which fetches one")
	}
	libraries, err := cluster.Libraries(envoy)
	if err != nil {
		return nil, err
	}
	return append(libraries,
		cluster.File{Path: "/usr/local/bin/envoy", From: envoy, Mode: 0o755},
		cluster.File{Path: "/etc/passwd", Text: "root:x:0:0:root:/:/sbin/nologin\nenvoy:x:101:101::/:/sbin/nologin\n"},
		cluster.File{Path: "/etc/group", Text: "root:x:0:\nenvoy:x:101:\n"},
	), nil
}
