// Package listener contains a TCP listener whose address can be released to another process and
// restored while a server accepts connections from it, and a listener with a bound on its connections, which leaves
// descriptors for the files of the process.
//
// Of the first it promises that the server notices nothing: Accept waits while the address is released, and existing
// connections stay. It does not promise that the address can be restored: another process may use it.
// All methods may be called concurrently.
package listener

import (
	"errors"
	"net"
	"sync"
	"syscall"
)

// TCP is a listener on a TCP address. Create it with Listen.
type TCP struct {
	addr net.Addr

	mu       sync.Mutex
	lis      net.Listener  // nil while the address is released
	restored chan struct{} // closed by Restore and Close; nil while lis is not nil
	closed   bool
}

// Listen listens on host:port.
func Listen(addr string) (*TCP, error) {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &TCP{addr: lis.Addr(), lis: lis}, nil
}

// Try returns an error if no process could listen on an address; an address that is in use is no error.
func Try(addr string) error {
	lis, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil
	case err != nil:
		return err
	}
	return lis.Close()
}

// Addr returns the address, with the actual port if port 0 was requested.
func (t *TCP) Addr() net.Addr { return t.addr }

// Accept returns the next connection. After Close the error is net.ErrClosed.
func (t *TCP) Accept() (net.Conn, error) {
	for {
		lis, restored, err := t.current()
		if err != nil {
			return nil, err
		}
		if lis == nil {
			<-restored
			continue
		}
		c, err := lis.Accept()
		if err == nil {
			return c, nil
		}
		if now, _, _ := t.current(); now == lis {
			return nil, err
		}
	}
}

func (t *TCP) current() (lis net.Listener, restored <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil, net.ErrClosed
	}
	return t.lis, t.restored, nil
}

// Release stops listening, so that another process can listen on the address.
func (t *TCP) Release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lis == nil || t.closed {
		return
	}
	_ = t.lis.Close()
	t.lis, t.restored = nil, make(chan struct{})
}

// Restore listens again after Release. It may be retried any number of times while another process uses
// the address.
func (t *TCP) Restore() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return net.ErrClosed
	case t.lis != nil:
		return nil
	}
	lis, err := net.Listen(t.addr.Network(), t.addr.String())
	if err != nil {
		return err
	}
	t.lis = lis
	close(t.restored)
	t.restored = nil
	return nil
}

// Close stops listening permanently.
func (t *TCP) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	t.closed = true
	if t.lis == nil {
		close(t.restored)
		return nil
	}
	return t.lis.Close()
}
