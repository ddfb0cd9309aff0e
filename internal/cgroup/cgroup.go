// Package cgroup tells how much memory and CPU the control group of this process allows, in cgroup v2 and v1.
//
// It promises the smallest limit on the way from the process's own group up to the root that the process can see, for
// that is the one that counts; and that what is not limited, or not there at all (another system, no cgroup mounted),
// is zero and no error. It reads only; a file that is there and makes no sense is an error that names it.
//
// Its functions take the root of the file system, os.DirFS("/") in production, keep no state, and may be called
// concurrently.
package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Limits is what a process may use.
type Limits struct {
	// Memory is in bytes; 0: no limit.
	Memory uint64
	// CPU is in processors, 0.5 for half of one; 0: no limit.
	CPU float64
}

// unlimited is where memory.limit_in_bytes of cgroup v1 begins to mean none: the largest multiple of a page, 64 KiB being
// the largest page.
const unlimited = 1<<63 - 1<<16

// Read returns the limits of the process whose /proc/self and /sys/fs/cgroup are in root.
func Read(root fs.FS) (Limits, error) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return Limits{}, missingIsNone(err)
	}
	info, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return Limits{}, missingIsNone(err)
	}
	mounts := readMounts(info)
	var limits Limits
	for line := range strings.Lines(string(groups)) {
		// hierarchy-ID:controllers:path
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			return Limits{}, fmt.Errorf("cgroup: /proc/self/cgroup: %q is no line of it", line)
		}
		for _, controller := range strings.Split(parts[1], ",") {
			mount, mounted := mounts[controller]
			if !mounted {
				continue
			}
			if err := limits.narrow(root, controller, mount.point, mount.below(parts[2])); err != nil {
				return Limits{}, fmt.Errorf("cgroup: %w", err)
			}
		}
	}
	return limits, nil
}

func missingIsNone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("cgroup: %w", err)
}

// mount is where a hierarchy can be seen, and which of its groups is there.
type mount struct{ point, group string }

// below returns the path of a group relative to the mount point. What lies elsewhere, as the group of a container does
// whose mount shows only that group, is taken for the mount point itself.
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

// readMounts returns the mounts by controller; cgroup v2 is that of "".
func readMounts(mountinfo []byte) map[string]mount {
	mounts := make(map[string]mount)
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /group /mount/point options [optional] - type source options
		before, after, found := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !found || len(left) < 6 || len(right) < 3 {
			continue
		}
		m := mount{point: strings.Trim(unescape(left[4]), "/"), group: unescape(left[3])}
		switch right[0] {
		case "cgroup2":
			mounts[""] = m
		case "cgroup":
			for _, controller := range strings.Split(right[2], ",") {
				mounts[controller] = m
			}
		}
	}
	return mounts
}

// unescape turns the octal escapes of mountinfo back.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// narrow takes in the limits of a group and of all above it.
func (l *Limits) narrow(root fs.FS, controller, point, group string) error {
	for {
		dir := path.Join(point, group)
		var err error
		switch controller {
		case "":
			err = errors.Join(l.memory(root, path.Join(dir, "memory.max")), l.cpuMax(root, path.Join(dir, "cpu.max")))
		case "memory":
			err = l.memory(root, path.Join(dir, "memory.limit_in_bytes"))
		case "cpu":
			err = l.cpuQuota(root, path.Join(dir, "cpu.cfs_quota_us"), path.Join(dir, "cpu.cfs_period_us"))
		}
		if err != nil || group == "" {
			return err
		}
		if group = path.Dir(group); group == "." {
			group = ""
		}
	}
}

// text returns the content of a small file, "" for none.
func text(root fs.FS, name string) (string, error) {
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
	value, err := text(root, name)
	if err != nil || value == "" || value == "max" {
		return err
	}
	limit, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return fmt.Errorf("/%s: %q is no number of bytes", name, value)
	}
	if limit < unlimited && (l.Memory == 0 || limit < l.Memory) {
		l.Memory = limit
	}
	return nil
}

// cpuMax reads "QUOTA PERIOD" or "max PERIOD", in microseconds.
func (l *Limits) cpuMax(root fs.FS, name string) error {
	value, err := text(root, name)
	if err != nil || value == "" {
		return err
	}
	quota, period, _ := strings.Cut(value, " ")
	if quota == "max" {
		return nil
	}
	return l.cpu(name, quota, period)
}

func (l *Limits) cpuQuota(root fs.FS, quotaName, periodName string) error {
	quota, err := text(root, quotaName)
	if err != nil || quota == "" || quota == "-1" {
		return err
	}
	period, err := text(root, periodName)
	if err != nil {
		return err
	}
	return l.cpu(quotaName, quota, period)
}

func (l *Limits) cpu(name, quota, period string) error {
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
