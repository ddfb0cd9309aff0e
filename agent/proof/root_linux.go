package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// programs are the directories of programs and their libraries, in which there are many files and no sockets, but in what
// is mounted below them. system has those of the settings of the machine, too.
var (
	programs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"}
	system   = append(slices.Clone(programs), "/etc", "/var/lib/ca-certificates")
)

// devices are those that programs open without asking.
var devices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// maxEntries bounds the entries of a directory, with all below it, that is looked through for sockets. What has more is not
// in the sandbox.
const maxEntries = 50_000

// root is the root directory that the sandbox gets, while it is made below that of the machine: it has what the second
// agent and Envoy need, and nothing else. A Unix socket belongs to no network namespace, so that each that can be found by
// its path could be connected to.
type root struct{ at string }

// seal makes the root and the network of the sandbox, and puts into its directory in memory what the second agent
// and Envoy need.
func (in *job) seal(uid, gid uint32) error {
	unix.Umask(0o022) // the trial, which may be another user's, goes through the directories that are made
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := memory(in.Dir, "mode=0755"); err != nil {
		return fmt.Errorf("a directory in memory: %w", err)
	}
	r := root{in.Dir}
	writable, err := r.fill(in)
	if err != nil {
		return err
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, r.at, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("a file system that cannot be written to: %w", err)
	}
	for _, at := range writable {
		if err := unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("a directory in memory: %w", err)
		}
	}
	if err := in.put(r, uid, gid); err != nil {
		return err
	}
	if err := r.enter(); err != nil {
		return fmt.Errorf("a root of its own: %w", err)
	}
	return loopback()
}

// memory mounts an empty directory in memory.
func memory(at, options string) error {
	return unix.Mount("holdfast-proof", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

// fill puts everything into the root but what belongs to the trial itself, and returns the directories in memory that the
// trial writes to.
func (r root) fill(in *job) (writable []string, err error) {
	for _, path := range system {
		if err := r.show(path); err != nil {
			return nil, err
		}
	}
	if err := r.devices(); err != nil {
		return nil, err
	}
	if writable, err = r.memories("/tmp", "/dev/shm"); err != nil {
		return nil, err
	}
	// Directories that are named may have those that are hidden in them, which may have files that are named.
	var files []string
	for _, path := range in.named() {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			files = append(files, path)
		} else if err := r.show(path); err != nil {
			return nil, err
		}
	}
	hidden, err := r.memories(in.Dirs...)
	if err != nil {
		return nil, err
	}
	own := filepath.Join(r.at, in.Dir)
	if err := os.MkdirAll(own, 0o755); err != nil { // it may be in /tmp
		return nil, err
	}
	if err := memory(own, "mode=0700"); err != nil {
		return nil, fmt.Errorf("a directory in memory: %w", err)
	}
	writable = slices.Concat(writable, hidden, []string{own})
	for _, path := range files {
		if err := r.show(path); err != nil {
			return nil, err
		}
	}
	if err := r.hide(in.Files); err != nil {
		return nil, err
	}
	return writable, r.kernel()
}

func (r root) devices() error {
	for _, path := range devices {
		if err := r.bind(path, path); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, filepath.Join(r.at, "dev", link)); err != nil {
			return err
		}
	}
	return nil
}

// hide mounts something empty over files that the running Envoy writes to.
func (r root) hide(files []string) error {
	for _, path := range files {
		at := filepath.Join(r.at, path)
		if info, err := os.Lstat(at); err == nil && !info.Mode().IsRegular() {
			continue
		}
		if r.target(at, false) == nil {
			if err := unix.Mount("/dev/null", at, "", unix.MS_BIND, ""); err != nil {
				return fmt.Errorf("%s cannot be hidden: %w", path, err)
			}
		}
	}
	return nil
}

