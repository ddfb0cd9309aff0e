package istio

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Ports are taken from below those that the kernel gives to whoever asks for any.
const (
	firstPort = 12_000
	lastPort  = 32_000
)

// reserved are UDP sockets on the ports that this process was given: nobody else is given those while
// it lives.
var reserved = struct {
	sync.Mutex
	sockets []net.PacketConn
}{}

// freePort returns a TCP port of loopback that nobody listens on, and that nobody else is given as
// long as this process lives.
func freePort(t testing.TB) int {
	t.Helper()
	reserved.Lock()
	defer reserved.Unlock()
	const count = lastPort - firstPort
	start := rand.IntN(count)
	for i := range count {
		port := firstPort + (start+i)%count
		if isCapture(port) {
			continue
		}
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
		return port
	}
	t.Fatalf("no free port from %d to %d", firstPort, lastPort)
	return 0
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

// isCapture reports whether captured connections are redirected to a port, where an Envoy will listen.
func isCapture(port int) bool {
	for _, to := range captures {
		if int(to.port) == port {
			return true
		}
	}
	return false
}
