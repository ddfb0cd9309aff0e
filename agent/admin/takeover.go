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

// A takeover is a conversation over one connection, which stays open until the agent that
// is taken over from has ended. A request alone takes nothing over.
//
//	successor  POST /takeover, Upgrade: holdfast-takeover
//	old agent  101 Switching Protocols, or why not
//	old agent  "released": its state, sockets and addresses are free
//	successor  "ready": it serves on all of them
//	old agent  "ended": it is about to end; or "withdrawn": it has waited for too long,
//	           and takes back what it gave away
//
// When the connection ends before "ready" the old agent takes everything back. When it
// ends before "ended" or "withdrawn" the old agent is gone, and the successor goes on.
const (
	takeoverProtocol = "holdfast-takeover"

	// Released, Confirmed, Ended and Withdrawn are what the two agents say, a line each.
	Released  = "released"
	Confirmed = "ready"
	Ended     = "ended"
	Withdrawn = "withdrawn"
)

// takeover hands a connection on which another agent asks to take over to the agent.
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
		_ = conn.SetDeadline(time.Time{}) // that of the request
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

// bufferedConn is a connection of which something has been read already.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// ErrWithdrawn says that the agent that was to be taken over from has taken back what it
// had given away.
var ErrWithdrawn = errors.New("the takeover took too long, and the other agent keeps serving")

// A Takeover is the successor's side of the conversation.
type Takeover struct {
	addr string
	conn net.Conn
	r    *bufio.Reader
	// before: the other agent does not know this conversation.
	before bool
}

// Takeover asks an agent to be taken over from, and returns when it has released its
// state, its sockets and its addresses. An agent that does not answer, or that ended
// meanwhile, is an error that satisfies errors.Is(err, ErrNoAgent).
func (c Client) Takeover(ctx context.Context) (*Takeover, error) {
	conn, err := c.dial(ctx, "", "")
	if err != nil {
		return nil, fmt.Errorf("%w on %s: %w", ErrNoAgent, c.addr(), err)
	}
	t := &Takeover{addr: c.addr(), conn: conn, r: bufio.NewReader(conn)}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := t.ask(); err != nil {
		_ = conn.Close()
		return nil, errors.Join(ctx.Err(), err)
	}
	return t, nil
}

// ErrNoAgent says that there is no agent to take over from.
var ErrNoAgent = errors.New("no agent answers")

func (t *Takeover) ask() error {
	req, err := http.NewRequest(http.MethodPost, "http://holdfast/takeover", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", takeoverProtocol)
	if err := req.Write(t.conn); err != nil {
		return fmt.Errorf("%w on %s any more: %w", ErrNoAgent, t.addr, err)
	}
	resp, err := http.ReadResponse(t.r, req)
	if err != nil {
		return fmt.Errorf("%w on %s any more: %w", ErrNoAgent, t.addr, err)
	}
	if resp.StatusCode == http.StatusOK {
		// An agent from before this conversation: it has released everything, and ends when it
		// finds another's sockets in the place of its own, whatever else is said.
		t.before = true
		_ = resp.Body.Close()
		t.Abandon() // it waits for its connections to end
		return nil
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = resp.Body.Close() }()
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s answers %s: %s", t.addr, resp.Status, strings.TrimSpace(string(said)))
	}
	switch said, err := t.read(); {
	case err != nil:
		return fmt.Errorf("%w on %s any more: %w", ErrNoAgent, t.addr, err)
	case said != Released:
		return fmt.Errorf("%s says %q: want %q", t.addr, said, Released)
	}
	return nil
}

// Before reports whether the other agent is of a version that does not know this conversation: it
// is about to release what it has, and does not say when it has.
func (t *Takeover) Before() bool { return t.before }

// maxSaid bounds a line of the conversation.
const maxSaid = 64

func (t *Takeover) read() (string, error) { return ReadLine(t.r) }

// ReadLine reads what the other side says.
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

// Confirm says, to an agent that is not Before, that this process serves on everything that
// was released, and returns nil when that agent has accepted it, or has ended by itself. After
// an error, which may be ErrWithdrawn, the other agent serves on and this one must not.
func (t *Takeover) Confirm() error {
	defer t.Abandon()
	_, _ = io.WriteString(t.conn, Confirmed+"\n") // if nobody reads it, what follows says why
	switch said, err := t.read(); {
	case err != nil, said == Ended:
		return nil
	case said == Withdrawn:
		return ErrWithdrawn
	default:
		return fmt.Errorf("%s says %q: want %q", t.addr, said, Ended)
	}
}

// Abandon ends the conversation: unless Confirm was called, the other agent takes
// everything back.
func (t *Takeover) Abandon() { _ = t.conn.Close() }