// kernel shows the processes of the sandbox, and no others, and what the kernel says of the machine.
func (r root) kernel() error {
	for _, dir := range []string{"/proc", "/sys"} {
		if err := os.MkdirAll(filepath.Join(r.at, dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("/sys", filepath.Join(r.at, "/sys"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	if err := unix.Mount("proc", filepath.Join(r.at, "/proc"), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("its own /proc: %w", err)
	}
	return nil
}

// memories mounts directories in memory that everybody may write to, and returns where.
func (r root) memories(dirs ...string) (made []string, err error) {
	for _, dir := range dirs {
		at := filepath.Join(r.at, dir)
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" || os.MkdirAll(at, 0o755) != nil {
			continue // an abstract socket, or a directory that is not in the sandbox
		}
		if err := memory(at, "mode=1777"); err != nil {
			return nil, fmt.Errorf("%s in memory: %w", dir, err)
		}
		made = append(made, at)
	}
	return made, nil
}

// put puts into the directory in memory what the second agent and Envoy need.
func (in *job) put(r root, uid, gid uint32) error {
	at := func(name string) string { return filepath.Join(r.at, in.path(name)) }
	if err := os.Chown(at(""), int(uid), int(gid)); err != nil {
		return err
	}
	if err := write(at(bootstrapName), in.Rewritten, uid, gid); err != nil {
		return err
	}
	if err := copyDir(in.StateDir, at(stateName), uid, gid); err != nil {
		return fmt.Errorf("the state cannot be copied: %w", err)
	}
	if in.IdentityDir != "" {
		if err := copyDir(in.IdentityDir, at(identityName), uid, gid); err != nil {
			return fmt.Errorf("the certificates cannot be copied: %w", err)
		}
	}
	return nil
}

// enter makes it the root of this process, and leaves that of the machine.
func (r root) enter() error {
	if err := os.Chdir(r.at); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // the former root is mounted over the new one
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Chdir("/")
}

// show makes a file or directory of the machine visible at the same path, without the sockets in it. What is not there, and
// what is neither, is not shown.
func (r root) show(path string) error {
	at := filepath.Join(r.at, path)
	link, err := os.Lstat(path)
	if err != nil {
		return nil //nolint:nilerr // it is not there
	}
	if link.Mode().Type() == fs.ModeSymlink && slices.Contains(system, path) { // /lib is usr/lib
		to, err := os.Readlink(path)
		if err == nil {
			err = os.Symlink(to, at)
		}
		return err
	}
	from, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil //nolint:nilerr // it leads nowhere
	}
	info, err := os.Stat(from)
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() || kernels(from) {
		return nil //nolint:nilerr // as above
	}
	if shown, err := os.Stat(at); err == nil && os.SameFile(shown, info) {
		return nil // with a directory that has it
	}
	if !info.IsDir() {
		return r.bind(from, path)
	}
	if in := filepath.Clean(r.at) + "/"; from == "/" || strings.HasPrefix(in, strings.TrimSuffix(from, "/")+"/") {
		return nil // the sandbox itself is in it
	}
	if err := r.bind(from, path); err != nil {
		return err
	}
	within := []string{at}
	if slices.Contains(programs, path) {
		points, err := mountPoints()
		if err != nil {
			return err
		}
		within = nil
		for _, point := range points {
			if strings.HasPrefix(point, at+"/") {
				within = append(within, point)
			}
		}
	}
	for _, dir := range within {
		if err := hideSockets(dir); errors.Is(err, errTooMany) {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				return err
			}
		} else if err != nil {
			return fmt.Errorf("the sockets in %s cannot be hidden: %w", path, err)
		}
	}
	return nil
}

// mountPoints returns where something is mounted.
func mountPoints() (paths []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	spaces := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			paths = append(paths, spaces.Replace(fields[4]))
		}
	}
	return paths, nil
}

// kernels reports whether a path is one of the kernel's: in /proc are the root directories of other processes, and a file of
// nsfs is a network.
func kernels(path string) bool {
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	var in unix.Statfs_t
	return unix.Statfs(path, &in) != nil || in.Type == unix.NSFS_MAGIC || in.Type == unix.PROC_SUPER_MAGIC
}

// target makes a mount point.
func (r root) target(at string, dir bool) error {
	if _, err := os.Stat(at); err == nil {
		return nil
	}
	if dir {
		return os.MkdirAll(at, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, nil, 0o644)
}

// bind mounts a file or directory of the machine, so that nothing is written to it, not even a mount point.
func (r root) bind(from, path string) error {
	info, err := os.Stat(from)
	if err != nil {
		return nil //nolint:nilerr // it is not there
	}
	at := filepath.Join(r.at, path)
	if err := r.target(at, info.IsDir()); err != nil {
		return nil //nolint:nilerr // it would be in a directory of the machine that has it not
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("%s cannot be shown: %w", path, err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("%s cannot be made one that is not written to: %w", path, err)
	}
	return nil
}

var errTooMany = errors.New("too many files")

// hideSockets mounts something that is no socket over each in a directory.
func hideSockets(dir string) error {
	entries := 0
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if entries++; entries > maxEntries {
			return errTooMany
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.Type() != fs.ModeSocket:
			return nil
		}
		return unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
	})
}

// named returns the files and directories that the bootstrap, the configuration of the running Envoy, and the settings of
// the agent name, and the programs.
func (in *job) named() (paths []string) {
	add := func(text string) {
		for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '=' }) {
			if filepath.IsAbs(part) {
				paths = append(paths, filepath.Clean(part))
			}
		}
	}
	tree := func(text []byte, of func(key string) bool) {
		var tree any
		if json.Unmarshal(text, &tree) == nil {
			texts(tree, "", func(key, text string) {
				if of(key) {
					add(text)
				}
			})
		}
	}
	tree(in.Rewritten, isPath)
	tree(in.Running, isPath)
	for _, pair := range in.Environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "HOLDFAST_") && !strings.HasPrefix(name, "SSL_CERT_") {
			continue
		}
		add(value)
		if name == "HOLDFAST_CONFIG" {
			if data, err := os.ReadFile(value); err == nil {
				if text, err := yaml.YAMLToJSON(bytes.TrimSpace(data)); err == nil {
					tree(text, func(string) bool { return true })
				}
			}
		}
	}
	for _, dir := range []string{in.StateDir, in.IdentityDir} { // of which there are copies
		paths = slices.DeleteFunc(paths, func(path string) bool { return dir != "" && path == dir })
	}
	program, err := os.Executable()
	if err == nil {
		paths = append(paths, program)
	}
	paths = append(paths, in.Envoy)
	slices.Sort(paths) // a directory before what is in it
	return slices.Compact(paths)
}

// isPath reports whether a field of Envoy's API may have the path of a file or a directory: path, filename, symlink_root,
// library, proto_descriptor and others.
func isPath(field string) bool {
	return slices.ContainsFunc([]string{"path", "file", "root", "library", "descriptor"}, func(part string) bool { return strings.Contains(field, part) })
}

// texts calls f with every text of a tree of JSON, and the key that it is below.
func texts(tree any, key string, f func(key, text string)) {
	switch tree := tree.(type) {
	case string:
		f(key, tree)
	case map[string]any:
		for key, value := range tree {
			texts(value, key, f)
		}
	case []any:
		for _, value := range tree {
			texts(value, key, f)
		}
	}
}
