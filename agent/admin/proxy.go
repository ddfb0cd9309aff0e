package admin

import (
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// Proxy returns a handler that passes GET and HEAD on to the agent, for a browser, which cannot reach a Unix socket.
func (c Client) Proxy() http.Handler {
	host := "holdfast"
	if _, unix := socketPath(c.Addr); !unix {
		host = c.Addr
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: host})
			r.Out.Header.Del("Cookie")
		},
		Transport:     &http.Transport{DialContext: c.dial, IdleConnTimeout: idleTimeout},
		FlushInterval: -1, // of events as they come
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			text(w, http.StatusBadGateway, c.unreachable(err).Error()+"\n")
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			text(w, http.StatusMethodNotAllowed, "only GET and HEAD are passed on\n")
			return
		}
		proxy.ServeHTTP(w, r)
	})
}
