package listener

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// toldEvery is how often it is logged that a listener has no room for connections.
const toldEvery = time.Minute

// Told returns a listener whose log tells, once a minute at most, that connections wait
// because too many files are open. Servers try again, and say nothing of it.
func Told(lis net.Listener, log *slog.Logger) net.Listener {
	return &told{Listener: lis, log: log, limit: rate.NewLimiter(rate.Every(toldEvery), 1)}
}

type told struct {
	net.Listener
	log   *slog.Logger
	limit *rate.Limiter
}

func (t *told) Accept() (net.Conn, error) {
	c, err := t.Listener.Accept()
	if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && t.limit.Allow() {
		t.log.Error("connections wait, because too many files are open: raise the limit (ulimit -n, LimitNOFILE), or find out who holds so many connections",
			"addr", t.Addr().String(), "err", err)
	}
	return c, err
}
