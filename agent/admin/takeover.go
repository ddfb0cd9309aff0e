package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/downstream"
)

// A takeover is a protocol on one connection, which stays open until the old agent has exited.
//
//	successor  POST /takeover, Upgrade: holdfast-takeover
//	old agent  101 Switching Protocols, or an error
//	old agent  "released": its state, sockets and addresses are free
//	successor  "ready": it serves on all of them
//	old agent  "ended": it is about to exit; or "withdrawn": it has waited too long, and takes back
//	           what it has released
//
// If the connection ends before "ready", the old agent takes everything back. If it ends before
// "ended" or "withdrawn", the old agent has exited, and the successor continues.
const (
	takeoverProtocol = "holdfast-takeover"

	// Released, Confirmed, Ended and Withdrawn are the messages, one line each.
	Released  = "released"
	Confirmed = "ready"
	Ended     = "ended"
	Withdrawn = "withdrawn"
)

// takeover passes the connection of a successor to the agent.
func (s *Server) takeover(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), takeoverProtocol) {
		header := w.Header()
		header.Set("Connection", "Upgrade")
		header.Set("Upgrade", takeoverProtocol)
		text(w, http.StatusUpgradeRequired, "takeover: start another agent with `holdfast run --takeover`; this request is part of its protocol\n")
		return
	}
	s.cfg.Log.Info("takeover requested")
	admitted := false
	err := s.cfg.Takeover(func() (net.Conn, error) {
		admitted = true
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return nil, fmt.Errorf("takeover: %w", err)
		}
		_ = conn.SetDeadline(time.Time{}) // removes the deadline of the request
		_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", takeoverProtocol)
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("takeover: %w", err)
		}
		return bufferedConn{conn, buffered.Reader}, nil
	})
	if err != nil && !admitted {
		text(w, http.StatusConflict, err.Error()+"\n")
	}
}

// bufferedConn is a connection whose first bytes have been read already.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// ErrWithdrawn is returned if the old agent has taken back what it had released.
var ErrWithdrawn = errors.New("the takeover took too long, and the other agent keeps serving")

const (
	// slowAfter is when a successor says that the old agent has not answered yet.
	slowAfter = 5 * time.Second
	// releasedWithin is how long a successor waits for the old agent to release what it has, for which that writes its state; one
	// that has not done so hangs.
	releasedWithin = 15 * time.Second
	// endedWithin is how long it waits for the last word. It is longer than the old agent waits for its successor, so that Withdrawn
	// is heard.
	endedWithin = 40 * time.Second
)

// A Takeover is the successor's side of the protocol.
type Takeover struct {
	// other names the old agent, with its process where that is visible.
	other string
	conn  net.Conn
	r     *bufio.Reader
	log   *slog.Logger
}

// Takeover requests a takeover, and returns when the old agent has released its state, its sockets
// and its addresses. If no agent answers, or it exits meanwhile, the error satisfies
// errors.Is(err, ErrNoAgent). An agent that hangs is another error, after 15 s, and said in the log after 5.
func (c Client) Takeover(ctx context.Context, log *slog.Logger) (*Takeover, error) {
	conn, err := c.dial(ctx, "", "")
	if err != nil {
		return nil, fmt.Errorf("%w on %s: %w", ErrNoAgent, c.Addr, err)
	}
	other := "the agent on " + c.Addr
	if unix, ok := conn.(*net.UnixConn); ok {
		if pid, err := downstream.PeerPID(unix); err == nil {
			other += fmt.Sprintf(", process %d,", pid)
		}
	}
	return newTakeover(ctx, conn, other, log)
}

// newTakeover requests a takeover on a connection to an agent.
func newTakeover(ctx context.Context, conn net.Conn, other string, log *slog.Logger) (*Takeover, error) {
	t := &Takeover{other: other, conn: conn, r: bufio.NewReader(conn), log: log}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := t.within(releasedWithin, t.ask); err != nil {
		_ = conn.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%s has not answered for %s: it hangs or is stopped, and nothing was taken over: end it (kill -9) and start this one again", t.other, releasedWithin)
		}
		return nil, errors.Join(ctx.Err(), err)
	}
	return t, nil
}

// within runs a step that waits for the old agent, for d at most, and says after slowAfter that it is slow.
func (t *Takeover) within(d time.Duration, step func() error) error {
	slow := time.AfterFunc(slowAfter, func() {
		t.log.Warn(fmt.Sprintf("takeover: %s has not answered for %s: it may hang, and is waited for until %s", t.other, slowAfter, d))
	})
	defer slow.Stop()
	_ = t.conn.SetDeadline(time.Now().Add(d))
	defer func() { _ = t.conn.SetDeadline(time.Time{}) }()
	return step()
}

// ErrNoAgent is returned if there is no agent to take over from.
var ErrNoAgent = errors.New("no agent answers")

func (t *Takeover) ask() error {
	req, err := http.NewRequest(http.MethodPost, "http://holdfast/takeover", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", takeoverProtocol)
	gone := func(err error) error {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		return fmt.Errorf("%s is gone: %w: %w", t.other, ErrNoAgent, err)
	}
	if err := req.Write(t.conn); err != nil {
		return gone(err)
	}
	resp, err := http.ReadResponse(t.r, req)
	if err != nil {
		return gone(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = resp.Body.Close() }()
		return fmt.Errorf("%s answers %s: %s", t.other, resp.Status, said(resp))
	}
	switch said, err := ReadLine(t.r); {
	case err != nil:
		return gone(err)
	case said != Released:
		return fmt.Errorf("%s says %q: want %q", t.other, said, Released)
	}
	return nil
}

// maxSaid bounds a line of the protocol.
const maxSaid = 64

// ReadLine reads one message.
func ReadLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); len(line) < maxSaid; {
		if _, err := io.ReadFull(r, b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[0])
	}
	return "", fmt.Errorf("more than %d bytes without an end of line", maxSaid)
}

// Confirm reports to the old agent that this process serves on everything that was released, and
// returns nil when that agent has accepted it, has exited by itself, or hangs: it reads it later. After an
// error, which may be ErrWithdrawn, the old agent keeps serving and this one must not.
func (t *Takeover) Confirm() error {
	_, _ = io.WriteString(t.conn, Confirmed+"\n") // an error shows in the read below
	var said string
	err := t.within(endedWithin, func() (err error) {
		said, err = ReadLine(t.r)
		return err
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.log.Error(fmt.Sprintf("takeover: %s has released everything, and does not end: it hangs or is stopped. This one serves; end the other (kill -9), which still has its clients", t.other))
		go func() { // the connection stays until it has read the message, or has ended
			defer t.Abandon()
			_, _ = ReadLine(t.r)
		}()
		return nil
	case err != nil, said == Ended:
		t.Abandon()
		return nil
	}
	t.Abandon()
	if said == Withdrawn {
		return ErrWithdrawn
	}
	return fmt.Errorf("%s says %q: want %q", t.other, said, Ended)
}

// Abandon closes the connection. Unless Confirm was called, the old agent takes everything back.
func (t *Takeover) Abandon() { _ = t.conn.Close() }
