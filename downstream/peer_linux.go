package downstream

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const peersAreKnown = true

// usualGroups is a buffer size that suffices for the groups of most processes with one call.
const usualGroups = 32

func credentialsOf(c *net.UnixConn) (p credentials, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return credentials{}, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			err = os.NewSyscallError("getsockopt SO_PEERCRED", err)
			return
		}
		p = credentials{uid: cred.Uid, gid: cred.Gid, pid: cred.Pid}
		p.groups, err = peerGroups(fd, usualGroups)
	})
	if controlErr != nil {
		return credentials{}, controlErr
	}
	return p, err
}

// startOf returns when a process was started, in the kernel's clock ticks since the system was.
func startOf(pid int32) (ticks uint64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the name of the program in parentheses, which may contain anything (proc_pid_stat(5)).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: %d fields after the name", pid, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64) // field 22, starttime
}

// peerGroups returns the supplementary groups of the process that connected; none on a kernel
// that does not report them (before 4.13, or gVisor). room is the size of the first buffer.
//
// The call is made directly because x/sys/unix has helpers only for options of a fixed size and
// for strings, which end at the first zero byte.
func peerGroups(fd uintptr, room int) ([]uint32, error) {
	for range 2 { // room suffices the second time, since the groups at connect time do not change
		gids := make([]uint32, room)
		size := uint32(room) * uint32(unsafe.Sizeof(gids[0]))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(gids))), uintptr(unsafe.Pointer(&size)), 0)
		n := int(size / uint32(unsafe.Sizeof(gids[0])))
		switch errno {
		case 0:
			return gids[:n], nil
		case unix.ERANGE:
			room = n // size is the size that is needed
		case unix.ENOPROTOOPT, unix.ENOSYS:
			return nil, nil
		default:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
		}
	}
	return nil, fmt.Errorf("getsockopt SO_PEERGROUPS: no room for %d groups", room)
}
