// Command serve is istiod for a benchmark: it serves a directory of Istio's documents over xDS, as
// holdfast-mesh does, and follows changes of its files. It is istiod's own discovery server with the
// store in memory that istiod's tests have, and the debounce that istiod has by default.
//
//	serve DIR ADDRESS
package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	pilotxds "istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config"
)

// debounce is what istiod waits for further changes by default, and poll how often the directory is
// looked at: more often than holdfast-mesh does, so that a change is there at once.
const (
	debounce = 100 * time.Millisecond
	poll     = 10 * time.Millisecond
)

func main() {
	if len(os.Args) != 3 {
		fatal("usage: serve DIR ADDRESS")
	}
	d := &directory{dir: os.Args[1], files: make(map[string]time.Time)}
	_, documents := d.changes()
	s := pilotxds.NewFakeDiscoveryServer(failer{}, pilotxds.FakeOptions{
		Configs: documents, DebounceTime: debounce,
		ListenerBuilder: func() (net.Listener, error) { return net.Listen("tcp", os.Args[2]) },
	})
	store := s.Store()
	for {
		time.Sleep(poll)
		changed, documents := d.changes()
		if !changed {
			continue
		}
		for _, c := range documents {
			var err error
			if old := store.Get(c.GroupVersionKind, c.Name, c.Namespace); old == nil {
				_, err = store.Create(c)
			} else {
				c.ResourceVersion = old.ResourceVersion
				_, err = store.Update(c)
			}
			if err != nil {
				fatal("%s: %v", c.Name, err)
			}
		}
	}
}

// directory is the documents, with the times of the files that were read.
type directory struct {
	dir   string
	files map[string]time.Time
}

// changes returns the documents of the files that are new or changed.
func (d *directory) changes() (changed bool, documents []config.Config) {
	paths, err := filepath.Glob(filepath.Join(d.dir, "*.yaml"))
	if err != nil {
		fatal("%v", err)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || info.ModTime().Equal(d.files[path]) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		parsed, _, err := crd.ParseInputs(string(text))
		if err != nil {
			fatal("%s: %v", path, err)
		}
		d.files[path] = info.ModTime()
		changed, documents = true, append(documents, parsed...)
	}
	return changed, documents
}

// failer ends the process where a test would fail.
type failer struct{}

func (failer) Fail()                             { fatal("failed") }
func (failer) FailNow()                          { fatal("failed") }
func (failer) Fatal(args ...any)                 { fatal("%s", fmt.Sprint(args...)) }
func (failer) Fatalf(format string, args ...any) { fatal(format, args...) }
func (failer) Log(...any)                        {}
func (failer) Logf(string, ...any)               {}
func (failer) Helper()                           {}
func (failer) Cleanup(func())                    {}
func (failer) Skip(args ...any)                  { fatal("%s", fmt.Sprint(args...)) }

func (failer) TempDir() string {
	dir, err := os.MkdirTemp("", "istiod-")
	if err != nil {
		fatal("%v", err)
	}
	return dir
}

func fatal(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "serve: "+strings.TrimSpace(format)+"\n", args...)
	os.Exit(1)
}
