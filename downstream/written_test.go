package downstream_test

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// writes is a listener that counts the bytes that are written to its connections.
type writes struct {
	net.Listener
	bytes *atomic.Int64
}

func (w writes) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return written{c, w.bytes}, nil
}

type written struct {
	net.Conn
	bytes *atomic.Int64
}

func (w written) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.bytes.Add(int64(n))
	return n, err
}

// pushes notes how many bytes had been written when a response counted as sent.
type pushes struct {
	downstream.NoObserver
	bytes   *atomic.Int64
	written []int64
}

func (p *pushes) Pushed(string, string, int, time.Duration) {
	p.written = append(p.written, p.bytes.Load())
}

// With one processor, as with one client, gRPC's writer runs before the sender looks for the next response.
func TestAResponseIsWrittenBeforeTheNextOneIsLookedFor(t *testing.T) {
	for _, size := range []int{100, 2000} { // gRPC's writer treats those of less than 1,000 bytes differently
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			// So many that they fit into the window of a client that does not read.
			const changes = 24
			if atOnce := writtenAtOnce(t, changes, size); atOnce < changes/2 {
				// Go's scheduler lets the goroutine that yields go on in one of 61 switches; without the yield none is.
				t.Errorf("%d of %d responses were written at once", atOnce, changes)
			}
		})
	}
}

// writtenAtOnce sends changes of a resource of a size, and returns how many were written when they counted as sent.
func writtenAtOnce(t *testing.T, changes, size int) (atOnce int) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		var bytes atomic.Int64
		observer := &pushes{bytes: &bytes}
		s := start(t, xdstest.Delta, downstream.Config{Observer: observer})
		s.end()
		s.serve(writes{s.pipe.Listen(), &bytes})
		s.reader()
		s.quiet()
		for i := range changes {
			before := bytes.Load()
			c := xdstest.Cluster("c", "")
			c.AltStatName = strings.Repeat("x", size) + fmt.Sprint(i)
			observer.written = nil
			s.put(c)
			s.quiet()
			if len(observer.written) != 1 {
				t.Errorf("change %d: %d responses, want one", i, len(observer.written))
				break
			}
			if observer.written[0]-before >= int64(size) {
				atOnce++
			}
		}
		s.close()
	})
	return atOnce
}
