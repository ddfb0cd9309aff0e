package istio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// insideVariable says to a process that it is in the network namespace.
const insideVariable = "HOLDFAST_MATRIX_NAMESPACE"

// The addresses of the network namespace, in which all of 10.0.0.0/8 and fd00::/8 is local. The node of
// the Envoys has nodeAddress. Whoever connects from one of the sources is captured, as iptables rules
// of Istio would capture the connections of an application and of other machines.
const nodeAddress = "10.9.8.7"

// captures are the sources by their names in requests, and where their connections are redirected.
var captures = map[string]struct {
	source netip.Addr
	port   uint16
}{
	"app":        {netip.MustParseAddr("10.9.9.1"), 15001},
	"peer":       {netip.MustParseAddr("10.9.9.2"), 15006},
	"other-app":  {netip.MustParseAddr("10.9.9.3"), 16001},
	"other-peer": {netip.MustParseAddr("10.9.9.4"), 16006},
	"app6":       {netip.MustParseAddr("fd00::1"), 15001},
	"peer6":      {netip.MustParseAddr("fd00::2"), 15006},
}

// runInNamespace runs this program again in a network namespace of its own, and returns its exit code.
// It needs root or user namespaces.
func runInNamespace() (int, error) {
	runtime.LockOSThread() // the signal that ends the process with its parent belongs to the thread
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// setUpNamespace makes all addresses of the namespace local, and captures connections.
func setUpNamespace() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting loopback up: %w", err)
	}
	for _, prefix := range []string{"10.0.0.0/8", "fd00::/8"} {
		_, dst, err := net.ParseCIDR(prefix)
		if err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("adding the route to %s: %w", prefix, err)
		}
	}
	// Without them, nobody can connect from these addresses; Envoys behind captured connections use ::6.
	for _, address := range []string{"::6", "fd00::1", "fd00::2"} {
		ip := &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(128, 128)}
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("adding the address %s: %w", address, err)
		}
	}
	return capture()
}

// capture adds the rules that redirect connections.
func capture() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		table := c.AddTable(&nftables.Table{Name: "capture", Family: family})
		chain := c.AddChain(&nftables.Chain{
			Name: "output", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
		})
		for _, from := range captures {
			if from.source.Is4() == (family == nftables.TableFamilyIPv4) {
				c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: redirectFrom(from.source, from.port)})
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("adding rules that capture connections: %w", err)
	}
	return nil
}

// redirectFrom is a rule: TCP from this source goes to this port.
func redirectFrom(source netip.Addr, port uint16) []expr.Any {
	const sourceOffset4, sourceOffset6 = 12, 8 // in the header of IP
	offset := uint32(sourceOffset4)
	if source.Is6() {
		offset = sourceOffset6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(source.AsSlice()))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: source.AsSlice()},
		&expr.Immediate{Register: 1, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.Redir{RegisterProtoMin: 1},
	}
}
