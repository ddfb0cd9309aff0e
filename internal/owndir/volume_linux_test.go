package owndir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The root of an emptyDir is root's and open to everybody. The directories that the agent
// makes in it are its own.
func TestTheRootOfAVolumeMayBeOpenToEverybody(t *testing.T) {
	volume := filepath.Join(t.TempDir(), "volume")
	kind{0o777, false}.make(t, volume)
	if isVolume(volume) {
		t.Error("a directory that nothing is mounted on is taken for a volume")
	}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the mounts of the thread are its own
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(volume, volume, "", unix.MS_BIND, "")
		}
		if err != nil {
			ended <- &mountError{err}
			return
		}
		if !isVolume(volume) {
			ended <- errors.New("a volume is not taken for one")
			return
		}
		for _, path := range []string{volume, filepath.Join(volume, "below", "deeper")} {
			d, err := Open(path, Use{Name: "directory", Sub: "sub", Group: -1})
			if err != nil {
				ended <- err
				return
			}
			_ = d.Root.Close()
		}
		ended <- nil
	}()
	err := <-ended
	if _, ok := errors.AsType[*mountError](err); ok {
		t.Skip("this machine allows no mounts: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []string{"sub", "below", "below/deeper"} {
		if m := mode(t, filepath.Join(volume, made)); m != 0o700 {
			t.Errorf("%s has mode %s", made, m)
		}
	}
	if info, err := os.Stat(volume); err != nil || info.Mode().Perm() != fs.FileMode(0o777) {
		t.Errorf("the volume: %v, %v", info, err)
	}
}

// mountError says that the test may not make mounts.
type mountError struct{ error }
