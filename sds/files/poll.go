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

// DefaultEvery is how often a Poller looks if it is not told.
const DefaultEvery = 2 * time.Second

// settle is what lies between the first two passes, so that a start is not slow.
const settle = 100 * time.Millisecond

// Contents are the files of one pass, by the path that was asked for. One that
// does not exist is absent.
type Contents map[string][]byte

// Poller reads the files of one unit again and again and tells when they have
// changed for good. Its fields do not change while it runs.
type Poller struct {
	// Dirs is where the files may be.
	Dirs *Dirs
	// Paths are all files of the unit, such as certificate, key and CA.
	Paths []string
	// Every is how often they are read; DefaultEvery if 0. A change is told after
	// one to two of these, counted from when the files came to rest.
	Every time.Duration
}

// Run polls until ctx ends and then returns nil; it returns an error only, and at
// once, if there is nothing to poll. It makes its calls one after the other and
// waits for them. A file system that blocks holds it up for a few seconds beyond the end of
// ctx.
//
// use is called with the contents, which are the callee's, when two passes in a
// row found the same and it is not what was last used. If some of the files do not
// exist, the others are told and the callee decides. An error that it returns is a
// fault for as long as the contents stay as they are.
//
// fault is called with what is wrong when that changes, and with nil when it is
// mended. A pass fails if a file cannot be read, or if none of them exists
// (fs.ErrNotExist): they may vanish for a while, as when a CSI driver mounts anew.
// What was used before is not used again if nothing else comes back.
func (p *Poller) Run(ctx context.Context, use func(Contents) error, fault func(error)) error {
	if p.Dirs == nil || len(p.Paths) == 0 {
		return errors.New("no files to poll: directories and paths are needed")
	}
	every := p.Every
	if every <= 0 {
		every = DefaultEvery
	}
	r := &run{
		dirs: p.Dirs, paths: slices.Compact(slices.Sorted(slices.Values(p.Paths))),
		use: use, fault: fault,
	}
	wait := min(settle, every)
	for ctx.Err() == nil {
		r.look()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		wait = every
	}
	return nil
}

// sum tells contents from others without keeping them; the zero sum is of none.
type sum [sha256.Size]byte

// run is the state of one Run.
type run struct {
	dirs  *Dirs
	paths []string
	use   func(Contents) error
	fault func(error)

	// previous is what the last pass found, zero if it failed.
	previous sum
	// used is what was used last, zero for nothing.
	used sum
	// refused is what use said of it; nil for nothing.
	refused error
	// failed is the text of the last fault, "" while there is none.
	failed string
}

// look makes one pass and the calls that follow from it.
func (r *run) look() {
	contents, err := r.pass()
	if err != nil {
		r.previous = sum{}
		r.report(err)
		return
	}
	found := r.sum(contents)
	rests := found == r.previous
	r.previous = found
	if rests && found != r.used {
		r.used = found
		r.refused = r.use(contents)
	}
	r.report(r.refused)
}

// report tells what is wrong, or that nothing is, when that is something else than
// what was told last.
func (r *run) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != r.failed {
		r.failed = text
		r.fault(err)
	}
}

// pass reads every file once.
func (r *run) pass() (Contents, error) {
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

// sum hashes what exists and what does not, each file apart from the next.
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
