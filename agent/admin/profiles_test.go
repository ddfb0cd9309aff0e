package admin

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

func TestProfilesAreServedOnAUnixSocketAndNowhereElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	addrs, stop := running(t, Config{State: &agent{}, Addr: "unix:" + path, Health: "127.0.0.1:0", Pprof: true}, 2)
	socket := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: Client{Addr: "unix:" + path}.dial}}
	health := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, tc := range []struct{ path, want string }{
		{"/debug/pprof/", "goroutine"},
		{"/debug/pprof/heap", "\x1f\x8b"}, // gzip
		{"/debug/pprof/goroutine?debug=1", "goroutine profile:"},
		{"/debug/pprof/symbol", "num_symbols"},
		{"/debug/pprof/trace?seconds=0.01", "trace"},
	} {
		if code, body := fetch(t, socket, "http://admin"+tc.path); code != 200 || !strings.Contains(body, tc.want) {
			t.Errorf("%s on the socket: %d, want 200 with %q", tc.path, code, tc.want)
		}
		if code, _ := fetch(t, health, "http://"+addrs["health"].String()+tc.path); code != 404 {
			t.Errorf("%s on the health surface: %d, want 404", tc.path, code)
		}
	}
	if code, body := fetch(t, socket, "http://admin/debug/pprof/cmdline"); code != 404 || strings.Contains(body, "admin.test") {
		t.Errorf("the command line: %d %q, want 404", code, body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func fetch(t *testing.T, c *http.Client, url string) (code int, body string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v", url, err)
	}
	return resp.StatusCode, string(b)
}

func TestProfilesWithoutAUnixSocketAreRefused(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", ""} {
		err := server(t, Config{State: &agent{}, Addr: addr, Pprof: true}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), "--pprof: ") || !strings.Contains(err.Error(), "give --admin unix:PATH") {
			t.Errorf("%q: error %v", addr, err)
		}
	}
}

// Of all profiles this one leaves nothing behind in the runtime that belongs to the
// bubble; the others wait in the same way.
func TestAProfileMayTakeLongerThanAnyTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(64 << 10)
		s := server(t, Config{State: &agent{}, Pprof: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		s.add("admin", lis, s.full(true))
		go func() { ended <- s.Run(ctx) }()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return lis.DialContext(ctx) }}}
		begun, longer := time.Now(), writeTimeout+readTimeout+time.Second
		code, body := fetch(t, client, fmt.Sprintf("http://admin/debug/pprof/heap?seconds=%.0f", longer.Seconds()))
		if code != 200 || !strings.HasPrefix(body, "\x1f\x8b") || time.Since(begun) < longer {
			t.Errorf("%d after %s, want a profile after %s", code, time.Since(begun), longer)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
