package owndir

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// isVolume reports whether a file system is mounted on a directory. If the kernel does not report it
// (before 5.8, gVisor), a device that differs from the parent's indicates a mount.
func isVolume(dir string) bool {
	var here, above unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &here) != nil {
		return false
	}
	if here.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return here.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	}
	if unix.Statx(unix.AT_FDCWD, filepath.Dir(dir), unix.AT_SYMLINK_NOFOLLOW, 0, &above) != nil {
		return false
	}
	return here.Dev_major != above.Dev_major || here.Dev_minor != above.Dev_minor
}
