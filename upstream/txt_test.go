package upstream

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

// No service config is looked up in DNS: if the name server drops TXT queries, as some firewalls
// cause, gRPC would wait 10 s for it at each attempt.
func TestNoTXTRecordIsLookedUp(t *testing.T) {
	_, addr := controlPlane(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	ns := newNameServer(t)
	if err := attempt(t, Config{Addr: "dns://" + ns.addr + "/xds.test:" + port, Security: dial.Security{Plaintext: true}}); err != nil {
		t.Fatal(err)
	}
	if ns.addresses.Load() == 0 {
		t.Fatal("the name was not looked up at the test's name server")
	}
	if n := ns.texts.Load(); n != 0 {
		t.Fatalf("%d TXT queries", n)
	}
}

// nameServer answers every query for an IPv4 address with 127.0.0.1, and other queries with no
// record. It drops TXT queries, and counts all queries.
type nameServer struct {
	addr             string
	addresses, texts atomic.Int64
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ns := &nameServer{addr: conn.LocalAddr().String()}
	served := make(chan struct{})
	go func() {
		defer close(served)
		ns.serve(t, conn)
	}()
	t.Cleanup(func() {
		conn.Close()
		<-served
	})
	return ns
}

// The types of records whose queries are counted (RFC 1035, section 3.2.2).
const (
	typeA   = 1
	typeTXT = 16
)

// serve answers until the connection is closed. A query has a header of 12 bytes, the labels of
// one name, the type and the class (RFC 1035, section 4.1).
func (ns *nameServer) serve(t *testing.T, conn net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		end := 12 + bytes.IndexByte(buf[12:n], 0) + 1
		if end == 12 || end+4 > n {
			t.Errorf("query %x", buf[:n])
			return
		}
		answer := slices.Clone(buf[:end+4])
		answer[2] |= 0x80   // it is a response
		clear(answer[6:12]) // of no records
		switch binary.BigEndian.Uint16(buf[end:]) {
		case typeTXT:
			ns.texts.Add(1)
			continue
		case typeA:
			ns.addresses.Add(1)
			answer[7] = 1 // record: the name of the question, its type and class, TTL 1 s
			answer = append(append(answer, 0xc0, 12), buf[end:end+4]...)
			answer = append(answer, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1)
		}
		if _, err := conn.WriteTo(answer, from); err != nil {
			return
		}
	}
}
