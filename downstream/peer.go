package downstream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/holdfast-xds/holdfast/internal/listener"
)

// A rejected client usually tries again several times a second.
const (
	warnRejectedEvery = time.Minute
	warnRejectedBurst = 3
)

// Peers restricts which processes may use a socket, in addition to the permissions of the socket.
//
// Peers checks the identity of a process when it connected, as the kernel reports it: its
// effective uid, its effective gid and its supplementary groups. A process whose ids are not
// mapped into the user namespace of this process has the id 65534. To allow that id, or to run
// this process with it, allows every process that is not mapped.
type Peers struct {
	// UIDs and GIDs are the allowed users and groups. The effective uid of this process is always
	// allowed. If both are empty, the group of the socket is allowed, if SocketConfig.Group names
	// one.
	UIDs, GIDs []uint32
	Root       bool // is allowed too
	Log        *slog.Logger
	// Flags names in the log the flags that allow a client; "" for the flags of the xDS socket.
	Flags    string
	Rejected func() // called for each connection that is rejected; may be nil
}

type credentials struct {
	uid, gid uint32
	groups   []uint32
	pid      int32 // 0 if it is not visible in this pid namespace
}

// PeerUID returns the uid of the process that connected, as the kernel reports it; on systems
// that do not report it, the uid of this process.
func PeerUID(c *net.UnixConn) (uint32, error) {
	if !peersAreKnown {
		return uint32(os.Geteuid()), nil
	}
	p, err := credentialsOf(c)
	return p.uid, err
}

// PeerPID returns the process at the other end of a connection, as the kernel reports it: for a client, that which listens. It fails
// where that is not visible.
func PeerPID(c *net.UnixConn) (int32, error) {
	p, err := credentialsOf(c)
	if err == nil && p.pid <= 0 {
		err = errors.New("the process is not visible")
	}
	return p.pid, err
}

// processAddr is the address of a client on a Unix socket, with its process: its id and when it was started, as the kernel says.
type processAddr struct {
	net.Addr
	process string
}

// addressOf returns the address of the client of a connection, with its process where that is visible: not of a client in another PID
// namespace, such as that of another container.
func addressOf(c net.Conn) net.Addr {
	unix, ok := listener.Under[*net.UnixConn](c)
	if !ok || !peersAreKnown {
		return c.RemoteAddr()
	}
	p, err := credentialsOf(unix)
	if err != nil || p.pid <= 0 {
		return c.RemoteAddr()
	}
	start, err := startOf(p.pid)
	if err != nil {
		return c.RemoteAddr()
	}
	return processAddr{c.RemoteAddr(), fmt.Sprintf("%d since %d", p.pid, start)}
}

// peerFilter accepts or rejects the peers of a socket. Its fields are immutable.
type peerFilter struct {
	Peers    // with defaults
	identify func(*net.UnixConn) (credentials, error)
	warnings *rate.Limiter
}

// newPeerFilter returns the filter of a process with the uid own, for a socket that belongs to group;
// -1 if SocketConfig names no group.
func newPeerFilter(p Peers, own uint32, group int) *peerFilter {
	if len(p.UIDs)+len(p.GIDs) == 0 && group >= 0 {
		p.GIDs = []uint32{uint32(group)}
	}
	p.UIDs = append(slices.Clone(p.UIDs), own)
	if p.Root {
		p.UIDs = append(p.UIDs, 0)
	}
	p.Log = cmp.Or(p.Log, slog.New(slog.DiscardHandler))
	p.Flags = cmp.Or(p.Flags, "--allow-uid or --allow-gid, or share a group with it, with --socket-group")
	return &peerFilter{p, credentialsOf, rate.NewLimiter(rate.Every(warnRejectedEvery), warnRejectedBurst)}
}

func (g *peerFilter) allows(p credentials) bool {
	return slices.Contains(g.UIDs, p.uid) || slices.Contains(g.GIDs, p.gid) ||
		slices.ContainsFunc(p.groups, func(gid uint32) bool { return slices.Contains(g.GIDs, gid) })
}

// Admitted returns the users and groups that may use the socket; nil if only its permissions
// restrict access.
func (s *Socket) Admitted() (uids, gids []uint32) {
	if s.filter == nil {
		return nil, nil
	}
	return s.filter.UIDs, s.filter.GIDs
}

// admits reports whether a connection is accepted. It counts a rejected one and logs the reason.
func (g *peerFilter) admits(c *net.UnixConn) bool {
	p, err := g.identify(c)
	if err == nil && g.allows(p) {
		return true
	}
	if g.Rejected != nil {
		g.Rejected()
	}
	switch {
	case !g.warnings.Allow():
	case err != nil:
		g.Log.Warn("connection rejected: client cannot be identified", "err", err)
	default:
		g.Log.Warn("connection rejected: its user may not use the socket: allow its uid or gid with "+g.Flags,
			"uid", p.uid, "gid", p.gid, "pid", p.pid)
	}
	return false
}
