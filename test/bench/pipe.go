package main

import (
	"io"
	"net"
	"path/filepath"
)

// network returns that of an address: a path, or host and port.
func network(addr string) string {
	if filepath.IsAbs(addr) {
		return "unix"
	}
	return "tcp"
}

// pipe copies bytes between each connection to a Unix socket and one of its own to
// another address, for ever: the least that a process in between can cost.
func pipe(listen, to string) error {
	lis, err := net.Listen("unix", listen)
	if err != nil {
		return err
	}
	for {
		down, err := lis.Accept()
		if err != nil {
			return err
		}
		go func() {
			up, err := net.Dial(network(to), to)
			if err != nil {
				_ = down.Close()
				return
			}
			go transfer(up, down)
			transfer(down, up)
		}()
	}
}

// transfer copies until one side ends, and then ends both.
func transfer(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	_ = from.Close()
}
