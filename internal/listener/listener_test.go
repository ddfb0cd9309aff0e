package listener

import (
	"errors"
	"net"
	"testing"
)

func listening(t *testing.T, addr string) *TCP {
	t.Helper()
	lis, err := Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	return lis
}

// accepting accepts until the listener is closed, whose error it sends.
func accepting(lis net.Listener) (conns chan net.Conn, ended chan error) {
	conns, ended = make(chan net.Conn, 1), make(chan error, 1)
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				ended <- err
				return
			}
			conns <- c
		}
	}()
	return conns, ended
}

func dialed(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAnAddressIsGivenAwayAndTakenBackUnderAServer(t *testing.T) {
	mine := listening(t, "127.0.0.1:0")
	addr := mine.Addr().String()
	conns, ended := accepting(mine)
	before := dialed(t, addr)
	served := <-conns
	mine.Release()
	mine.Release() // once more does nothing
	other := listening(t, addr)
	if err := mine.Restore(); err == nil {
		t.Fatal("the address was taken from another")
	}
	_ = other.Close()
	if err := errors.Join(mine.Restore(), mine.Restore()); err != nil {
		t.Fatal(err)
	}
	_ = dialed(t, addr)
	_ = (<-conns).Close()
	if _, err := served.Write([]byte("!")); err != nil {
		t.Error(err)
	}
	if n, err := before.Read(make([]byte, 1)); n != 1 {
		t.Errorf("the connection from before: %v", err)
	}
	_ = mine.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept ended with %v", err)
	}
}

func TestAcceptEndsWhenTheListenerIsClosedThatGaveItsAddressAway(t *testing.T) {
	mine := listening(t, "127.0.0.1:0")
	_, ended := accepting(mine)
	mine.Release()
	if err := mine.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept ended with %v", err)
	}
	if err := errors.Join(mine.Restore()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Restore: %v", err)
	}
	if err := mine.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Close: %v", err)
	}
}
