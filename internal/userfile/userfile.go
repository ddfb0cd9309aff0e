// Package userfile reads files that a user names: settings, bootstraps, certificates, keys and tokens.
//
// It promises that a wrong file name costs neither memory nor time: only regular files of a limited size are
// read, and a file system that hangs delays the caller by a few seconds at most. It does not check who owns a
// file. Its functions may be called concurrently.
package userfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// The size limits of Read and of ReadSecret, in bytes.
const (
	Max       = 16 << 20
	MaxSecret = 64 << 10
)

const timeout = 5 * time.Second

// Read returns the content of a regular file of at most Max bytes, or the target of a link. Errors name the file;
// that for a missing file satisfies errors.Is(err, fs.ErrNotExist).
func Read(path string) ([]byte, error) {
	return Within(path, func() ([]byte, error) { return read(path, Max, nil) })
}

// ReadSecret is Read for keys and tokens, of at most MaxSecret bytes.
func ReadSecret(path string) ([]byte, error) {
	return ReadChecked(path, nil)
}

// ReadChecked is ReadSecret for a file that passes a check of its type, owner, mode and size.
func ReadChecked(path string, check func(fs.FileInfo) error) ([]byte, error) {
	return Within(path, func() ([]byte, error) { return read(path, MaxSecret, check) })
}

// ReadUpTo is ReadChecked for a file of at most limit bytes.
func ReadUpTo(path string, limit int, check func(fs.FileInfo) error) ([]byte, error) {
	return Within(path, func() ([]byte, error) { return read(path, limit, check) })
}

// OthersMayRead reports whether every user of the machine may read a file.
func OthersMayRead(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm()&0o004 != 0
}

// Within returns the result of read, which reads the file at path, or an error if that takes too long. The
// goroutine of a read that the file system does not answer ends when it is answered; until then no other read of the path begins, so that a
// file system that hangs costs one thread for each path, however often it is read.
func Within(path string, read func() ([]byte, error)) ([]byte, error) {
	return within(path, timeout, read)
}

func within(path string, limit time.Duration, read func() ([]byte, error)) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	slow := fmt.Errorf("%s: not read within %s: %w", path, limit, ErrSlow)
	turn := takeTurns(path)
	select {
	case turn.busy <- struct{}{}:
	case <-late.C:
		turn.leave()
		return nil, slow
	}
	done := make(chan result, 1)
	go func() {
		defer turn.leave()
		defer func() { <-turn.busy }()
		data, err := read()
		done <- result{data, err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-late.C:
		return nil, slow
	}
}

// turns are the reads of one path, which take turns.
type turns struct {
	path string
	busy chan struct{} // has a value while one reads
	n    int           // that read or wait; under paths.mu
}

// paths has the turns of the paths that are read now.
var paths = struct {
	mu sync.Mutex
	of map[string]*turns
}{of: make(map[string]*turns)}

func takeTurns(path string) *turns {
	paths.mu.Lock()
	defer paths.mu.Unlock()
	t := paths.of[path]
	if t == nil {
		t = &turns{path: path, busy: make(chan struct{}, 1)}
		paths.of[path] = t
	}
	t.n++
	return t
}

func (t *turns) leave() {
	paths.mu.Lock()
	defer paths.mu.Unlock()
	if t.n--; t.n == 0 {
		delete(paths.of, t.path)
	}
}

func read(path string, limit int, check func(fs.FileInfo) error) ([]byte, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("%s: it is a socket: name a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // the file is only read
	info, err := f.Stat()
	if err == nil && check != nil {
		err = check(info)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: it is %s: name a regular file", path, FileType(info.Mode()))
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > limit:
		return nil, fmt.Errorf("%s: it is larger than the limit of %d KiB: is it the right file?", path, limit>>10)
	}
	return data, nil
}

// FileType describes the type of a file, for errors.
func FileType(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "a file"
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// Owner returns the user that owns a file, -1 if unknown.
func Owner(info fs.FileInfo) int {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(sys.Uid)
	}
	return -1
}
