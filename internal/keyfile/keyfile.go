// Package keyfile reads keys of 32 bytes from files: those that encrypt the state of an agent, and the Secrets of a mesh.
//
// It promises that a key that others could have read is refused, that a wrong file is an error that says what to do, and that
// no error quotes the content. Its functions may be called concurrently.
package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// Size is the size of a key, in bytes.
const Size = 32

const howToMake = "make one with: (umask 077; head -c 32 /dev/urandom >FILE)"

// greatestMode returns the greatest permissions of a key file. A file of root may also be readable for a group,
// because kubelet mounts a Secret that way for a pod with a group.
func greatestMode(owner, user int) fs.FileMode {
	if owner == 0 && user != 0 {
		return 0o640
	}
	return 0o600
}

// Load reads a key from a regular file of exactly 32 bytes that belongs to this user or root
// and that only its owner may read, or a group of root's file. path may be a symbolic link, as in a mounted
// Secret. No error quotes the content. A file system that hangs is an error after a few seconds.
func Load(path string) ([]byte, error) {
	key, err := userfile.ReadChecked(path, func(info fs.FileInfo) error { return check(path, info) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s", err, howToMake)
	case err == nil && len(key) != Size:
		err = fmt.Errorf("%s: changed while it was read", path)
	}
	if err != nil {
		return nil, err
	}
	return key, nil
}

func check(path string, info fs.FileInfo) error {
	switch uid := userfile.Owner(info); {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file: %s", path, howToMake)
	case uid != os.Geteuid() && uid != 0:
		return fmt.Errorf("%s: belongs to uid %d: want uid %d or root", path, uid, os.Geteuid())
	case info.Mode().Perm()&^greatestMode(uid, os.Geteuid()) != 0:
		return fmt.Errorf("%s: has mode %04o, so that others may read it: want 0600 or 0400 (chmod 0600 %s)", path, info.Mode().Perm(), path)
	case info.Size() > Size:
		return fmt.Errorf("%s: has %d bytes: want exactly %d, not encoded and without a line end; %s", path, info.Size(), Size, howToMake)
	case info.Size() < Size:
		return fmt.Errorf("%s: has %d bytes: want exactly %d; %s", path, info.Size(), Size, howToMake)
	}
	return nil
}
