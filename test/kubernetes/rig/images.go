package rig

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/test/dockerfile"
	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// The images of the manifests have two versions, for replacing one.
const (
	Version     = "v0.1.0"
	NextVersion = "v0.1.1"
	// Agnhost is the image of applications; it has the program /load, too.
	Agnhost = "registry.k8s.io/e2e-test-images/agnhost:2.53"
)

// images are those that the pods of all tests need: holdfast's by the Dockerfile's recipe, and others'.
func images(dir string) ([]cluster.Image, error) {
	recipe, err := dockerfile.Read(Repository())
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "rootfs")
	if err := recipe.Build(root, Repository(), runtime.GOARCH, Version); err != nil {
		return nil, err
	}
	envoy, err := EnvoyFiles()
	if err != nil {
		return nil, err
	}
	tmp := cluster.File{Path: "/tmp", Dir: true, Mode: os.ModeSticky | 0o777}
	all := []cluster.Image{
		{Names: []string{"localhost/pause:1"}, Files: []cluster.File{{Path: "/pause", From: filepath.Join(Programs, "pause")}}, User: "65535:65535", Entrypoint: []string{"/pause"}},
		{Names: []string{Agnhost}, Files: []cluster.File{tmp, {Path: "/agnhost", From: filepath.Join(components(), "agnhost")}, {Path: "/load", From: filepath.Join(Programs, "load")}}, Entrypoint: []string{"/agnhost"}},
		{Names: []string{"localhost/coredns:1"}, Files: []cluster.File{{Path: "/coredns", From: filepath.Join(components(), "coredns")}}, Entrypoint: []string{"/coredns"}},
		{Names: []string{recipe.Arg("", "ENVOY_IMAGE")}, Files: append([]cluster.File{tmp}, envoy...), User: "101:101", Entrypoint: []string{"/usr/local/bin/envoy"}},
	}
	// holdfast-istio takes Envoy out of Istio's proxy image; the tests' is the same Envoy.
	for stage, names := range map[string][]string{"holdfast": {"holdfast"}, "with-envoy": {"holdfast-envoy", "holdfast-istio"}, "mesh": {"holdfast-mesh"}, "injector": {"holdfast-injector"}} {
		var base []cluster.File
		if stage == "with-envoy" {
			base = append([]cluster.File{tmp}, envoy...)
		}
		image, err := stageImage(recipe, stage, base, root)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			image.Names = append(image.Names, "docker.io/library/"+name+":"+Version, "docker.io/library/"+name+":"+NextVersion)
		}
		all = append(all, image)
	}
	return all, nil
}

// EnvoyFiles are what Envoy's own image has, as far as holdfast's images need it.
func EnvoyFiles() ([]cluster.File, error) {
	envoy := os.Getenv("ENVOY")
	if envoy == "" {
		return nil, fmt.Errorf("ENVOY is not set: run `make kubernetes-test`, which fetches one")
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

// stageImage is what the instructions of a stage make of its base and of what the stage "build" has put into root.
func stageImage(recipe dockerfile.Dockerfile, stage string, base []cluster.File, root string) (cluster.Image, error) {
	image := cluster.Image{Files: base}
	out := recipe.Arg("build", "ROOTFS")
	for _, i := range recipe {
		if i.Stage != stage {
			continue
		}
		switch i.Op {
		case "COPY":
			file, err := copied(i, out, root)
			if err != nil {
				return image, err
			}
			image.Files = append(image.Files, file)
		case "USER":
			image.User = i.Args
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(i.Args), &image.Entrypoint); err != nil {
				return image, fmt.Errorf("ENTRYPOINT %s: %w", i.Args, err)
			}
		case "CMD":
			if err := json.Unmarshal([]byte(i.Args), &image.Cmd); err != nil {
				return image, fmt.Errorf("CMD %s: %w", i.Args, err)
			}
		case "FROM", "ARG", "LABEL", "EXPOSE":
		default:
			return image, fmt.Errorf("the tests do not know what %s does to an image", i.Op)
		}
	}
	return image, nil
}

// copied is the file of COPY --from=build [--chown=UID:GID] SOURCE DESTINATION.
func copied(i dockerfile.Instruction, out, root string) (cluster.File, error) {
	words := strings.Fields(i.Args)
	below, ok := strings.CutPrefix(words[0], out)
	if !ok || len(words) != 2 {
		return cluster.File{}, fmt.Errorf("COPY %s: want one source below %s", i.Args, out)
	}
	file := cluster.File{Path: path.Clean(words[1]), From: filepath.Join(root, below)}
	for _, flag := range i.Flags {
		owner, ok := strings.CutPrefix(flag, "--chown=")
		if !ok {
			continue
		}
		uid, gid, _ := strings.Cut(owner, ":")
		var err error
		if file.UID, err = strconv.Atoi(uid); err != nil {
			return file, err
		}
		if file.GID, err = strconv.Atoi(gid); err != nil {
			return file, err
		}
	}
	return file, nil
}
