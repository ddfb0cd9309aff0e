package listener

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// warnEvery is the least interval between two warnings.
const warnEvery = time.Minute

// WarnWhenFull returns a listener that logs, at most once a minute, that connections wait because too
// many files are open. Servers retry without logging.
func WarnWhenFull(lis net.Listener, log *slog.Logger) net.Listener {
	return &fullListener{Listener: lis, log: log, limit: rate.NewLimiter(rate.Every(warnEvery), 1)}
}

type fullListener struct {
	net.Listener
	log   *slog.Logger
	limit *rate.Limiter
}

func (t *fullListener) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && t.limit.Allow() {
		t.log.Error("connections wait, because too many files are open: raise the limit (ulimit -n, LimitNOFILE), or find out who holds so many connections",
			"addr", t.Addr().String(), "err", err)
	}
	return c, err
}
