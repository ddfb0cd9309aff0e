package mesh

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// listen opens the sockets.
func (e *Environment) listen() (listeners []net.Listener, err error) {
	for flag, addr := range map[string]string{"--listen": e.cfg.Listen, "--tls-listen": e.cfg.TLSListen} {
		if addr == "" {
			continue
		}
		lis, err := net.Listen("tcp", addr)
		if err != nil {
			closeAll(listeners)
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		if flag == "--tls-listen" {
			lis = tls.NewListener(lis, e.tls)
		}
		listeners = append(listeners, lis)
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) {
	for _, lis := range listeners {
		_ = lis.Close() // it may be closed already
	}
}

// serve serves xDS until ctx ends, on listeners that it closes. While this server is behind the other replicas nobody can
// connect, so that proxies go to the others: the streams that there are end as when it stops.
func (e *Environment) serve(ctx context.Context, listeners []net.Listener) error {
	for {
		why, turned := e.behind()
		if why != "" {
			closeAll(listeners)
			listeners = nil
			select {
			case <-ctx.Done():
				return nil
			case <-turned:
				continue
			}
		}
		for listeners == nil {
			var err error
			if listeners, err = e.listen(); err == nil {
				break
			}
			e.cfg.Log.Error("proxies cannot connect again", "err", err)
			if !wake.Sleep(ctx, listenRetry) {
				return nil
			}
		}
		if err := e.serveUntil(ctx, turned, listeners); err != nil || ctx.Err() != nil {
			return err
		}
		listeners = nil
	}
}

// behind is that of replica.Replica. A server that has its documents for itself is never behind.
func (e *Environment) behind() (why string, turned <-chan struct{}) {
	if e.replica == nil {
		return "", nil
	}
	return e.replica.Behind()
}

// serveUntil serves xDS until ctx ends or a channel is closed.
func (e *Environment) serveUntil(ctx context.Context, turned <-chan struct{}, listeners []net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	eg, ctx := errgroup.WithContext(ctx)
	for _, lis := range listeners {
		e.cfg.Log.Info("serving xDS", "addr", lis.Addr().String(), "name", cmp.Or(e.cfg.Dir, strings.Join(e.cfg.Etcd.Endpoints, ",")))
		eg.Go(func() error { return e.xds.Serve(ctx, lis) })
	}
	eg.Go(func() error {
		select {
		case <-ctx.Done():
		case <-turned:
			stop()
		}
		return nil
	})
	return eg.Wait()
}
