package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// programs are those of the system that a node needs, with Debian's package of each.
var programs = []struct{ file, pkg string }{
	{"containerd", "containerd"},
	{"ctr", "containerd"},
	{"runc", "runc"},
	{"/usr/lib/cni/bridge", "containernetworking-plugins"},
	{"/usr/lib/cni/host-local", "containernetworking-plugins"},
	{"/usr/lib/cni/portmap", "containernetworking-plugins"},
	{"iptables", "iptables"},
	{"nft", "nftables"},
	{"conntrack", "conntrack"},
	{"pgrep", "procps"},
	{"ip", "iproute2"},
	{"nsenter", "util-linux"},
}

// Check returns an error that says what this machine lacks for a node.
func Check() error {
	var missing, packages []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.file); err == nil {
			continue
		}
		if _, err := os.Stat("/usr/sbin/" + p.file); err == nil {
			continue
		}
		missing = append(missing, p.file)
		if len(packages) == 0 || packages[len(packages)-1] != p.pkg {
			packages = append(packages, p.pkg)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: not found. Install Debian's packages: apt-get install --no-install-recommends %s", strings.Join(missing, ", "), strings.Join(packages, " "))
	}
	if os.Getuid() != 0 {
		return errors.New("a Kubernetes node needs root: it makes namespaces, mounts and cgroups")
	}
	return nil
}
