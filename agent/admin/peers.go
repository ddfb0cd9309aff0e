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

// socketConfig returns the configuration of the admin socket. The kernel identifies the clients; the
// permissions of the file allow other users only if there are readers.
func socketConfig(path string, uids, gids []uint32) downstream.SocketConfig {
	if len(uids)+len(gids) > 0 {
		return downstream.SocketConfig{Path: path, Mode: 0o666, Passable: true}
	}
	return downstream.SocketConfig{Path: path, Mode: 0o600}
}

// listenUnix listens on the admin socket, which admits this process's own user, root and the readers.
func listenUnix(path string, uids, gids []uint32, log *slog.Logger) (*downstream.Socket, error) {
	return downstream.ListenTo(socketConfig(path, uids, gids), downstream.Peers{
		UIDs: uids, GIDs: gids, Root: true, Log: log, Flags: "--admin-readers",
	})
}

// ownerKey is the key of a request's context for whether the client is the agent's own user or root.
type ownerKey struct{}

// withOwner records whether the client of a Unix socket is the agent's own user or root. If the
// system does not identify clients, the permissions of the socket admit only its owner.
func withOwner(ctx context.Context, c net.Conn) context.Context {
	unix, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	uid, err := downstream.PeerUID(unix)
	owner := err == nil && (uid == root || uid == uint32(os.Geteuid()))
	return context.WithValue(ctx, ownerKey{}, owner)
}

// readOnly restricts other users than the agent's own and root to GET and HEAD.
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
