package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/webguard"
)

const pageLong = `Show the page of the running agent to a browser on this machine: status, problems, what would be
if the control plane went away, events as they happen, and what each resource leads to, with its
history. The page changes nothing.

The command prints the address of the page, and serves it until it is interrupted. The address has a
token: without it, other users of the machine see nothing.

An agent whose --admin is a host:port serves the page there as well, without a token.`

const pageExample = `
holdfast page

# of an agent in a pod: the command in one terminal, the way to it in another
kubectl holdfast web-0 page --listen 127.0.0.1:15099
kubectl port-forward web-0 15099`

func newPage() *command {
	c := newCommand("page", "show the page of the running agent to a browser on this machine", pageLong, pageExample)
	var listen string
	c.section("Where").StringVar(&listen, "listen", "127.0.0.1:0", "`ADDR` to serve the page on, a port of the loopback interface; port 0: any that is free")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		if err := checkLoopback(listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		if _, err := client.Ready(ctx); err != nil {
			return cli.Failed(err)
		}
		lis, err := net.Listen("tcp", listen)
		if err != nil {
			return cli.Failed(fmt.Errorf("--listen: %w", err))
		}
		token := rand.Text()
		_, _ = fmt.Fprintf(c.OutOrStdout(), "http://%s/?token=%s\n", lis.Addr(), token)
		server := &http.Server{Handler: webguard.Guard{}.Wrap(withToken(fmt.Sprintf("holdfast-page-%d", lis.Addr().(*net.TCPAddr).Port), token, client.Proxy())), ReadHeaderTimeout: 10 * time.Second}
		stop := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stop()
		if err := server.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
			return cli.Failed(err)
		}
		return nil
	})
	return c
}

// checkLoopback returns an error for an address that other machines may reach.
func checkLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: want host:port", addr)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%q: want a port of the loopback interface, such as 127.0.0.1:0: the page is not encrypted", addr)
	}
	return nil
}

// withToken passes a request on if it has a token in a cookie, which the address with the token sets. A browser has one
// cookie of a name for all ports of a host.
func withToken(cookie, token string, next http.Handler) http.Handler {
	is := func(given string) bool { return subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1 }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Referrer-Policy", "no-referrer")
		if given := r.URL.Query().Get("token"); r.URL.Path == "/" && is(given) {
			http.SetCookie(w, &http.Cookie{Name: cookie, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		for _, c := range r.CookiesNamed(cookie) {
			if is(c.Value) {
				next.ServeHTTP(w, r)
				return
			}
		}
		http.Error(w, "open the address that `holdfast page` printed, with its token", http.StatusForbidden)
	})
}
