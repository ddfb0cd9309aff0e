package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
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

// A Takeover is the successor's side of the protocol.
type Takeover struct {
	addr string
	conn net.Conn
	r    *bufio.Reader
}

// Takeover requests a takeover, and returns when the old agent has released its state, its sockets
// and its addresses. If no agent answers, or it exits meanwhile, the error satisfies
// errors.Is(err, ErrNoAgent).
func (c Client) Takeover(ctx context.Context) (*Takeover, error) {
	conn, err := c.dial(ctx, "", "")
	if err != nil {
		return nil, fmt.Errorf("%w on %s: %w", ErrNoAgent, c.Addr, err)
	}
	t := &Takeover{addr: c.Addr, conn: conn, r: bufio.NewReader(conn)}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := t.ask(); err != nil {
		_ = conn.Close()
		return nil, errors.Join(ctx.Err(), err)
	}
	return t, nil
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
	gone := func(err error) error { return fmt.Errorf("%w on %s any more: %w", ErrNoAgent, t.addr, err) }
	if err := req.Write(t.conn); err != nil {
		return gone(err)
	}
	resp, err := http.ReadResponse(t.r, req)
	if err != nil {
		return gone(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = resp.Body.Close() }()
		return fmt.Errorf("%s answers %s: %s", t.addr, resp.Status, said(resp))
	}
	switch said, err := ReadLine(t.r); {
	case err != nil:
		return gone(err)
	case said != Released:
		return fmt.Errorf("%s says %q: want %q", t.addr, said, Released)
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
// returns nil when that agent has accepted it, or has exited by itself. After an error, which may be
// ErrWithdrawn, the old agent keeps serving and this one must not.
func (t *Takeover) Confirm() error {
	defer t.Abandon()
	_, _ = io.WriteString(t.conn, Confirmed+"\n") // an error shows in the read below
	switch said, err := ReadLine(t.r); {
	case err != nil, said == Ended:
		return nil
	case said == Withdrawn:
		return ErrWithdrawn
	default:
		return fmt.Errorf("%s says %q: want %q", t.addr, said, Ended)
	}
}

// Abandon closes the connection. Unless Confirm was called, the old agent takes everything back.
func (t *Takeover) Abandon() { _ = t.conn.Close() }
