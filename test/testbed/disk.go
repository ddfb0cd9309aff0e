package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// OnDisk returns what stands before a command, as root, so that a directory that exists is a disk of its own for it, of a size such as "512k".
func OnDisk(dir, size string) []string {
	return []string{"unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=" + size + ` tmpfs "$0" && exec "$@"`, dir}
}

// FillDisk fills the disk that a directory is for a process.
func FillDisk(pid int, dir string) error {
	f, err := os.Create(filepath.Join(fmt.Sprintf("/proc/%d/root%s", pid, dir), "filler"))
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is full
	for size := 64 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return err
		}
	}
	return nil
}
