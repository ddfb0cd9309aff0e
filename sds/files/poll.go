package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// Period is how often a Poller reads. A change is reported one to two periods after the last write.
const Period = 2 * time.Second

// firstPause is the pause between the first two reads, so that the first content is used soon.
const firstPause = 100 * time.Millisecond

// Contents are the files of one read by their configured path. A missing file is absent.
type Contents map[string][]byte

// Poller reads the files of one unit periodically and reports stable changes. Its fields must
// not change while it runs.
type Poller struct {
	// Dirs are the directories that the files may be in.
	Dirs *Dirs
	// Paths are all files of the unit, such as certificate, key and CA.
	Paths []string
	// Again is called for each later read that found the contents of the last call of use, with what that call or the last
	// one of Again returned, and returns what the problem is now. nil keeps the problem until the contents change.
	Again func(error) error
}

// Run polls until ctx ends and then returns nil; it returns an error only, and immediately, if
// there is nothing to poll. It calls use and fault one after the other and waits for them. A
// file system that hangs delays the end by a few seconds.
//
// use is called with new contents once two consecutive reads found them. The callee owns the
// contents and decides what to do if some of the files are missing. An error that it returns is
// reported as a fault until the contents change, or Again says otherwise.
//
// fault is called when the current problem changes, and with nil once it is resolved. A read
// fails if a file cannot be read, or if none of them exists (fs.ErrNotExist): all files may
// disappear for a while, for example when a CSI driver mounts again. If the same contents
// return afterwards, use is not called again.
func (p *Poller) Run(ctx context.Context, use func(Contents) error, fault func(error)) error {
	if p.Dirs == nil || len(p.Paths) == 0 {
		return errors.New("no files to poll: directories and paths are needed")
	}
	r := &run{
		dirs: p.Dirs, paths: slices.Compact(slices.Sorted(slices.Values(p.Paths))),
		use: use, fault: fault, again: p.Again,
	}
	wait := firstPause
	for ctx.Err() == nil {
		r.poll()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = Period
	}
	return nil
}

// sum identifies contents without storing them; the zero value means no contents.
type sum [sha256.Size]byte

// run is the state of one call of Run.
type run struct {
	dirs  *Dirs
	paths []string
	use   func(Contents) error
	fault func(error)
	again func(error) error // nil for never

	previous sum    // what the last read found; zero if it failed
	used     sum    // what use was called with last; zero for nothing
	useErr   error  // the result of that call
	reported string // the text of the current fault; "" for none
}

// poll reads the files once and makes the resulting calls.
func (r *run) poll() {
	contents, err := r.read()
	if err != nil {
		r.previous = sum{}
		r.reportFault(err)
		return
	}
	found := r.sum(contents)
	stable := found == r.previous
	r.previous = found
	switch {
	case stable && found != r.used:
		r.used = found
		r.useErr = r.use(contents)
	case stable && r.again != nil:
		r.useErr = r.again(r.useErr)
	}
	r.reportFault(r.useErr)
}

// reportFault calls fault if the problem differs from the one that was reported last.
func (r *run) reportFault(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != r.reported {
		r.reported = text
		r.fault(err)
	}
}

// read reads every file once.
func (r *run) read() (Contents, error) {
	contents := make(Contents, len(r.paths))
	var failed []error
	for _, path := range r.paths {
		data, err := r.dirs.Read(path)
		switch {
		case err == nil:
			contents[path] = data
		case !errors.Is(err, fs.ErrNotExist):
			failed = append(failed, err)
		}
	}
	switch {
	case len(failed) > 0:
		return nil, errors.Join(failed...)
	case len(contents) == 0:
		return nil, fmt.Errorf("read %s: %w", strings.Join(r.paths, ", "), fs.ErrNotExist)
	}
	return contents, nil
}

// sum hashes the contents, including which files are missing.
func (r *run) sum(contents Contents) sum {
	h := sha256.New()
	for _, path := range r.paths {
		data, exists := contents[path]
		if !exists {
			io.WriteString(h, "absent ")
			continue
		}
		fmt.Fprintf(h, "%d ", len(data))
		h.Write(data)
	}
	return sum(h.Sum(nil))
}
