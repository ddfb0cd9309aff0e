package testbed

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Load is requests on several connections that stay open, as a load balancer sends them.
type Load struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	client *http.Client

	mu           sync.Mutex
	sent, failed int
	failures     []string
}

// StartLoad requests url on so many connections, on each once per interval. A request has
// failed when it is not answered with 200. As every HTTP client does, it sends one again
// that met a connection which the server had closed before it began to answer.
func StartLoad(url string, interval time.Duration, connections int) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{cancel: cancel, client: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections},
	}}
	for range connections {
		l.wg.Go(func() { l.send(ctx, url, interval) })
	}
	return l
}

func (l *Load) send(ctx context.Context, url string, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := l.request(url)
		l.mu.Lock()
		l.sent++
		if err != nil {
			if l.failed++; len(l.failures) < 10 {
				l.failures = append(l.failures, err.Error())
			}
		}
		l.mu.Unlock()
	}
}

func (l *Load) request(url string) error {
	resp, err := l.client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %q", resp.Status, body)
	}
	return err
}

// Sent returns how many requests were made.
func (l *Load) Sent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

// Failed returns how many of them have failed.
func (l *Load) Failed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Wait waits until so many requests were made.
func (l *Load) Wait(sent int) {
	for l.Sent() < sent {
		time.Sleep(10 * time.Millisecond)
	}
}

// Stop ends the load and closes its connections; it returns an error if a request has
// failed.
func (l *Load) Stop() error {
	l.cancel()
	l.wg.Wait()
	l.client.CloseIdleConnections()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed > 0 {
		return fmt.Errorf("%d of %d requests failed:\n%s", l.failed, l.sent, strings.Join(l.failures, "\n"))
	}
	return nil
}
