// Package cluster runs a real Kubernetes of one node on this machine: etcd, API server, controller manager, scheduler,
// kubelet and kube-proxy of module components, with containerd, runc and CNI plugins of the system. All of it lives in
// namespaces of its own (mount, network, PID, IPC, UTS, cgroup): no port of the machine is opened, and nothing of it is
// left after Stop. It needs root.
//
// A program that uses it calls Reexec first: the node's first process is that program, started again.
package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Addresses of the node's network.
const (
	NodeIP      = "172.31.0.1"
	podRange    = "10.88.0.0/16"
	podGateway  = "10.88.0.1/16"
	serviceIPs  = "10.96.0.0/16"
	apiServerIP = "10.96.0.1"
	// DNS is the address of the cluster's name server, CoreDNS.
	DNS = "10.96.0.10"
)

// Config says where a cluster lives.
type Config struct {
	// Components is the directory with the programs k8s and coredns that `make kubernetes` builds.
	Components string
	// Dir is a directory of its own, with at most 60 bytes: that of a Unix socket is below it.
	Dir string
	// Logf reports the steps of the start; nil for nobody.
	Logf func(format string, args ...any)
}

// nodeDirs are empty in the node: what CNI, kubelet and containerd write to fixed places stays in it. Every machine has
// them: a mount point that is made, and removed by the end of one node, would vanish below another one.
var nodeDirs = []string{"/run", "/var/log", "/var/lib"}

// Cluster is a Kubernetes of one node.
type Cluster struct {
	cfg     Config
	node    *exec.Cmd
	ended   chan struct{} // closed when node has ended
	cgroups []string      // directories of the node's cgroups
}

// Start starts a cluster, and returns when its node is Ready.
func Start(cfg Config) (*Cluster, error) {
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	if err := Check(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg}
	for _, dir := range []string{"bin", "cni", "run", "data", "etc/cni", "pki", "log"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"k8s", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"} {
		if err := os.Symlink(filepath.Join(cfg.Components, "k8s"), c.path("bin", name)); err != nil {
			return nil, err
		}
	}
	if err := c.linkPlugins(); err != nil {
		return nil, err
	}
	if err := c.writePKI(); err != nil {
		return nil, err
	}
	if err := c.writeSettings(); err != nil {
		return nil, err
	}
	if err := c.Boot(); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// linkPlugins gives the node a directory of CNI plugins, to which others may be added.
func (c *Cluster) linkPlugins() error {
	plugins, err := filepath.Glob("/usr/lib/cni/*")
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		if err := os.Symlink(plugin, filepath.Join(c.CNIPlugins(), filepath.Base(plugin))); err != nil {
			return err
		}
	}
	return nil
}

// CNIPlugins and CNISettings are the directories of the node's CNI.
func (c *Cluster) CNIPlugins() string  { return c.path("cni") }
func (c *Cluster) CNISettings() string { return c.path("etc", "cni") }

// path returns a path in the cluster's directory.
func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.cfg.Dir}, parts...)...)
}

// Boot starts the node, with the data that it had before PowerOff, and returns when it is Ready.
func (c *Cluster) Boot() error {
	began := time.Now()
	if err := c.startNode(); err != nil {
		return err
	}
	if err := c.await(time.Minute, func() error {
		_, err := c.Kubectl("get", "--raw", "/readyz")
		return err
	}); err != nil {
		return fmt.Errorf("the API server is not ready: %w\n%s", err, c.Logs())
	}
	c.cfg.Logf("API server ready after %.1f s", time.Since(began).Seconds())
	if err := c.await(time.Minute, func() error {
		_, err := c.Kubectl("wait", "--for=condition=Ready", "node/node1", "--timeout=1s")
		return err
	}); err != nil {
		return fmt.Errorf("the node is not Ready: %w\n%s", err, c.Logs())
	}
	if err := c.await(time.Minute, func() error {
		_, err := c.Kubectl("get", "serviceaccount", "default")
		return err
	}); err != nil {
		return fmt.Errorf("the controller manager makes no service accounts: %w\n%s", err, c.Logs())
	}
	c.cfg.Logf("node Ready after %.1f s", time.Since(began).Seconds())
	return nil
}

