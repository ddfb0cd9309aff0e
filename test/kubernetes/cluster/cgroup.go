package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// unified says whether this machine has cgroup v2 alone.
func unified() bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	return err == nil
}

// makeCgroups makes a cgroup of the node: in v1 one in each hierarchy, below that of this process.
func makeCgroups(name string) (dirs []string, err error) {
	if unified() {
		return makeUnified(name)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // id:controllers:path
		if len(fields) != 3 || fields[1] == "" {
			continue
		}
		parent := filepath.Join(cgroupRoot, strings.TrimPrefix(fields[1], "name="), fields[2])
		if _, err := os.Stat(parent); err != nil {
			continue // not mounted here
		}
		dir := filepath.Join(parent, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return dirs, fmt.Errorf("a cgroup for the node: %w", err)
		}
		dirs = append(dirs, dir)
		if fields[1] == "cpuset" {
			if err := copyCpuset(parent, dir); err != nil {
				return dirs, err
			}
		}
	}
	if len(dirs) == 0 {
		return nil, errors.New("no cgroup hierarchy of this process is mounted: Kubernetes cannot limit containers here")
	}
	return dirs, nil
}

// copyCpuset gives a new cgroup of v1 the processors of its parent: it has none at first, and takes no process.
func copyCpuset(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return err
		}
	}
	return nil
}

// makeUnified makes a cgroup of v2 at the root: a cgroup that has processes of its own, as that of this process has, may
// not have controllers in those below it.
func makeUnified(name string) ([]string, error) {
	const needed = "+cpu +memory +pids +cpuset"
	if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte(needed), 0); err != nil {
		return nil, fmt.Errorf("the controllers %s are not to be had for a cgroup of the node: %w", needed, err)
	}
	dir := filepath.Join(cgroupRoot, name)
	return []string{dir}, os.MkdirAll(dir, 0o755)
}

// mountCgroups mounts what the node's cgroup namespace shows.
func mountCgroups() error {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if strings.HasPrefix(string(own), "0::") && strings.Count(string(own), "\n") == 1 {
		return mountUnified()
	}
	if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("%s: %w", cgroupRoot, err)
	}
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] == "" {
			continue
		}
		options, dir := fields[1], filepath.Join(cgroupRoot, strings.TrimPrefix(fields[1], "name="))
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", dir, "cgroup", 0, options); err != nil {
			return fmt.Errorf("the cgroups of %s: %w", fields[1], err)
		}
	}
	return nil
}

// mountUnified mounts v2. The node's first process moves out of the root, which is to have controllers.
func mountUnified() error {
	if err := unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("%s: %w", cgroupRoot, err)
	}
	leaf := filepath.Join(cgroupRoot, "node")
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0)
}

// removeCgroups removes the node's cgroups and all below them. The kernel may still be removing their processes.
func removeCgroups(dirs []string) {
	for _, dir := range dirs {
		for range 50 {
			if removeCgroup(dir) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // gone
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}
