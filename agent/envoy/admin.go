package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// requestTimeout bounds one request to Envoy's admin interface. Envoy's main thread answers it,
// and a large configuration keeps that thread busy for seconds.
const requestTimeout = 5 * time.Second

const maxResponse = 4 << 20 // bytes

// Admin is a client of Envoy's admin interface.
type Admin struct {
	client http.Client
	addr   string
}

// NewAdmin returns a client for an address: host:port or unix:PATH.
func NewAdmin(addr string) *Admin {
	network, at := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, at = "unix", path
	}
	return &Admin{addr: addr, client: http.Client{
		Timeout: requestTimeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, at)
			},
			// An idle connection would count as one of Envoy's connections.
			DisableKeepAlives: true,
		},
	}}
}

// send sends a request. It takes as long as the client and ctx allow; the caller closes the body of the answer.
func (a *Admin) send(ctx context.Context, client *http.Client, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the admin interface of Envoy at %s: %w", a.addr, err)
	}
	return resp, nil
}

// patient returns a client without a time limit of its own, for answers that may be large.
func (a *Admin) patient() *http.Client { return &http.Client{Transport: a.client.Transport} }

// request returns the body of an answer with the status 200, or another one of allowed.
func (a *Admin) request(ctx context.Context, method, path string, allowed ...int) (string, error) {
	resp, err := a.send(ctx, &a.client, method, path)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return "", fmt.Errorf("the admin interface of Envoy at %s: %w", a.addr, err)
	}
	if resp.StatusCode != http.StatusOK && !slices.Contains(allowed, resp.StatusCode) {
		return "", fmt.Errorf("the admin interface of Envoy at %s: %s %s: %s: %s", a.addr, method, path, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// Prometheus requests Envoy's metrics in Prometheus' text format, with a query such as "usedonly". The
// answer may be large and take long: ctx bounds it. The caller closes the body.
func (a *Admin) Prometheus(ctx context.Context, query string) (*http.Response, error) {
	path := "/stats/prometheus"
	if query != "" {
		path += "?" + query
	}
	return a.send(ctx, a.patient(), http.MethodGet, path)
}

// maxDump bounds a config_dump, in bytes. dumpTimeout bounds the time that Envoy takes for it.
const (
	maxDump     = 512 << 20
	dumpTimeout = 30 * time.Second
)

// ConfigDump returns Envoy's configuration with endpoints, as JSON. Envoy's main thread writes it, which does nothing else
// meanwhile: about a second for 100 MB.
func (a *Admin) ConfigDump(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, dumpTimeout)
	defer cancel()
	const path = "/config_dump?include_eds"
	resp, err := a.send(ctx, a.patient(), http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDump+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the admin interface of Envoy at %s: %w", a.addr, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the admin interface of Envoy at %s: GET %s: %s", a.addr, path, resp.Status)
	case len(body) > maxDump:
		return nil, fmt.Errorf("the admin interface of Envoy at %s: the config_dump has more than %d MiB", a.addr, maxDump>>20)
	}
	return body, nil
}

// Info is Envoy's description of itself.
type Info struct {
	State   string // LIVE, DRAINING, PRE_INITIALIZING or INITIALIZING
	Version string // the release, such as 1.40.0
	Epoch   int    // counts hot restarts
	// Started is when this epoch began, accurate to a second or two.
	Started time.Time
}

// StateLive is the State of an Envoy that serves. StateDraining is the State while its health
// checks fail on request.
const (
	StateLive     = "LIVE"
	StateDraining = "DRAINING"
)

