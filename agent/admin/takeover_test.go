package admin

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// hungAgent is the other side of a takeover: it reads the request and says some of its part.
func hungAgent(t *testing.T, says string) (successor net.Conn, other *bufio.Reader) {
	t.Helper()
	mine, theirs := net.Pipe()
	t.Cleanup(func() { _ = mine.Close(); _ = theirs.Close() })
	other = bufio.NewReader(theirs)
	go func() {
		if _, err := http.ReadRequest(other); err == nil {
			_, _ = io.WriteString(theirs, says)
		}
	}()
	return mine, other
}

// An agent that hangs is no agent that has gone. It is said after 5 s, and the successor ends without having touched anything.
func TestASuccessorOfAnAgentThatHangsEnds(t *testing.T) {
	for name, says := range map[string]string{
		"at once": "", "when it was asked": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: holdfast-takeover\r\n\r\n",
	} {
		bubble.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			conn, _ := hungAgent(t, says)
			began := time.Now()
			_, err := newTakeover(t.Context(), conn, "the agent on unix:/a, process 7,", slog.New(slog.NewTextHandler(&log, nil)))
			if d := time.Since(began); d != releasedWithin {
				t.Errorf("%s: it took %s", name, d)
			}
			for _, want := range []string{"the agent on unix:/a, process 7, has not answered for 15s", "nothing was taken over", "kill -9"} {
				if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrNoAgent) {
					t.Errorf("%s: %v: want %q", name, err, want)
				}
			}
			synctest.Wait() // for what writes the log
			if strings.Count(log.String(), "process 7, has not answered for 5s") != 1 {
				t.Errorf("%s: logged:\n%s", name, log.String())
			}
		})
	}
}

// If it hangs when everything is released, the successor serves, says so, and the other reads later that it has ended.
func TestASuccessorServesIfTheOtherHangsAtTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		conn, other := hungAgent(t, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: holdfast-takeover\r\n\r\nreleased\n")
		taken, err := newTakeover(t.Context(), conn, "the agent on unix:/a, process 7,", slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = other.Peek(len(Confirmed) + 1) }() // the kernel would keep it
		if err := taken.Confirm(); err != nil {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "process 7, has released everything, and does not end") {
			t.Errorf("logged:\n%s", log.String())
		}
		if said, err := ReadLine(other); err != nil || said != Confirmed {
			t.Errorf("the other reads %q, %v", said, err)
		}
		_ = conn.Close()
	})
}

// Each command that may take long asks first whether the agent answers at all.
func TestNoCommandWaitsForAnAgentThatHangs(t *testing.T) {
	lis, err := net.Listen("unix", t.TempDir()+"/a.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	asked := make(chan string, 10)
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				asked <- req.Method + " " + req.URL.Path
			}
			_ = c.Close() // it does not wait for 5 s here
		}
	}()
	c := Client{Addr: "unix:" + lis.Addr().String()}
	for name, command := range map[string]func() error{
		"drain":     func() error { return c.Do(t.Context(), "drain") },
		"freeze":    func() error { return c.Freeze(t.Context(), FreezeRequest{}) },
		"rollback":  func() error { _, err := c.RollBack(t.Context(), RollbackRequest{}); return err },
		"resume":    func() error { _, err := c.OfferAgain(t.Context(), OfferRequest{}); return err },
		"rehearsal": func() error { _, err := c.RehearseLive(t.Context(), time.Minute); return err },
		"seed":      func() error { _, err := c.Seed(t.Context()); return err },
	} {
		if err := command(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if first := <-asked; first != "GET /livez" || len(asked) > 0 {
			t.Errorf("%s asks %s first, and %d more", name, first, len(asked))
		}
	}
}
