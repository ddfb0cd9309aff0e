package webguard

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A server of machines answers probes and scrapers by any name, and browsers as the others do.
func TestMachinesGetThroughByAnyName(t *testing.T) {
	for _, tc := range []struct {
		name, method, host string
		header             http.Header
		want               int
	}{
		{"the kubelet", "GET", "10.0.0.1:15020", http.Header{"User-Agent": {"kube-probe/1.34"}, "Accept": {"*/*"}}, 200},
		{"the kubelet, with a Host of the probe", "GET", "web.example", http.Header{"User-Agent": {"kube-probe/1.34"}}, 200},
		{"Prometheus by a name", "GET", "node1.example:15020", http.Header{"User-Agent": {"Prometheus/3.5.0"}, "Accept": {"text/plain"}, "X-Prometheus-Scrape-Timeout-Seconds": {"10"}}, 200},
		{"curl", "POST", "localhost:15020", http.Header{"User-Agent": {"curl/8"}}, 200},
		{"a page that was rebound", "GET", "evil.example:15020", http.Header{"User-Agent": {"Mozilla/5.0 (X11)"}, "Accept-Language": {"en"}}, 403},
		{"the same with all that a page can change", "GET", "evil.example:15020", http.Header{"User-Agent": {"kube-probe/1.34"}, "Accept-Language": {""}}, 403},
		{"an image of another site", "GET", "127.0.0.1:15020", http.Header{"Accept-Language": {"en"}, "Origin": {"http://evil.example"}}, 403},
		{"a form of another site", "POST", "127.0.0.1:15020", http.Header{"Accept-Language": {"en"}, "Content-Type": {"text/plain"}}, 415},
		{"only a referrer", "GET", "evil.example", http.Header{"Referer": {"http://evil.example/"}}, 403},
		{"a person with a browser", "GET", "127.0.0.1:15020", http.Header{"User-Agent": {"Mozilla/5.0"}, "Accept-Language": {"en"}, "Sec-Fetch-Site": {"none"}}, 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest(tc.method, "/metrics", nil)
			r.Host, r.Header = tc.host, tc.header
			w := httptest.NewRecorder()
			Guard{Machines: true}.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tc.want)
			}
		})
	}
}

func TestOnlyWhatNoPageMaySendGetsThrough(t *testing.T) {
	named, plain := Guard{Host: "node1.example"}, Guard{PlainNames: true}
	for _, tc := range []struct {
		name                 string
		guard                Guard
		method, host, origin string
		contentType          string
		want                 int
	}{
		{"an IPv4 address", Guard{}, "GET", "127.0.0.1:15000", "", "", 200},
		{"an address without a port", Guard{}, "GET", "192.0.2.1", "", "", 200},
		{"an IPv6 address", Guard{}, "GET", "[::1]:15000", "", "", 200},
		{"an IPv6 address without a port", Guard{}, "GET", "[::1]", "", "", 200},
		{"localhost", Guard{}, "GET", "LocalHost:15000", "", "", 200},
		{"no Host", Guard{}, "GET", "", "", "", 200},
		{"a name that leads here", Guard{}, "GET", "evil.example", "", "", 403},
		{"a name that looks like an address", Guard{}, "GET", "127.0.0.1.evil.example:15000", "", "", 403},
		{"a name below localhost's", Guard{}, "GET", "localhost.evil.example", "", "", 403},
		{"the configured name", named, "GET", "Node1.example.:15000", "", "", 200},
		{"another name", named, "GET", "node2.example:15000", "", "", 403},
		{"the name of a cluster", plain, "POST", "xds_cluster", "", "application/json", 200},
		{"a name without a dot, not admitted", Guard{}, "GET", "xds_cluster", "", "", 403},
		{"a name with a dot", plain, "POST", "evil.example", "", "application/json", 403},
		{"its own origin", Guard{}, "GET", "127.0.0.1:15000", "http://127.0.0.1:15000", "", 200},
		{"another origin", Guard{}, "GET", "127.0.0.1:15000", "http://evil.example", "", 403},
		{"no origin in particular", Guard{}, "GET", "127.0.0.1:15000", "null", "", 403},
		{"another port's origin", plain, "POST", "127.0.0.1:15000", "http://127.0.0.1:8080", "application/json", 403},
		{"JSON", Guard{}, "POST", "127.0.0.1:1", "", "application/json; charset=utf-8", 200},
		{"a form", Guard{}, "POST", "127.0.0.1:1", "", "application/x-www-form-urlencoded", 415},
		{"text", Guard{}, "POST", "127.0.0.1:1", "", "text/plain", 415},
		{"nothing said", Guard{}, "POST", "127.0.0.1:1", "", "", 415},
		{"JSON among others", Guard{}, "POST", "127.0.0.1:1", "", "text/plain, application/json", 415},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest(tc.method, "/", nil)
			r.Host = tc.host
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			if tc.contentType != "" {
				r.Header.Set("Content-Type", tc.contentType)
			}
			w := httptest.NewRecorder()
			tc.guard.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tc.want)
			}
		})
	}
}
