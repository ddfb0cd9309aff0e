package istio

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Headers of the test: tagHeader tells requests apart, doHeader says what the backend shall do.
const (
	tagHeader = "X-Tag"
	doHeader  = "X-Do"
)

// seen is a request as a backend got it.
type seen struct {
	Backend, Method, Path, Host, Proto string
	// SNI is the server name of the TLS of the connection, and Client the common name of the client's
	// certificate.
	SNI, Client string
	Headers     map[string]string
}

// backends are the servers of a test: HTTP in plaintext (v1 to v4), HTTPS (s1, s2; m1 wants a client
// certificate), and TCP (t1 to t3).
type backends struct {
	ports map[string]int

	mu   sync.Mutex
	seen map[string][]seen // by tag
}

// plainBackends speak HTTP/1.1 and HTTP/2 with prior knowledge.
var (
	plainBackends = []string{"v1", "v2", "v3", "v4"}
	tlsBackends   = []string{"s1", "s2", "m1"}
	tcpBackends   = []string{"t1", "t2", "t3"}
)

// startBackends starts all backends on loopback, and u1 on the Unix socket u1.sock in a directory. The certificates of HTTPS are for *.test.
func startBackends(t *testing.T, ca *authority, dir string) *backends {
	t.Helper()
	b := &backends{ports: make(map[string]int), seen: make(map[string][]seen)}
	for _, name := range plainBackends {
		b.serve(t, name, nil)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "u1.sock"))
	check(t, err)
	b.serveHTTP(t, "u1", socket, nil)
	for _, name := range tlsBackends {
		conf := &tls.Config{
			Certificates: []tls.Certificate{ca.issue(t, name, "spiffe://cluster.local/ns/default/sa/"+name, "*.test", name+".example")},
			NextProtos:   []string{"h2", "http/1.1"},
		}
		if name == "m1" {
			conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
			conf.NextProtos = nil // clients of mesh TLS announce protocols that Go's server would reject
		}
		b.serve(t, name, conf)
	}
	for _, name := range tcpBackends {
		lis := b.listen(t, name)
		go func() {
			for {
				conn, err := lis.Accept()
				if err != nil {
					return
				}
				go serveTCP(conn, name)
			}
		}()
	}
	// Nobody listens on the port of the backend "dead".
	b.ports["dead"] = freePort(t)
	return b
}

func (b *backends) listen(t *testing.T, name string) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", ":"+strconv.Itoa(freePort(t))) // on all addresses of the namespace
	check(t, err)
	t.Cleanup(func() { _ = lis.Close() })
	b.ports[name] = lis.Addr().(*net.TCPAddr).Port
	return lis
}

func (b *backends) serve(t *testing.T, name string, conf *tls.Config) {
	t.Helper()
	b.serveHTTP(t, name, b.listen(t, name), conf)
}

// serveHTTP answers HTTP, or HTTPS if there is a configuration of TLS.
func (b *backends) serveHTTP(t *testing.T, name string, lis net.Listener, conf *tls.Config) {
	t.Helper()
	srv := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, TLSConfig: conf, Protocols: new(http.Protocols),
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.handle(name, w, r) }),
		ErrorLog: discard, ConnContext: withProxied,
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	if conf != nil {
		secure := tls.NewListener(lis, conf.Clone()) // the server adds protocols to its own
		go func() { _ = srv.Serve(secure) }()
	} else {
		go func() { _ = srv.Serve(proxyListener{lis}) }()
	}
	t.Cleanup(func() { _ = srv.Close() })
}

// handle records a request and does what it asks for.
func (b *backends) handle(name string, w http.ResponseWriter, r *http.Request) {
	s := seen{Backend: name, Method: r.Method, Path: r.RequestURI, Host: r.Host, Proto: r.Proto, Headers: make(map[string]string)}
	if r.TLS != nil {
		s.SNI = r.TLS.ServerName
		if certs := r.TLS.PeerCertificates; len(certs) > 0 {
			s.Client = certs[0].Subject.CommonName
		}
	}
	for key, values := range r.Header {
		s.Headers[strings.ToLower(key)] = strings.Join(values, ",")
	}
	if from := r.Context().Value(proxiedKey{}); from != nil {
		s.Headers["(proxy protocol)"] = from.(string)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	tag := r.Header.Get(tagHeader)
	b.mu.Lock()
	b.seen[tag] = append(b.seen[tag], s)
	attempt := len(b.seen[tag])
	b.mu.Unlock()
	status := http.StatusOK
	for _, do := range strings.Split(r.Header.Get(doHeader), ",") {
		what, times, limited := strings.Cut(do, "*")
		if n, _ := strconv.Atoi(times); limited && attempt > n {
			continue
		}
		switch verb, value, _ := strings.Cut(what, ":"); verb {
		case "status":
			status, _ = strconv.Atoi(value)
		case "delay":
			d, _ := time.ParseDuration(value)
			select {
			case <-time.After(d):
			case <-r.Context().Done():
			}
		case "close":
			panic(http.ErrAbortHandler)
		}
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain")
	h.Set("X-Backend", name)
	h.Set("X-Secret", "of the backend")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, name)
}

// take returns what the backends saw of a tag.
func (b *backends) take(tag string) []seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen[tag]
}

// serveTCP reads a line and answers with the backend's name and the line. A PROXY header comes back
// as well.
func serveTCP(conn net.Conn, name string) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewReader(conn)
	from := readProxyHeader(r)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprintf(conn, "%s %s%s\n", name, strings.TrimSpace(line), from)
	}
}

// readProxyHeader reads a PROXY header, if there is one, and returns the version and source address
// that it says.
func readProxyHeader(r *bufio.Reader) string {
	start, err := r.Peek(6)
	switch {
	case err != nil:
	case string(start) == "PROXY ":
		line, _ := r.ReadString('\n')
		if parts := strings.Fields(line); len(parts) > 2 {
			return " PROXY1 " + parts[2]
		}
		return " PROXY1"
	case string(start) == "\r\n\r\n\x00\r":
		header := make([]byte, 16)
		if _, err := io.ReadFull(r, header); err != nil {
			return ""
		}
		body := make([]byte, binary.BigEndian.Uint16(header[14:]))
		if _, err := io.ReadFull(r, body); err != nil || len(body) < 4 {
			return " PROXY2"
		}
		return " PROXY2 " + net.IP(body[:4]).String()
	}
	return ""
}
