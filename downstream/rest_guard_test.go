package downstream

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
)

// On a TCP address, a web page in a browser could send requests too. No page can reach the Unix
// socket, so its clients may send any headers.
func TestRESTOnATCPAddressDoesNotAnswerPages(t *testing.T) {
	path := socketDir(t) + "/xds.sock"
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	unix := listening(t, SocketConfig{Path: path})
	go func() { ended <- s.ServeREST(ctx, tcp) }()
	go func() { ended <- s.ServeREST(ctx, unix) }()
	overSocket := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}
	overTCP := &http.Transport{}
	for _, tc := range []struct {
		name, host, origin, contentType string
		transport                       *http.Transport
		want                            int
	}{
		{"Envoy", "xds_cluster", "", "application/json", overTCP, http.StatusBadRequest}, // it passes the guard, and has no node
		{"a page", "evil.example", "", "application/json", overTCP, http.StatusForbidden},
		{"a page of another origin", "127.0.0.1", "http://evil.example", "application/json", overTCP, http.StatusForbidden},
		{"what a page may send anywhere", "127.0.0.1", "", "text/plain", overTCP, http.StatusUnsupportedMediaType},
		{"the same on the socket", "evil.example", "http://evil.example", "text/plain", overSocket, http.StatusBadRequest},
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+tcp.Addr().String()+"/v3/discovery:clusters", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = tc.host
		req.Header.Set("Content-Type", tc.contentType)
		if tc.origin != "" {
			req.Header.Set("Origin", tc.origin)
		}
		resp, err := tc.transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, resp.StatusCode, tc.want)
		}
	}
	overSocket.CloseIdleConnections()
	overTCP.CloseIdleConnections()
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
