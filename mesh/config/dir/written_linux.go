package dir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// writers is what is known of the processes that have a file open for writing.
type writers int

const (
	unknownWriters writers = iota // as for a file of another user, or on most network file systems
	noWriters
	someWriters
)

// writersOf asks the kernel, which gives a read lease for a file that nobody has open for writing.
func writersOf(path string) writers {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a named pipe would have it wait for a writer
	if err != nil {
		return unknownWriters
	}
	defer func() { _ = f.Close() }() // it was not written to; the lease ends with it
	switch _, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); {
	case err == nil:
		return noWriters
	case errors.Is(err, unix.EAGAIN):
		return someWriters
	}
	return unknownWriters
}
