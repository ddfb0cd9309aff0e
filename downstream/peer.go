package downstream

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// A refused client mostly tries again, several times a second.
const (
	warnRefusedEvery = time.Minute
	warnRefusedBurst = 3
)

// Peers says which processes may use a socket, beyond what its permissions say.
//
// What counts is who a process was when it connected, as the kernel tells it: its
// effective uid, its effective gid and its supplementary groups. One that is not
// mapped into the user namespace of this process shows as 65534: to let that one
// in, or to run as it, lets in everybody who is not mapped.
type Peers struct {
	// UIDs and GIDs are let in, and nobody else but this process's own effective
	// uid, which always is. Where both are empty, the group of the socket is let in,
	// if SocketConfig.Group names one.
	UIDs, GIDs []uint32
	// Root lets root in as well.
	Root bool
	Log  *slog.Logger
	// Flags says in the log what lets somebody in; "" for the flags of the xDS socket.
	Flags string
	// Observer is told of whoever is refused; nil for nobody.
	Observer PeerObserver
}

// PeerObserver counts the connections that a socket refuses.
type PeerObserver interface {
	PeerRefused()
}

// ListenTo is Listen for a socket that takes connections of these peers only. What
// others send is never read: their connections are closed at once.
//
// On systems other than Linux the peers are not known: there the permissions of the
// socket alone decide, and UIDs or GIDs are an error.
func ListenTo(cfg SocketConfig, peers Peers) (*Socket, error) {
	if !peersAreKnown && len(peers.UIDs)+len(peers.GIDs) > 0 {
		return nil, errors.New("socket: --allow-uid, --allow-gid and --admin-readers need Linux: elsewhere the permissions of the socket decide")
	}
	s, err := Listen(cfg)
	if err != nil || !peersAreKnown {
		return s, err
	}
	s.guard = newGuard(peers, uint32(os.Geteuid()), s.gid)
	return s, nil
}

// credentials say who is at the other end of a connection.
type credentials struct {
	uid, gid uint32
	groups   []uint32
	pid      int32 // 0 where it is not visible from here
}

// PeerUID returns the user of who connected, as the kernel tells it; on systems that
// do not tell, the user of this process.
func PeerUID(c *net.UnixConn) (uint32, error) {
	if !peersAreKnown {
		return uint32(os.Geteuid()), nil
	}
	p, err := credentialsOf(c)
	return p.uid, err
}

// guard lets peers in, or not. Its fields are immutable.
type guard struct {
	uids, gids []uint32
	identify   func(*net.UnixConn) (credentials, error)
	log        *slog.Logger
	flags      string
	observer   PeerObserver // may be nil
	warnings   *rate.Limiter
}

// newGuard makes the guard of a process with the uid own, for a socket whose group
// is -1 where none is named.
func newGuard(p Peers, own uint32, group int) *guard {
	g := &guard{
		uids:     append(slices.Clone(p.UIDs), own),
		gids:     p.GIDs,
		identify: credentialsOf,
		log:      p.Log,
		flags:    cmp.Or(p.Flags, "--allow-uid or --allow-gid, or share a group with it, with --socket-group"),
		observer: p.Observer,
		warnings: rate.NewLimiter(rate.Every(warnRefusedEvery), warnRefusedBurst),
	}
	if p.Root {
		g.uids = append(g.uids, 0)
	}
	if len(p.UIDs)+len(p.GIDs) == 0 && group >= 0 {
		g.gids = []uint32{uint32(group)}
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	return g
}

// allows decides.
func (g *guard) allows(p credentials) bool {
	return slices.Contains(g.uids, p.uid) || slices.Contains(g.gids, p.gid) ||
		slices.ContainsFunc(p.groups, func(gid uint32) bool { return slices.Contains(g.gids, gid) })
}

// Admitted returns the users and groups that may use the socket; nothing where its
// permissions alone decide.
func (s *Socket) Admitted() (uids, gids []uint32) {
	if s.guard == nil {
		return nil, nil
	}
	return s.guard.uids, s.guard.gids
}

// admits decides on a connection, counts it if it is refused, and tells why.
func (g *guard) admits(c *net.UnixConn) bool {
	p, err := g.identify(c)
	if err == nil && g.allows(p) {
		return true
	}
	if g.observer != nil {
		g.observer.PeerRefused()
	}
	switch {
	case !g.warnings.Allow():
	case err != nil:
		g.log.Warn("connection refused: who is at its other end cannot be told", "err", err)
	default:
		g.log.Warn("connection refused: its user may not use the socket: let it in by its number, with "+g.flags,
			"uid", p.uid, "gid", p.gid, "pid", p.pid)
	}
	return false
}
