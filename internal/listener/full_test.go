package listener

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// failing is a listener that only fails.
type failing struct{ err error }

func (f failing) Accept() (net.Conn, error) { return nil, f.err }
func (failing) Close() error                { return nil }
func (failing) Addr() net.Addr              { return &net.UnixAddr{Name: "/x.sock", Net: "unix"} }

func TestTooManyOpenFilesAreLoggedNowAndThen(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		lines := func() int { return strings.Count(log.String(), "level=ERROR") }
		lis := WarnWhenFull(failing{&net.OpError{Op: "accept", Err: syscall.EMFILE}}, slog.New(slog.NewTextHandler(&log, nil)))
		for range 100 {
			if _, err := lis.Accept(); !errors.Is(err, syscall.EMFILE) {
				t.Fatal(err)
			}
		}
		if lines() != 1 || !strings.Contains(log.String(), "LimitNOFILE") || !strings.Contains(log.String(), "addr=/x.sock") {
			t.Errorf("logged:\n%s", log.String())
		}
		time.Sleep(warnEvery) // virtual
		_, _ = lis.Accept()
		if lines() != 2 {
			t.Errorf("after a while:\n%s", log.String())
		}
	})
}

func TestOtherErrorsAreNotReported(t *testing.T) {
	var log bytes.Buffer
	lis := WarnWhenFull(failing{net.ErrClosed}, slog.New(slog.NewTextHandler(&log, nil)))
	if _, err := lis.Accept(); !errors.Is(err, net.ErrClosed) || log.Len() > 0 {
		t.Errorf("%v, logged %s", err, log.String())
	}
}
