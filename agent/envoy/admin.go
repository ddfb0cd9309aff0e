package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// askTimeout bounds one request to Envoy's admin. Its main thread answers, which a
// large configuration keeps busy for seconds.
const askTimeout = 5 * time.Second

// maxAnswer bounds what is read of an answer.
const maxAnswer = 4 << 20

// Admin is Envoy's admin interface.
type Admin struct {
	client http.Client
	addr   string
}

// NewAdmin returns the admin at an address: host:port or unix:PATH.
func NewAdmin(addr string) *Admin {
	network, at := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, at = "unix", path
	}
	return &Admin{addr: addr, client: http.Client{
		Timeout: askTimeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, at)
			},
			// A connection that stayed open would count as one of Envoy's.
			DisableKeepAlives: true,
		},
	}}
}

// ask sends a request and returns the body of the answer; one that is not 200 is an
// error.
func (a *Admin) ask(ctx context.Context, method, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("the admin interface of Envoy at %s: %w", a.addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("the admin interface of Envoy at %s: %w", a.addr, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the admin interface of Envoy at %s: %s %s: %s: %s", a.addr, method, path, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// Info is what an Envoy says of itself.
type Info struct {
	// State is LIVE when it serves, DRAINING, PRE_INITIALIZING or INITIALIZING.
	State string
	// Version is such as 1.40.0.
	Version string
	// Epoch counts hot restarts.
	Epoch int
	// Started is when this epoch began, to a second or two.
	Started time.Time
}

// StateLive is the State of an Envoy that serves, StateDraining of one that would, but that its
// health checks fail because it was told so.
const (
	StateLive     = "LIVE"
	StateDraining = "DRAINING"
)

// Info asks an Envoy what it is and does.
func (a *Admin) Info(ctx context.Context) (Info, error) {
	body, err := a.ask(ctx, http.MethodGet, "/server_info")
	if err != nil {
		return Info{}, err
	}
	var said struct {
		Version string `json:"version"`
		State   string `json:"state"`
		Uptime  string `json:"uptime_current_epoch"`
		Options struct {
			RestartEpoch int `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	if err := json.Unmarshal([]byte(body), &said); err != nil {
		return Info{}, fmt.Errorf("the admin interface of Envoy at %s: /server_info: %w", a.addr, err)
	}
	info := Info{State: said.State, Version: releaseOf(said.Version), Epoch: said.Options.RestartEpoch}
	if up, err := time.ParseDuration(said.Uptime); err == nil {
		info.Started = time.Now().Add(-up)
	}
	return info, nil
}

// FailHealth makes Envoy's health check filter fail, and its /ready say DRAINING.
func (a *Admin) FailHealth(ctx context.Context) error {
	_, err := a.ask(ctx, http.MethodPost, "/healthcheck/fail")
	return err
}

// PassHealth undoes FailHealth.
func (a *Admin) PassHealth(ctx context.Context) error {
	_, err := a.ask(ctx, http.MethodPost, "/healthcheck/ok")
	return err
}

// Drain makes the listeners drain: what is open is asked to go on elsewhere, new
// connections are still taken. Envoy stays when they have drained (skip_exit, of
// all versions from 1.36 to 1.40 as was measured).
func (a *Admin) Drain(ctx context.Context) error {
	_, err := a.ask(ctx, http.MethodPost, "/drain_listeners?graceful&skip_exit")
	return err
}

// Connections counts the open connections of all listeners but the admin's.
func (a *Admin) Connections(ctx context.Context) (int, error) {
	// server.total_connections is brought up to date only every few seconds.
	body, err := a.ask(ctx, http.MethodGet, "/stats?filter=^listener\\..*\\.downstream_cx_active$")
	if err != nil {
		return 0, err
	}
	open, found := 0, false
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.HasPrefix(name, "listener.admin.") || strings.Contains(name, ".worker_") {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return 0, fmt.Errorf("the admin interface of Envoy at %s: /stats: %q", a.addr, line)
		}
		open, found = open+n, true
	}
	if !found {
		return 0, errNoStats
	}
	return open, nil
}

// errNoStats says that Envoy does not count connections.
var errNoStats = errors.New("there is no listener.*.downstream_cx_active: Envoy has no listener, or its stats are excluded")

// releaseOf returns the release of a version as Envoy writes it:
// hash/1.40.0/Clean/RELEASE/BoringSSL; "" if there is none.
func releaseOf(version string) string {
	parts := strings.Split(version, "/")
	if len(parts) < 2 {
		return ""
	}
	return parts[1]
}
