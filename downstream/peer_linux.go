package downstream

import (
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const peersAreKnown = true

// usualGroups is room for the groups of most processes, to ask once.
const usualGroups = 32

// credentialsOf returns who connected.
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

// peerGroups returns the supplementary groups of who connected; none on a kernel
// that does not tell them (before 4.13, or gVisor). It makes room for so many at
// first.
//
// The call is made by hand because x/sys/unix has helpers for options of a fixed
// size and for texts only, which end at the first zero.
func peerGroups(fd uintptr, room int) ([]uint32, error) {
	for range 2 { // the second time there is room: who connected does not change
		gids := make([]uint32, room)
		size := uint32(room) * uint32(unsafe.Sizeof(gids[0]))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(gids))), uintptr(unsafe.Pointer(&size)), 0)
		n := int(size / uint32(unsafe.Sizeof(gids[0])))
		switch errno {
		case 0:
			return gids[:n], nil
		case unix.ERANGE:
			room = n // size says how much there is
		case unix.ENOPROTOOPT, unix.ENOSYS:
			return nil, nil
		default:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
		}
	}
	return nil, fmt.Errorf("getsockopt SO_PEERGROUPS: no room for %d groups", room)
}
