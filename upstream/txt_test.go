package upstream

import (
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

// A service config in DNS is never asked for: where the name server drops TXT queries, as
// firewalls make them do, gRPC would wait 10 s for it at each attempt.
func TestNoTXTRecordIsAskedFor(t *testing.T) {
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

// nameServer answers every query for an IPv4 address with 127.0.0.1, for other records with
// none, and drops TXT queries. It counts both.
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

// serve answers until the connection is closed.
func (ns *nameServer) serve(t *testing.T, conn net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(buf[:n]); err != nil || len(m.Questions) != 1 {
			t.Errorf("query %x: %v", buf[:n], err)
			continue
		}
		q := m.Questions[0]
		m.Response, m.Additionals = true, nil
		switch q.Type {
		case dnsmessage.TypeTXT:
			ns.texts.Add(1)
			continue
		case dnsmessage.TypeA:
			ns.addresses.Add(1)
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		answer, err := m.Pack()
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := conn.WriteTo(answer, from); err != nil {
			return
		}
	}
}
