package events

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// MaxFile is the size, in bytes, at which the file on disk is kept as the older one and a new one begins.
const MaxFile = 8 << 20

// Name is the name of the file in the state directory.
const Name = "events.jsonl"

// retryAfter is the time between two attempts to write to a disk that fails.
const retryAfter = 10 * time.Second

// file is the file of the events, one JSON object a line.
type file struct {
	path    string
	f       *os.File
	size    int64
	retryAt time.Time // the zero time if the last write succeeded
}

// older returns the path of the file before.
func older(path string) string { return strings.TrimSuffix(path, ".jsonl") + ".1.jsonl" }

// failed records a failed write, and reports whether it is the first one.
func (f *file) failed(now time.Time) (first bool) {
	first = f.retryAt.IsZero()
	f.retryAt = now.Add(retryAfter)
	f.close()
	return first
}

func (f *file) close() {
	if f.f != nil {
		_ = f.f.Close()
		f.f = nil
	}
}

// append appends lines. What was written by halves is ended by a line break by the next write.
func (f *file) append(lines []byte) error {
	if f.f != nil && !f.inPlace() {
		f.close()
	}
	if f.f == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if f.size+int64(len(lines)) > MaxFile && f.size > 0 {
		f.close()
		if err := os.Rename(f.path, older(f.path)); err != nil {
			return err
		}
		if err := f.open(); err != nil {
			return err
		}
	}
	n, err := f.f.Write(lines)
	f.size += int64(n)
	if err != nil {
		return err
	}
	f.retryAt = time.Time{}
	return nil
}

// inPlace reports whether the open file is still the one of that name.
func (f *file) inPlace() bool {
	open, err := f.f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.path)
	return err == nil && os.SameFile(open, there)
}

func (f *file) open() error {
	if info, err := os.Lstat(f.path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.path)
	}
	// Its directory is made and checked by the store.
	out, err := os.OpenFile(f.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := out.Stat()
	if err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err = out.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			_, err = out.Write([]byte("\n")) // a process died while it wrote
		}
	}
	if err != nil {
		return errors.Join(err, out.Close())
	}
	f.f, f.size = out, info.Size()
	return nil
}

// maxLine bounds a line that is read.
const maxLine = 1 << 20

// Read returns the events in a file, and in the one before, that pass a filter, the oldest first. Lines
// that are damaged are left out. It is an error if there is no file.
func Read(path string, filter Filter) (out []Event, err error) {
	found := false
	for _, path := range []string{older(path), path} {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = true
		out = append(out, parse(f, filter)...)
		_ = f.Close()
	}
	if !found {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), fs.ErrNotExist)
	}
	return inOrder(out), nil
}

// parse reads lines until the end or an error.
func parse(r io.Reader, filter Filter) (out []Event) {
	lines := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	tooLong := false
	for {
		part, isPrefix, err := lines.ReadLine()
		if err != nil {
			return out
		}
		if tooLong = tooLong || len(line)+len(part) > maxLine; !tooLong {
			line = append(line, part...)
		}
		if isPrefix {
			continue
		}
		var e Event
		if !tooLong && json.Unmarshal(bytes.TrimSpace(line), &e) == nil && !e.Time.IsZero() && filter.Admits(&e) {
			out = append(out, e)
		}
		line, tooLong = line[:0], false
	}
}