// await polls a condition until it holds or the node has ended.
func (c *Cluster) await(limit time.Duration, condition func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-c.ended:
			return fmt.Errorf("the node has ended: %w", err)
		default:
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// startNode starts the node's first process, in cgroups and namespaces of its own.
func (c *Cluster) startNode() (err error) {
	if c.cgroups, err = makeCgroups(filepath.Base(c.cfg.Dir)); err != nil {
		return err
	}
	spec, err := json.Marshal(nodeSpec{Dir: c.cfg.Dir, Cgroups: c.cgroups, Components: c.components()})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(c.path("log", "node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	c.node = exec.Command(self)
	c.node.Env = append(os.Environ(), nodeVariable+"="+string(spec), "PATH="+c.path("bin")+":/usr/lib/cni:/usr/sbin:/sbin:"+os.Getenv("PATH"))
	c.node.Stdout, c.node.Stderr = log, log
	c.node.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	if err := c.node.Start(); err != nil {
		return fmt.Errorf("starting the node in namespaces of its own: %w (it needs root and CAP_SYS_ADMIN)", err)
	}
	ended := make(chan struct{})
	c.ended = ended
	go func() {
		_ = c.node.Wait()
		close(ended)
	}()
	return nil
}

// PowerOff ends the node at once, as a power cut does. Its data stays.
func (c *Cluster) PowerOff() {
	if c.node == nil {
		return
	}
	_ = c.node.Process.Kill() // all of its PID namespace goes with it
	<-c.ended
	c.node = nil
	removeCgroups(c.cgroups)
}

// Stop ends the cluster and removes its directory.
func (c *Cluster) Stop() {
	c.PowerOff()
	_ = os.RemoveAll(c.cfg.Dir)
}

// ContainerdSocket is the path of containerd's socket.
func (c *Cluster) ContainerdSocket() string { return c.path("run", "containerd.sock") }

// Kubeconfig is the file with which kubectl has all rights.
func (c *Cluster) Kubeconfig() string { return c.path("pki", "admin.kubeconfig") }

// PodPath is a path of a pod's, in the node.
func (c *Cluster) PodPath(uid, below string) string {
	return c.path("data", "kubelet", "pods", uid, below)
}

// PID returns the id of the node's first process.
func (c *Cluster) PID() int { return c.node.Process.Pid }

// Command makes a command that runs in the node's network and mounts. It is not in the node's PID namespace, so that the
// process that is started is the command itself.
func (c *Cluster) Command(name string, args ...string) *exec.Cmd {
	return c.enter([]string{"--mount", "--net"}, name, args...)
}

// Run runs a command in all namespaces of the node, and returns what it wrote to standard output.
func (c *Cluster) Run(name string, args ...string) (string, error) {
	return output(c.enter([]string{"--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup"}, name, args...))
}

func (c *Cluster) enter(namespaces []string, name string, args ...string) *exec.Cmd {
	line := slices.Concat([]string{"--target", strconv.Itoa(c.PID())}, namespaces, []string{"--", name}, args)
	cmd := exec.Command("nsenter", line...)
	cmd.Env = append(os.Environ(), "PATH="+c.path("bin")+":/usr/sbin:/sbin:"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// KubectlCommand makes a command of kubectl, with all rights.
func (c *Cluster) KubectlCommand(args ...string) *exec.Cmd {
	return c.Command("kubectl", append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
}

// Kubectl runs kubectl, and returns what it wrote to standard output.
func (c *Cluster) Kubectl(args ...string) (string, error) { return output(c.KubectlCommand(args...)) }

// Apply applies documents.
func (c *Cluster) Apply(documents string, args ...string) error {
	cmd := c.KubectlCommand(append([]string{"apply", "-f", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(documents)
	_, err := output(cmd)
	return err
}

// Restart kills one component of the node, such as kubelet, which is started again one second later.
func (c *Cluster) Restart(component string) error {
	pid, err := os.ReadFile(c.path("run", component+".pid"))
	if err != nil {
		return err
	}
	_, err = c.Run("kill", "-9", strings.TrimSpace(string(pid)))
	return err
}

// Logs returns the ends of the components' logs, for an error message.
func (c *Cluster) Logs() string {
	files, _ := filepath.Glob(c.path("log", "*.log"))
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		fmt.Fprintf(&all, "--- %s\n%s\n", filepath.Base(file), lastLines(string(text), 8))
	}
	return all.String()
}

func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// output runs a command and returns its standard output; an error has its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		return string(out), nil
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	line := cmd.Args[slices.Index(cmd.Args, "--")+1:] // without nsenter
	return string(out), fmt.Errorf("%s: %w", strings.Join(line, " "), err)
}
