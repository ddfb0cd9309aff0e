package istio

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTheEndAndTheDrainAreForProcessesOfThePod(t *testing.T) {
	for _, tc := range []struct {
		name, method, path, peer string
		code                     int
		quits, drains            int
	}{
		{"the end", "POST", "/quitquitquit", "127.0.0.1:5000", 200, 1, 0},
		{"the end over IPv6", "POST", "/quitquitquit", "[::1]:5000", 200, 1, 0},
		{"the end over IPv4 in IPv6", "POST", "/quitquitquit", "[::ffff:127.0.0.1]:5000", 200, 1, 0},
		{"the drain", "POST", "/drain", "127.0.0.1:5000", 200, 0, 1},
		{"another method", "GET", "/quitquitquit", "127.0.0.1:5000", 405, 0, 0},
		{"another method of the drain", "GET", "/drain", "127.0.0.1:5000", 405, 0, 0},
		{"another pod", "POST", "/quitquitquit", "10.0.0.8:5000", 403, 0, 0},
		{"another pod's drain", "POST", "/drain", "10.0.0.8:5000", 403, 0, 0},
		{"another pod through Envoy", "POST", "/quitquitquit", "127.0.0.6:5000", 403, 0, 0},
		{"another pod through Envoy, IPv6", "POST", "/quitquitquit", "[::6]:5000", 403, 0, 0},
		{"IPv4 in IPv6, through Envoy", "POST", "/drain", "[::ffff:127.0.0.6]:5000", 403, 0, 0},
		{"a peer without an address", "POST", "/quitquitquit", "@", 403, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			quits, drains := 0, 0
			mux := http.NewServeMux()
			New(Config{}, Parts{
				Quit:  func() { quits++ },
				Drain: func() error { drains++; return errors.New("undone") },
			}).Register(mux)
			r, w := httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil), httptest.NewRecorder()
			r.RemoteAddr = tc.peer
			mux.ServeHTTP(w, r)
			if w.Code != tc.code || quits != tc.quits || drains != tc.drains {
				t.Errorf("%d %s, %d quits, %d drains", w.Code, w.Body, quits, drains)
			}
			if tc.code == 200 && w.Body.String() != "OK" {
				t.Errorf("the answer is %q", w.Body)
			}
		})
	}
}

// The client has its answer before the drain is over.
func TestTheDrainIsAnsweredAtOnce(t *testing.T) {
	over := make(chan struct{})
	r := start(t, environ{}, func(p *Parts) { p.Drain = func() error { <-over; return nil } })
	if resp, body := r.do(http.MethodPost, "/drain"); resp.StatusCode != 200 || body != "OK" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	close(over)
}
