package testbed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Ports are taken from below those that the kernel gives to whoever asks for any: a test
// makes thousands of connections, and one of them would have the port that another process
// was told is free. 32768 is where those begin on Linux.
const (
	firstPort = 12_000
	lastPort  = 32_000
)

// reserved are UDP sockets on the ports that this process was given: nobody else is given
// those while it lives, and TCP is not in the way of UDP.
var reserved = struct {
	sync.Mutex
	sockets []net.PacketConn
}{}

// FreePort returns a TCP port of loopback that nobody listens on, and that no other process
// is given by this function as long as this one lives.
func FreePort() (int, error) {
	reserved.Lock()
	defer reserved.Unlock()
	const count = lastPort - firstPort
	start := rand.IntN(count)
	for i := range count {
		port := firstPort + (start+i)%count
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		mine, err := net.ListenPacket("udp", addr)
		if err != nil {
			continue
		}
		if !isFree(addr) {
			_ = mine.Close()
			continue
		}
		reserved.sockets = append(reserved.sockets, mine)
		return port, nil
	}
	return 0, fmt.Errorf("no free port from %d to %d", firstPort, lastPort)
}

// isFree reports whether nobody listens on an address. It does so while this process starts no other, which would have the
// listener, and so the port, until it executes its program (syscall.ForkLock).
func isFree(addr string) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	_ = lis.Close()
	return true
}

// Listen listens on an address of FreePort, once more perhaps. A process that this one is just starting has
// the listener that was closed before until it executes its program, so that Listen tries again for as long
// as limit.
func Listen(addr string, limit time.Duration) (net.Listener, error) {
	lis, err := net.Listen("tcp", addr)
	for until := time.Now().Add(limit); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
		lis, err = net.Listen("tcp", addr)
	}
	return lis, err
}
