// Package cgroup reads the memory and CPU limits of this process's control group, in cgroup v2 and v1.
//
// It promises to return the smallest limit from the process's own group up to the visible root, which
// is the effective one, and zero without an error if there is no limit or no control group (another
// system, no cgroup mounted). A file with invalid content is an error that names the file. It does not
// write.
//
// Its functions take the root of the file system, os.DirFS("/") in production, have no state, and may
// be called concurrently.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Limits are the resources that a process may use.
type Limits struct {
	// Memory is in bytes; 0 for no limit.
	Memory uint64
	// CPU is in processors, 0.5 for half of one; 0 for no limit.
	CPU float64
}

// noLimit is the least memory.limit_in_bytes of cgroup v1 that means no limit: the largest multiple of
// a page, for pages of 64 KiB, the largest size.
const noLimit = 1<<63 - 1<<16

// Read returns the limits of the process whose /proc/self and /sys/fs/cgroup are in root.
func Read(root fs.FS) (Limits, error) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return Limits{}, ignoreMissing(err)
	}
	info, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return Limits{}, ignoreMissing(err)
	}
	mounts := readMounts(string(info))
	var limits Limits
	for line := range strings.Lines(string(groups)) {
		// hierarchy-ID:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			return Limits{}, fmt.Errorf("cgroup: /proc/self/cgroup: %q is no line of it", line)
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			mount, mounted := mounts[controller]
			if !mounted {
				continue
			}
			if err := limits.addGroup(root, controller, mount.point, mount.below(parts[2])); err != nil {
				return Limits{}, fmt.Errorf("cgroup: %w", err)
			}
		}
	}
	return limits, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("cgroup: %w", err)
}

// mount is the mount point of a hierarchy, and the group that is visible there.
type mount struct{ point, group string }

// below returns the path of a group relative to the mount point. A group outside of it, as in a
// container whose mount shows only its own group, is mapped to the mount point itself.
func (m mount) below(group string) string {
	if m.group == "/" {
		return strings.Trim(group, "/")
	}
	rest, inside := strings.CutPrefix(group, m.group)
	if !inside || (rest != "" && rest[0] != '/') {
		return ""
	}
	return strings.Trim(rest, "/")
}

// readMounts returns the mounts by controller; "" is the key of cgroup v2.
func readMounts(mountinfo string) map[string]mount {
	mounts := make(map[string]mount)
	for line := range strings.Lines(mountinfo) {
		// 36 35 98:0 /group /mount/point options [optional] - type source options
		before, after, found := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 6 || len(right) < 3 {
			continue
		}
		m := mount{point: strings.Trim(unescape(left[4]), "/"), group: unescape(left[3])}
		switch right[0] {
		case "cgroup2":
			mounts[""] = m
		case "cgroup":
			for controller := range strings.SplitSeq(right[2], ",") {
				mounts[controller] = m
			}
		}
	}
	return mounts
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// addGroup applies the limits of a group and of all groups above it.
func (l *Limits) addGroup(root fs.FS, controller, point, group string) error {
	for {
		dir := path.Join(point, group)
		var err error
		switch controller {
		case "":
			err = errors.Join(l.memory(root, path.Join(dir, "memory.max")), l.cpu(root, path.Join(dir, "cpu.max"), ""))
		case "memory":
			err = l.memory(root, path.Join(dir, "memory.limit_in_bytes"))
		case "cpu":
			err = l.cpu(root, path.Join(dir, "cpu.cfs_quota_us"), path.Join(dir, "cpu.cfs_period_us"))
		}
		if err != nil || group == "" {
			return err
		}
		if group = path.Dir(group); group == "." {
			group = ""
		}
	}
}

// readText returns the content of a small file, "" if it does not exist.
func readText(root fs.FS, name string) (string, error) {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}

func (l *Limits) memory(root fs.FS, name string) error {
	value, err := readText(root, name)
	if err != nil || value == "" || value == "max" {
		return err
	}
	limit, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return fmt.Errorf("/%s: %q is no number of bytes", name, value)
	}
	if limit < noLimit && (l.Memory == 0 || limit < l.Memory) {
		l.Memory = limit
	}
	return nil
}

// cpu reads "QUOTA PERIOD" from one file or, if there is a periodName, each from a file of its own; in
// microseconds.
func (l *Limits) cpu(root fs.FS, name, periodName string) error {
	quota, err := readText(root, name)
	if err != nil {
		return err
	}
	quota, period, _ := strings.Cut(quota, " ")
	if quota == "" || quota == "max" || quota == "-1" {
		return nil
	}
	if periodName != "" {
		if period, err = readText(root, periodName); err != nil {
			return err
		}
	}
	q, errQ := strconv.ParseUint(quota, 10, 63)
	p, errP := strconv.ParseUint(period, 10, 63)
	if errQ != nil || errP != nil || q == 0 || p == 0 {
		return fmt.Errorf("/%s: %q of every %q µs is no share of a CPU", name, quota, period)
	}
	if limit := float64(q) / float64(p); l.CPU == 0 || limit < l.CPU {
		l.CPU = limit
	}
	return nil
}
