// Command load sends requests until it gets SIGTERM, and then writes what came of them to standard output, in JSON
// (type Report of package cluster).
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// maxDuration ends a load whose test has forgotten it.
const maxDuration = 10 * time.Minute

func main() {
	url := flag.String("url", "", "`URL` to request")
	workers := flag.Int("workers", 8, "`NUMBER` of connections; every second one is made anew for each request")
	pause := flag.Duration("pause", 20*time.Millisecond, "pause between two requests of a worker")
	duration := flag.Duration("duration", maxDuration, "`DURATION` after which it ends by itself")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), min(*duration, maxDuration))
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	l := load{url: *url, pause: *pause}
	var wg sync.WaitGroup
	for i := range *workers {
		wg.Go(func() { l.work(ctx, i%2 == 1) })
	}
	wg.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(l.report()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// load is what all workers found.
type load struct {
	url   string
	pause time.Duration

	mu       sync.Mutex
	sent     int
	failures []cluster.Failure
	times    []time.Duration
}

// work sends one request after the other. They are POST: Go repeats a GET by itself when its connection ends.
func (l *load) work(ctx context.Context, fresh bool) {
	transport := &http.Transport{DisableKeepAlives: fresh, MaxIdleConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	for ctx.Err() == nil {
		began := time.Now()
		err := l.request(client)
		l.mu.Lock()
		l.sent++
		l.times = append(l.times, time.Since(began))
		if err != nil {
			l.failures = append(l.failures, cluster.Failure{Began: began, Took: time.Since(began), Reason: reason(err)})
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(l.pause):
		}
	}
}

func (l *load) request(client *http.Client) error {
	resp, err := client.Post(l.url, "text/plain", strings.NewReader("x"))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.80q", resp.Status, body)
	}
	return err
}

// reason is an error without the addresses that are of one connection only.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "->"); i >= 0 {
		text = text[i+2:]
	}
	return text
}

func (l *load) report() cluster.Report {
	r := cluster.Report{Sent: l.sent, Failures: l.failures}
	if slices.Sort(l.times); len(l.times) > 0 {
		r.Median, r.Max = l.times[len(l.times)/2], l.times[len(l.times)-1]
	}
	return r
}