func (a *Admin) Info(ctx context.Context) (Info, error) {
	body, err := a.request(ctx, http.MethodGet, "/server_info")
	if err != nil {
		return Info{}, err
	}
	var response struct {
		Version string `json:"version"`
		State   string `json:"state"`
		Uptime  string `json:"uptime_current_epoch"`
		Options struct {
			RestartEpoch int `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		return Info{}, fmt.Errorf("the admin interface of Envoy at %s: /server_info: %w", a.addr, err)
	}
	info := Info{State: response.State, Version: releaseOf(response.Version), Epoch: response.Options.RestartEpoch}
	if up, err := time.ParseDuration(response.Uptime); err == nil {
		info.Started = time.Now().Add(-up)
	}
	return info, nil
}

// State returns Info.State. It costs a hundredth of Info, whose answer has more than 100 kB.
func (a *Admin) State(ctx context.Context) (string, error) {
	body, err := a.request(ctx, http.MethodGet, "/ready", http.StatusServiceUnavailable)
	return strings.TrimSpace(body), err
}

// FailHealth makes Envoy's health check filter fail, and its /ready report DRAINING.
func (a *Admin) FailHealth(ctx context.Context) error {
	_, err := a.request(ctx, http.MethodPost, "/healthcheck/fail")
	return err
}

// PassHealth undoes FailHealth.
func (a *Admin) PassHealth(ctx context.Context) error {
	_, err := a.request(ctx, http.MethodPost, "/healthcheck/ok")
	return err
}

// Drain drains the listeners: clients with open connections are asked to reconnect elsewhere,
// and new connections are still accepted. Envoy does not exit afterwards (skip_exit, measured
// with all versions from 1.36 to 1.40).
func (a *Admin) Drain(ctx context.Context) error {
	_, err := a.request(ctx, http.MethodPost, "/drain_listeners?graceful&skip_exit")
	return err
}

// Connections counts the open connections of all listeners except the admin listener.
func (a *Admin) Connections(ctx context.Context) (int, error) {
	// server.total_connections is not used, because it is updated only every few seconds.
	body, err := a.request(ctx, http.MethodGet, "/stats?filter=^listener\\..*\\.downstream_cx_active$")
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

// Requests counts the HTTP requests that Envoy has completed since its start, and those of them that were answered with
// 5xx, without those of its admin interface.
func (a *Admin) Requests(ctx context.Context) (completed, failed uint64, err error) {
	body, err := a.request(ctx, http.MethodGet, "/stats?filter=^http\\..*\\.downstream_rq_(completed|5xx)$")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.HasPrefix(name, "http.admin.") {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("the admin interface of Envoy at %s: /stats: %q", a.addr, line)
		}
		if strings.HasSuffix(name, "_5xx") {
			failed += n
		} else {
			completed += n
		}
	}
	return completed, failed, nil
}

var errNoStats = errors.New("there is no listener.*.downstream_cx_active: Envoy has no listener, or its stats are excluded")

// releaseOf returns the release in Envoy's version text, such as
// hash/1.40.0/Clean/RELEASE/BoringSSL; "" if there is none.
func releaseOf(version string) string {
	_, version, _ = strings.Cut(version, "/")
	version, _, _ = strings.Cut(version, "/")
	return version
}

const drainPoll = 200 * time.Millisecond // the interval of counts of connections

// Draining has the minimum time of a drain, in which clients notice the failing health checks, and the
// maximum.
type Draining struct{ Min, Timeout time.Duration }

// ErrUndone is the cause for cancelling the context of AwaitDrained when the drain is undone.
var ErrUndone = errors.New("the drain was undone")

// Drain closes the connections of an Envoy that is about to end: its health checks fail, so
// that it gets no new clients, and its listeners drain, which cannot be undone. It returns as
// AwaitDrained does.
func Drain(ctx context.Context, a *Admin, d Draining, log *slog.Logger) {
	if err := a.FailHealth(ctx); err != nil {
		log.Warn("Envoy cannot be drained", "err", err)
		return
	}
	if err := a.Drain(ctx); err != nil {
		log.Warn("Envoy's listeners cannot be drained", "err", err)
	}
	AwaitDrained(ctx, a, d, log)
}

// AwaitDrained waits for an Envoy whose health checks fail. It returns when no connection is
// left and Min has passed, after Timeout, when Envoy does not answer, or when ctx ends.
func AwaitDrained(ctx context.Context, a *Admin, d Draining, log *slog.Logger) {
	began := time.Now()
	log.Info("Envoy drain started", "min", d.Min.String(), "timeout", d.Timeout.String())
	deadline := began.Add(max(d.Min, d.Timeout))
	for pause := d.Min; ; pause = min(drainPoll, time.Until(deadline)) {
		if !wake.Sleep(ctx, pause) {
			if !errors.Is(context.Cause(ctx), ErrUndone) {
				log.Warn("Envoy drain aborted, because of an immediate shutdown")
			}
			return
		}
		open, err := a.Connections(ctx)
		took := time.Since(began).Round(time.Millisecond).String()
		switch {
		case errors.Is(err, errNoStats):
			log.Info("Envoy drain complete; open connections cannot be counted", "err", err)
		case err != nil:
			log.Warn("Envoy does not answer during its drain", "err", err)
		case open == 0:
			log.Info("Envoy drain complete", "took", took)
		case !time.Now().Before(deadline):
			log.Warn("Envoy drain timed out", "connections", open, "took", took)
		default:
			continue
		}
		return
	}
}
