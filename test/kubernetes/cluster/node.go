package cluster

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Variables of the node's first process: what it shall do, and that it is in its cgroup namespace already.
const (
	nodeVariable   = "HOLDFAST_KUBERNETES_NODE"
	insideVariable = "HOLDFAST_KUBERNETES_NODE_INSIDE"
)

// restartDelay is the time after which a component that ended is started again.
const restartDelay = time.Second

// nodeSpec is what the node's first process is told.
type nodeSpec struct {
	Dir        string
	Cgroups    []string
	Components []component
}

// component is a program of the node that is started again whenever it ends.
type component struct {
	Name string
	Args []string
}

// Reexec runs the node if this process is the first one of a node, and does not return then. Otherwise it does nothing.
func Reexec() {
	text := os.Getenv(nodeVariable)
	if text == "" {
		return
	}
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	var spec nodeSpec
	err := json.Unmarshal([]byte(text), &spec)
	if err == nil && os.Getenv(insideVariable) == "" {
		err = enterCgroups(spec)
	}
	if err == nil {
		err = spec.setUp()
	}
	if err != nil {
		log.Fatal("the node cannot start: ", err)
	}
	spec.supervise()
}

// enterCgroups moves this process into the node's cgroups and starts it again in a cgroup namespace, whose root they
// are. It returns only with an error.
func enterCgroups(spec nodeSpec) error {
	for _, dir := range spec.Cgroups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("entering the node's cgroup: %w", err)
		}
	}
	runtime.LockOSThread() // a namespace is a thread's; exec leaves only this one
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("a cgroup namespace: %w", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), insideVariable+"=1"))
}

// setUp makes the node's mounts and network.
func (n nodeSpec) setUp() error {
	if err := unix.Sethostname([]byte("node1")); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	// The machine's /sys has its own network and cgroups, which runc and kubelet would find first.
	for unix.Unmount("/sys", unix.MNT_DETACH) == nil {
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	if err := mountCgroups(); err != nil {
		return err
	}
	for _, dir := range nodeDirs {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/netns", "/run/lock"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("shared mounts: %w", err)
	}
	// What a node before a power cut left of pods that are gone.
	for _, dir := range []string{"cni", "containerd", "containerd.sock", "containerd.sock.ttrpc"} {
		_ = os.RemoveAll(filepath.Join(n.Dir, "run", dir))
	}
	return setUpNetwork()
}

// setUpNetwork makes the node's address, the bridge of the pods, and a route for services, so that the node itself may
// ask for them.
func setUpNetwork() error {
	for _, line := range []string{
		"ip link set lo up",
		"sysctl -qw net.ipv4.ip_forward=1",
		"sysctl -qw net.ipv4.conf.all.forwarding=1",
		"sysctl -qw net.bridge.bridge-nf-call-iptables=1", // a pod that asks for its own Service
		"ip link add node0 type bridge",
		"ip addr add " + NodeIP + "/24 dev node0",
		"ip link set node0 up",
		"ip link add cni0 type bridge",
		"ip addr add " + podGateway + " dev cni0",
		"ip link set cni0 up",
		"ip route add " + serviceIPs + " dev node0",
	} {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// supervise starts all components, and each again when it ends, and collects what is orphaned. It never returns.
func (n nodeSpec) supervise() {
	type start struct{ component }
	running := make(map[int]component)
	again := make(chan start, len(n.Components))
	for _, c := range n.Components {
		again <- start{c}
	}
	children := make(chan int)
	go reap(children)
	for {
		select {
		case s := <-again:
			pid, err := n.start(s.component)
			if err != nil {
				log.Printf("%s: %v", s.Name, err)
				time.AfterFunc(restartDelay, func() { again <- s })
				continue
			}
			running[pid] = s.component
		case pid := <-children:
			if c, ok := running[pid]; ok {
				delete(running, pid)
				time.AfterFunc(restartDelay, func() { again <- start{c} })
			}
		}
	}
}

// start starts a component; its output is appended to its log.
func (n nodeSpec) start(c component) (pid int, err error) {
	out, err := os.OpenFile(filepath.Join(n.Dir, "log", c.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }()
	program, err := exec.LookPath(c.Args[0])
	if err != nil {
		return 0, err
	}
	environ := os.Environ()
	for i, pair := range environ {
		if strings.HasPrefix(pair, nodeVariable) {
			environ[i] = "" // a component is not a node
		}
	}
	process, err := os.StartProcess(program, c.Args, &os.ProcAttr{Env: compact(environ), Files: []*os.File{null, out, out}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return 0, err
	}
	pid = process.Pid
	return pid, os.WriteFile(filepath.Join(n.Dir, "run", c.Name+".pid"), []byte(strconv.Itoa(pid)), 0o644)
}

func compact(environ []string) (rest []string) {
	for _, pair := range environ {
		if pair != "" {
			rest = append(rest, pair)
		}
	}
	return rest
}

// reap waits for all children, those that were orphaned included, and sends the id of each.
func reap(children chan<- int) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch err {
		case nil:
			children <- pid
		case syscall.EINTR:
		default: // there is no child at the moment
			time.Sleep(100 * time.Millisecond)
		}
	}
}
