package admin

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/holdfast-xds/holdfast/downstream"
)

// root may do what the agent's own user may.
const root = 0

// socketConfig is how the admin socket is made. The kernel says who connects; the
// permissions of the file let others pass only where some of them may read.
func socketConfig(path string, uids, gids []uint32) downstream.SocketConfig {
	if len(uids)+len(gids) > 0 {
		return downstream.SocketConfig{Path: path, Mode: 0o666, Passable: true}
	}
	return downstream.SocketConfig{Path: path, Mode: 0o600}
}

// listenUnix listens on the admin socket, which lets in this process's own user, root
// and those who may read.
func listenUnix(path string, uids, gids []uint32, log *slog.Logger) (*downstream.Socket, error) {
	return downstream.ListenTo(socketConfig(path, uids, gids), downstream.Peers{
		UIDs: uids, GIDs: gids, Root: true, Log: log, Flags: "--admin-readers",
	})
}

// ownerKey is the key of a request's context under which it says that the agent's own
// user or root has asked.
type ownerKey struct{}

// withOwner notes who is at the other end of a connection to a Unix socket. Where the
// system does not tell, the permissions of the socket have decided: only its owner is there.
func withOwner(ctx context.Context, c net.Conn) context.Context {
	unix, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	uid, err := downstream.PeerUID(unix)
	owner := err == nil && (uid == root || uid == uint32(os.Geteuid()))
	return context.WithValue(ctx, ownerKey{}, owner)
}

// readOnly lets others than the agent's own user and root only read.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner, _ := r.Context().Value(ownerKey{}).(bool)
		if !owner && r.Method != http.MethodGet && r.Method != http.MethodHead {
			text(w, http.StatusForbidden, "only the agent's own user and root may do this; users of --admin-readers may read\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}
