package cluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// Image is a container image of one layer.
type Image struct {
	// Names are its references, with registry and tag. An image that a pod calls holdfast:v1 has the name
	// docker.io/library/holdfast:v1.
	Names []string
	// Files are what its root directory has besides the directories above them.
	Files []File
	// User is UID:GID; "" for root.
	User       string
	Entrypoint []string
	Cmd        []string
}

// File is a file, a directory or a link of an image.
type File struct {
	Path string // absolute
	// From is the file of this machine with the content; a directory stands for all that it has.
	From string
	// Text is the content if From is "".
	Text string
	// Link is the target of a symbolic link.
	Link string
	// Dir says that it is an empty directory.
	Dir      bool
	Mode     fs.FileMode // 0: 0644, 0755 for a directory, or that of From
	UID, GID int
}

// write writes the image as an archive that `ctr images import` reads.
func (i Image) write(dir, name string) (err error) {
	layer := filepath.Join(dir, "layer.tar")
	digest, err := i.writeLayer(layer)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(layer) }()
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"User": i.User, "Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "WorkingDir": "/",
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
		"history": []map[string]any{{"created_by": "holdfast's tests"}},
	})
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": i.Names, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	archive := tar.NewWriter(out)
	for _, f := range []File{{Path: "manifest.json", Text: string(manifest)}, {Path: configName, Text: string(config)}, {Path: "layer.tar", From: layer}} {
		if err := add(archive, f); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return out.Close()
}

// writeLayer writes the image's root directory, and returns the digest of the archive.
func (i Image) writeLayer(name string) (digest string, err error) {
	out, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = out.Close() }()
	var sum hash.Hash = sha256.New()
	layer := tar.NewWriter(io.MultiWriter(out, sum))
	made := map[string]bool{"/": true}
	for _, f := range i.Files {
		if err := makeParents(layer, path.Dir(f.Path), made); err != nil {
			return "", err
		}
		made[f.Path] = true
		if err := addTree(layer, f, made); err != nil {
			return "", fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	if err := layer.Close(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), out.Close()
}

// makeParents adds a directory and those above it, unless they were made.
func makeParents(layer *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	made[dir] = true
	if err := makeParents(layer, path.Dir(dir), made); err != nil {
		return err
	}
	return add(layer, File{Path: dir, Dir: true})
}

// addTree adds a file, or a directory with all that it has.
func addTree(layer *tar.Writer, f File, made map[string]bool) error {
	if f.From == "" {
		return add(layer, f)
	}
	info, err := os.Stat(f.From)
	if err != nil || !info.IsDir() {
		return add(layer, f)
	}
	return filepath.WalkDir(f.From, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, err := filepath.Rel(f.From, name)
		if err != nil {
			return err
		}
		one := File{Path: path.Join(f.Path, filepath.ToSlash(below)), From: name, UID: f.UID, GID: f.GID}
		switch {
		case entry.IsDir():
			if made[one.Path] && below != "." {
				return nil
			}
			made[one.Path] = true
			one.Dir, one.From = true, ""
		case entry.Type()&fs.ModeSymlink != 0:
			if one.Link, err = os.Readlink(name); err != nil {
				return err
			}
			one.From = ""
		}
		return add(layer, one)
	})
}

// add adds one entry to an archive. What it writes does not depend on times.
func add(archive *tar.Writer, f File) error {
	header := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Uid: f.UID, Gid: f.GID, Mode: int64(f.Mode.Perm())}
	if f.Mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	var content io.Reader = strings.NewReader(f.Text)
	switch {
	case f.Dir:
		header.Typeflag = tar.TypeDir
		header.Name += "/"
		if header.Mode == 0 {
			header.Mode = 0o755
		}
	case f.Link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.Link, 0o777
	case f.From != "":
		file, err := os.Open(f.From)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		info, err := file.Stat()
		if err != nil {
			return err
		}
		header.Typeflag, header.Size, content = tar.TypeReg, info.Size(), file
		if header.Mode == 0 {
			header.Mode = int64(info.Mode().Perm())
		}
	default:
		header.Typeflag, header.Size = tar.TypeReg, int64(len(f.Text))
		if header.Mode == 0 {
			header.Mode = 0o644
		}
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := io.Copy(archive, content)
	return err
}

// Import makes images known to the node. They stay known after a power cut.
func (c *Cluster) Import(images ...Image) error {
	archive := c.path("data", "image.tar")
	defer func() { _ = os.Remove(archive) }()
	for _, image := range images {
		if err := image.write(c.path("data"), archive); err != nil {
			return fmt.Errorf("image %s: %w", image.Names[0], err)
		}
		if _, err := c.Run("ctr", "--address", c.ContainerdSocket(), "--namespace", "k8s.io", "images", "import", archive); err != nil {
			return fmt.Errorf("image %s: %w", image.Names[0], err)
		}
	}
	return nil
}

// Load imports an archive of docker or OCI that has the image of a name, and gives that image further names.
func (c *Cluster) Load(archive, name string, names ...string) error {
	ctr := func(args ...string) error {
		_, err := c.Run("ctr", append([]string{"--address", c.ContainerdSocket(), "--namespace", "k8s.io", "images"}, args...)...)
		return err
	}
	if err := ctr("import", archive); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	if len(names) == 0 {
		return nil
	}
	if err := ctr(append([]string{"tag", name}, names...)...); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}

// Libraries returns the shared libraries that programs of this machine need, as ldd finds them.
func Libraries(programs ...string) (files []File, err error) {
	seen := make(map[string]bool)
	for _, program := range programs {
		out, err := output(exec.Command("ldd", program))
		if err != nil {
			if strings.Contains(out+err.Error(), "not a dynamic executable") {
				continue
			}
			return nil, err
		}
		for word := range strings.FieldsSeq(out) {
			if strings.HasPrefix(word, "/") && !seen[word] {
				seen[word] = true
				files = append(files, File{Path: word, From: word})
			}
		}
	}
	return files, nil
}
