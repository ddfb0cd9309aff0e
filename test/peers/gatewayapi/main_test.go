package gatewayapi

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Gateways listen on ports such as 80 and 443, each at an address of its own, and so do the suite's backends. The tests therefore run in
// a network namespace that has nothing but a bridge, and each Envoy and each backend in one of its own that is connected to it. The
// namespaces end with their processes. The tests are also process 1 of a namespace of processes, so that nothing survives them,
// however they end.
const (
	bridge   = "pods"
	hostAddr = "10.77.0.1"
	// insideVariable says to the test binary that it is in the namespaces, podCommand that it is to become a process of a pod.
	insideVariable = "HOLDFAST_CONFORMANCE_INSIDE"
	podCommand     = "pod"
	// echoVariable and definitionsVariable are what is found before the namespaces are entered: the program of the suite's backends, and
	// the directory of the definitions of the Gateway API.
	echoVariable        = "HOLDFAST_CONFORMANCE_ECHO"
	definitionsVariable = "HOLDFAST_CONFORMANCE_DEFINITIONS"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == podCommand {
		fmt.Fprintln(os.Stderr, becomePod(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	if os.Getenv(insideVariable) != "" {
		if err := makeBridge(); err != nil {
			fmt.Fprintln(os.Stderr, "making the bridge of the pods:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	code, err := enter()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// enter runs the tests in namespaces of their own, and returns their exit code.
func enter() (int, error) {
	dir, err := os.MkdirTemp("", "holdfast-echo-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	echo := filepath.Join(dir, "echo-basic")
	if out, err := exec.Command("go", "build", "-o", echo, "sigs.k8s.io/gateway-api/conformance/echo-basic").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("building the suite's backend: %w\n%s", err, out)
	}
	api, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		return 1, fmt.Errorf("looking for the Gateway API: %w", err)
	}
	runtime.LockOSThread() // the death of this thread is that of the tests
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1", echoVariable+"="+echo,
		definitionsVariable+"="+filepath.Join(strings.TrimSpace(string(api)), "config", "crd"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if uid := os.Getuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 1, fmt.Errorf("entering a network namespace of the tests, as root or with user namespaces: %w", err)
	}
	return 0, nil
}

func up(h *netlink.Handle, name string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return link, h.LinkSetUp(link)
}

func addAddress(h *netlink.Handle, link netlink.Link, ip string) error {
	return h.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(16, 32)}})
}

// makeBridge connects the network namespace of the tests with those of the pods.
func makeBridge() error {
	h, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	if _, err := up(h, "lo"); err != nil {
		return err
	}
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
		return err
	}
	link, err := up(h, bridge)
	if err != nil {
		return err
	}
	return addAddress(h, link, hostAddr)
}

// becomePod replaces this process by a program in a network namespace of its own, with an address. It returns only with an error.
func becomePod(ip string, argv []string) error {
	runtime.LockOSThread()
	// /proc has the processes by their numbers outside, so that a namespace is not found by the number of a process.
	tests, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	outside, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("making a network namespace: %w", err)
	}
	inside, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	end := fmt.Sprintf("pod%d", os.Getpid())
	if err := inside.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: end, PeerNamespace: netlink.NsFd(int(tests.Fd()))}); err != nil {
		return fmt.Errorf("connecting the pod: %w", err)
	}
	if _, err := up(inside, "lo"); err != nil {
		return err
	}
	eth0, err := up(inside, "eth0")
	if err != nil {
		return err
	}
	if err := addAddress(inside, eth0, ip); err != nil {
		return err
	}
	peer, err := up(outside, end)
	if err != nil {
		return err
	}
	pods, err := outside.LinkByName(bridge)
	if err != nil {
		return err
	}
	if err := outside.LinkSetMaster(peer, pods); err != nil {
		return err
	}
	inside.Close()
	outside.Close()
	return syscall.Exec(argv[0], argv, os.Environ())
}
