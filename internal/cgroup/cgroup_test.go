package cgroup

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

const (
	v2Mount = "31 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	v1Mount = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
)

// files makes a file system of pairs of names and contents.
func files(pairs ...string) fstest.MapFS {
	out := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return out
}

func TestTheSmallestLimitOnTheWayUpCounts(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files fstest.MapFS
		want  Limits
	}{
		{"nothing at all", files(), Limits{}},
		{"no mounts", files("proc/self/cgroup", "0::/\n"), Limits{}},
		{"v2 in a namespace of its own", files(
			"proc/self/cgroup", "0::/\n", "proc/self/mountinfo", v2Mount,
			"sys/fs/cgroup/memory.max", "268435456\n", "sys/fs/cgroup/cpu.max", "150000 100000\n",
		), Limits{Memory: 256 << 20, CPU: 1.5}},
		{"v2 without a limit", files(
			"proc/self/cgroup", "0::/a\n", "proc/self/mountinfo", v2Mount,
			"sys/fs/cgroup/a/memory.max", "max\n", "sys/fs/cgroup/a/cpu.max", "max 100000\n",
		), Limits{}},
		{"v2, the pod allows less than the container", files(
			"proc/self/cgroup", "0::/pod/container\n", "proc/self/mountinfo", v2Mount,
			"sys/fs/cgroup/pod/container/memory.max", "2000\n", "sys/fs/cgroup/pod/memory.max", "1000\n",
			"sys/fs/cgroup/pod/container/cpu.max", "max 100000\n", "sys/fs/cgroup/pod/cpu.max", "50000 100000\n",
		), Limits{Memory: 1000, CPU: 0.5}},
		{"v2, the container allows less than the pod", files(
			"proc/self/cgroup", "0::/pod/container\n", "proc/self/mountinfo", v2Mount,
			"sys/fs/cgroup/pod/container/memory.max", "1000\n", "sys/fs/cgroup/pod/memory.max", "2000\n",
		), Limits{Memory: 1000}},
		{"v2, the mount shows a part of the tree", files(
			"proc/self/cgroup", "0::/pods/a\n", "proc/self/mountinfo", "31 23 0:26 /pods /cg rw - cgroup2 cgroup2 rw\n",
			"cg/a/memory.max", "1000\n",
		), Limits{Memory: 1000}},
		{"v2, the path is of the host and the mount of the container", files(
			"proc/self/cgroup", "0::/../other\n", "proc/self/mountinfo", "31 23 0:26 /pods/a /cg rw - cgroup2 cgroup2 rw\n",
			"cg/memory.max", "1000\n",
		), Limits{Memory: 1000}},
		{"a mount point with a space", files(
			"proc/self/cgroup", "0::/\n", "proc/self/mountinfo", `31 23 0:26 / /c\040g rw - cgroup2 cgroup2 rw`,
			"c g/memory.max", "1000\n",
		), Limits{Memory: 1000}},
		{"v1", files(
			"proc/self/cgroup", "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n0::/\n", "proc/self/mountinfo", v1Mount,
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "1000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n",
			"sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "300000\n", "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n",
		), Limits{Memory: 1000, CPU: 3}},
		{"v1 without a limit", files(
			"proc/self/cgroup", "4:memory:/\n3:cpu,cpuacct:/\n", "proc/self/mountinfo", v1Mount,
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n",
		), Limits{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Read(tc.files)
			if err != nil || got != tc.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestAFileThatMakesNoSenseIsAnErrorThatNamesIt(t *testing.T) {
	for _, tc := range []struct{ name, file, content, want string }{
		{"memory", "sys/fs/cgroup/memory.max", "lots", `/sys/fs/cgroup/memory.max: "lots" is no number of bytes`},
		{"cpu", "sys/fs/cgroup/cpu.max", "1", "/sys/fs/cgroup/cpu.max"},
		{"no cpu", "sys/fs/cgroup/cpu.max", "0 100000", "/sys/fs/cgroup/cpu.max"},
		{"groups", "proc/self/cgroup", "nonsense", "/proc/self/cgroup"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := files("proc/self/cgroup", "0::/\n", "proc/self/mountinfo", v2Mount)
			root[tc.file] = &fstest.MapFile{Data: []byte(tc.content)}
			if got, err := Read(root); err == nil || !strings.Contains(err.Error(), tc.want) || got != (Limits{}) {
				t.Errorf("%+v, %v, want %s", got, err, tc.want)
			}
		})
	}
}

func TestTheLimitsOfThisProcessCanBeRead(t *testing.T) {
	if _, err := Read(os.DirFS("/")); err != nil {
		t.Error(err)
	}
}
