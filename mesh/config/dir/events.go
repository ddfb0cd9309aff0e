package dir

import (
	"log/slog"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// events tells when something changes in directories, so that a change need not wait for the next
// scan. Scans find changes without them, too: a network file system has no events, and the system
// limits how many directories a process may watch.
type events struct {
	changed chan struct{} // holds a value after a change
	watcher *fsnotify.Watcher
	watched map[string]struct{}
	running sync.WaitGroup // of receive
}

// watch starts to deliver events until close. It returns events that never come if the system has
// none.
func watch(log *slog.Logger) *events {
	e := &events{changed: make(chan struct{}, 1), watched: make(map[string]struct{})}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Debug("the system has no events of files; the directory is scanned at intervals only", "err", err)
		return e
	}
	e.watcher = watcher
	e.running.Go(e.receive)
	return e
}

// receive receives events until the watcher is closed.
func (e *events) receive() {
	for {
		select {
		case _, open := <-e.watcher.Events:
			if !open {
				return
			}
		case _, open := <-e.watcher.Errors: // some events were lost
			if !open {
				return
			}
		}
		wake.Signal(e.changed)
	}
}

// close ends the events.
func (e *events) close() {
	if e.watcher != nil {
		_ = e.watcher.Close() // nothing can be done about it
		e.running.Wait()
	}
}

// of watches these directories, and no others. A directory that cannot be watched is scanned at
// intervals only.
func (e *events) of(directories []string) {
	if e.watcher == nil {
		return
	}
	now := make(map[string]struct{}, len(directories))
	for _, d := range directories {
		if _, has := e.watched[d]; has || e.watcher.Add(d) == nil {
			now[d] = struct{}{}
		}
	}
	for d := range e.watched {
		if _, still := now[d]; !still {
			_ = e.watcher.Remove(d) // it may be gone
		}
	}
	e.watched = now
}
