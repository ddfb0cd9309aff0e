// Package probe finds out whether the application beside the agent is healthy, as the kubelet's readiness probe does.
//
// A Check is one attempt: HTTP, HTTPS, TCP, gRPC's health service, or a command; Parse reads one from a flag, FromIstio from
// Istio's ProxyConfig. A Prober repeats a Check and says what the health is: unknown at first, then healthy or unhealthy
// once so many attempts in a row have had the same result.
//
// It promises that an attempt takes no longer than its timeout, or for a command that cannot be ended a second longer; that a
// command and its children have ended after it, except such a one and children that have left its process group; and that an
// application cannot make it use much memory. It does not report the health to anybody. All methods may be called
// concurrently; Run may be called once, and has ended everything that it started when it returns.
package probe

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/reaper"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// The defaults of Kubernetes' probes, which are those of the flags.
const (
	DefaultPeriod    = 10 * time.Second
	DefaultTimeout   = time.Second
	DefaultSuccesses = 1
	DefaultFailures  = 3
)

// maxReason bounds the reason of a failure, in bytes.
const maxReason = 256

// Config configures a Prober; zero values of Period, Timeout, Successes and Failures take the defaults.
type Config struct {
	Check Check
	// InitialDelay is how long Run waits before the first attempt, Period how long from the beginning of one attempt until
	// the next one, and Timeout how long an attempt may take.
	InitialDelay, Period, Timeout time.Duration
	// Successes and Failures are how many attempts in a row must succeed or fail for the health to change.
	Successes, Failures int
	// Proxy, if set, returns why the proxy before the application cannot serve it. Such an attempt has failed.
	Proxy func(context.Context) error
	// Orphans, which may be nil, must not reap the commands of Check.
	Orphans *reaper.Reaper
	Log     *slog.Logger
}

// State says what is known of the application.
type State string

const (
	Unknown   State = "unknown"
	Healthy   State = "healthy"
	Unhealthy State = "unhealthy"
)

// Status is what a Prober knows.
type Status struct {
	// Check is what is probed, as a person writes it.
	Check string `json:"check"`
	State State  `json:"state"`
	// Since is when the state began; the zero time while it is unknown.
	Since time.Time `json:"since,omitzero"`
	// Reason is why the application is unhealthy.
	Reason string `json:"reason,omitempty"`
	// Draining is why the workload is reported as unhealthy whatever the application is; "" for not.
	Draining string `json:"draining,omitempty"`
	// LastError is why the last attempt failed; "" if it succeeded, or there was none yet.
	LastError string `json:"last_error,omitempty"`
	// Successes and Failures count the attempts.
	Successes uint64 `json:"successes"`
	Failures  uint64 `json:"failures"`
}

// Prober repeats a Check. Create one with New.
type Prober struct {
	cfg Config

	mu      sync.Mutex
	status  Status
	streak  int // attempts in a row with the result of the last one
	changed chan struct{}
}

// New returns a Prober that has not probed yet.
func New(cfg Config) *Prober {
	cfg.Period, cfg.Timeout = cmp.Or(cfg.Period, DefaultPeriod), cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.Successes, cfg.Failures = cmp.Or(cfg.Successes, DefaultSuccesses), cmp.Or(cfg.Failures, DefaultFailures)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Prober{cfg: cfg, status: Status{Check: cfg.Check.String(), State: Unknown}, changed: make(chan struct{})}
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	if !wake.Sleep(ctx, p.cfg.InitialDelay) {
		return
	}
	wake.Loop(ctx, nil, func() time.Time {
		next := time.Now().Add(p.cfg.Period)
		if err := p.attempt(ctx); ctx.Err() == nil {
			p.record(err)
		}
		return next
	})
}

// attempt probes once.
func (p *Prober) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.Timeout, fmt.Errorf("no answer within %s", p.cfg.Timeout))
	defer cancel()
	if p.cfg.Proxy != nil {
		if err := p.cfg.Proxy(ctx); err != nil {
			return fmt.Errorf("the proxy is not ready: %w", err)
		}
	}
	err := p.cfg.Check.probe(ctx, p.cfg.Orphans)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // says more than the error of the connection
	}
	return err
}

// record takes in the result of an attempt.
func (p *Prober) record(err error) {
	result, needed, reason := Healthy, p.cfg.Successes, ""
	if err != nil {
		result, needed, reason = Unhealthy, p.cfg.Failures, reasonOf(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.status
	same := before.Successes+before.Failures > 0 && (before.LastError == "") == (err == nil)
	if !same {
		p.streak = 0
	}
	p.streak++
	p.status.LastError = reason
	if err == nil {
		p.status.Successes++
	} else {
		p.status.Failures++
	}
	if p.streak < needed || before.State == result {
		return
	}
	p.status.State, p.status.Since, p.status.Reason = result, time.Now(), reason
	if result == Healthy {
		p.cfg.Log.Info("the application is healthy")
	} else {
		p.cfg.Log.Warn("the application is unhealthy", "err", reason)
	}
	p.announce()
}

// announce says that Health has changed. It is called with mu held.
func (p *Prober) announce() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Drain makes the workload unhealthy for a reason, whatever the application is; Resume undoes it.
func (p *Prober) Drain(reason string) { p.setDraining(reason) }

// Resume undoes Drain.
func (p *Prober) Resume() { p.setDraining("") }

func (p *Prober) setDraining(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status.Draining != reason {
		p.status.Draining = reason
		p.announce()
	}
}

// Health returns the health of the workload, and a channel that is closed when it may have changed.
func (p *Prober) Health() (xds.Health, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.status.Draining != "":
		return xds.Health{Known: true, Reason: p.status.Draining}, p.changed
	case p.status.State == Unknown:
		return xds.Health{}, p.changed
	}
	return xds.Health{Known: true, Reason: p.status.Reason}, p.changed
}

// Status returns what is known now.
func (p *Prober) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// reasonOf returns the error of an attempt, which may be of the application, in one line; never "".
func reasonOf(err error) string { return cmp.Or(redact.Brief(err.Error(), maxReason), "failed") }
