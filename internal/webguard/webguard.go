// Package webguard keeps web pages from what is served over HTTP on a TCP address. A page
// that somebody on the machine looks at in a browser can send requests there, and, where
// a name of its own leads to the address (DNS rebinding), read the answers.
//
// It promises that a request gets through only if its Host is an address or a name that
// no page can have, if it comes from no other origin, and, if it is a POST, if it is one
// that a page may send to its own origin only. It says nothing of who else may connect.
package webguard

import (
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Guard says which names a server has besides its addresses and localhost.
type Guard struct {
	// Host is the host that the server listens on; "" for none.
	Host string
	// PlainNames admits names without a dot, such as those of clusters, which Envoy sends as
	// Host. No page has such a name.
	PlainNames bool
}

// Wrap returns a handler that answers what a web page may have sent itself, and leaves
// the rest to next.
func (g Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.knows(r.Host) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("the Host %q is not one of this server's: ask by its IP address, or by the name that it listens on", r.Host))
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !strings.EqualFold(origin, "http://"+r.Host) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("requests of pages of %q are not answered", origin))
			return
		}
		if r.Method == http.MethodPost {
			if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
				refuse(w, http.StatusUnsupportedMediaType, "want Content-Type: application/json")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// knows reports whether a Host, with or without a port, is one of the server's.
func (g Guard) knows(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	switch {
	case host == "": // HTTP/1.0; browsers always say it
		return true
	case strings.EqualFold(host, "localhost"), g.Host != "" && strings.EqualFold(host, g.Host):
		return true
	}
	return g.PlainNames && !strings.Contains(host, ".")
}

func refuse(w http.ResponseWriter, code int, why string) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, why, code)
}
