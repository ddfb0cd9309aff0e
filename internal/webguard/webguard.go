// Package webguard protects HTTP servers on TCP addresses from web pages. A page in a browser on the
// same machine can send requests to them, and read the responses if its own name resolves to the
// address (DNS rebinding).
//
// It promises that a request passes only if its Host is an address or a name that no web page can have,
// if it comes from no other origin, and, if it is a POST, if a page could only send it to its own
// origin; or, for a server of machines, if no browser has sent it. It does not authenticate clients. All
// methods may be called concurrently.
package webguard

import (
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Guard configures the names that a server has in addition to its addresses and localhost.
type Guard struct {
	// Host is the host that the server listens on; "" for none.
	Host string
	// PlainNames accepts names without a dot, such as the names of clusters, which Envoy sends as Host.
	// No page has such a name.
	PlainNames bool
	// Machines passes whatever no browser has sent: probes and scrapers may use any name, and any header that no page can
	// leave out of its requests tells a browser.
	Machines bool
}

// fromBrowser reports whether a browser may have sent a request. Each sends Accept-Language, of which a page can change the
// value and not that it is there (the Fetch standard, "HTTP-network-or-cache fetch"); the others are what most add.
func fromBrowser(r *http.Request) bool {
	for _, name := range []string{"Accept-Language", "Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest", "Sec-Ch-Ua", "Upgrade-Insecure-Requests"} {
		if _, found := r.Header[name]; found {
			return true
		}
	}
	return strings.HasPrefix(r.UserAgent(), "Mozilla/")
}

// Wrap returns a handler that rejects requests that a web page may have sent, and passes the others to
// next.
func (g Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Machines && !fromBrowser(r) {
			next.ServeHTTP(w, r)
			return
		}
		if !g.isOwnHost(r.Host) {
			reject(w, http.StatusForbidden, fmt.Sprintf("the Host %q is not one of this server's: ask by its IP address, or by the name that it listens on", r.Host))
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !strings.EqualFold(origin, "http://"+r.Host) {
			reject(w, http.StatusForbidden, fmt.Sprintf("requests of pages of %q are not answered", origin))
			return
		}
		if r.Method == http.MethodPost {
			if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
				reject(w, http.StatusUnsupportedMediaType, "want Content-Type: application/json")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isOwnHost reports whether a Host, with or without a port, is one of the server's.
func (g Guard) isOwnHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	switch {
	case host == "": // HTTP/1.0; browsers always send a Host
		return true
	case strings.EqualFold(host, "localhost"), g.Host != "" && strings.EqualFold(host, g.Host):
		return true
	}
	return g.PlainNames && !strings.Contains(host, ".")
}

func reject(w http.ResponseWriter, code int, why string) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, why, code)
}
