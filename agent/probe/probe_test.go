package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/reaper"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// app is an application whose health a test sets, and a Prober of it.
type app struct {
	*testing.T
	*Prober

	start sync.Once
	run   func() // lets the Prober run in the background

	mu       sync.Mutex
	err      error
	hangs    bool
	attempts []time.Duration // since the start
}

// fails sets why attempts fail; nil if they succeed.
func (a *app) fails(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// hang lets attempts never end by themselves.
func (a *app) hang() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hangs = true
}

// tried returns when attempts were made.
func (a *app) tried() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.attempts)
}

func (a *app) check(ctx context.Context, _ *reaper.Reaper) error {
	a.mu.Lock()
	hangs, err := a.hangs, a.err
	a.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// on runs a test with a Prober in virtual time. The Prober starts where the test first calls want or after: what the test
// has set until then holds for the first attempt.
func on(t *testing.T, cfg Config, test func(*app)) {
	synctest.Test(t, func(t *testing.T) {
		a := &app{T: t}
		began := time.Now()
		cfg.Check = Check{text: "the application", probe: func(ctx context.Context, r *reaper.Reaper) error {
			a.mu.Lock()
			a.attempts = append(a.attempts, time.Since(began))
			a.mu.Unlock()
			return a.check(ctx, r)
		}}
		a.Prober = New(cfg)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		a.run = func() {
			go func() {
				a.Prober.Run(ctx)
				close(ended)
			}()
		}
		test(a)
		a.start.Do(a.run)
		stop()
		<-ended
	})
}

// want checks what is known.
func (a *app) want(want string) {
	a.Helper()
	a.after(0)
	got := "unknown"
	if h, _ := a.Health(); h.Known {
		got = "healthy"
		if h.Reason != "" {
			got = "unhealthy: " + h.Reason
		}
	}
	if got != want {
		a.Errorf("%s, want %s", got, want)
	}
}

// after lets d pass.
func (a *app) after(d time.Duration) {
	a.start.Do(a.run)
	time.Sleep(d)
	synctest.Wait()
}

func TestHealthChangesAfterSoManyResultsInARow(t *testing.T) {
	on(t, Config{Successes: 2, Failures: 3, Period: 10 * time.Second}, func(a *app) {
		a.want("unknown")
		a.after(10 * time.Second)
		a.want("healthy")
		a.fails(errors.New("refused"))
		a.after(20 * time.Second) // two failures
		a.want("healthy")
		a.fails(nil)
		a.after(10 * time.Second)
		a.fails(errors.New("refused"))
		a.after(20 * time.Second) // two more, which are not in a row with the others
		a.want("healthy")
		a.after(10 * time.Second)
		a.want("unhealthy: refused")
		a.fails(nil)
		a.after(10 * time.Second)
		a.want("unhealthy: refused")
		a.after(10 * time.Second)
		a.want("healthy")
	})
}

func TestAnApplicationThatNeverSucceedsIsUnhealthyAfterSoManyFailures(t *testing.T) {
	on(t, Config{}, func(a *app) {
		a.fails(errors.New("refused"))
		a.after(2*DefaultPeriod - time.Second)
		a.want("unknown")
		a.after(time.Second)
		a.want("unhealthy: refused")
	})
}

func TestAttemptsComeAtTheirTimes(t *testing.T) {
	on(t, Config{InitialDelay: 5 * time.Second, Period: 10 * time.Second, Timeout: 3 * time.Second, Failures: 1}, func(a *app) {
		a.hang()
		a.after(26 * time.Second)
		if got := fmt.Sprint(a.tried()); got != "[5s 15s 25s]" {
			t.Errorf("attempts after %s", got)
		}
		a.want("unhealthy: no answer within 3s")
	})
}

// A period that is shorter than the attempt lets no two attempts run at once.
func TestAttemptsDoNotOverlap(t *testing.T) {
	on(t, Config{Period: time.Second, Timeout: 3 * time.Second}, func(a *app) {
		a.hang()
		a.after(10 * time.Second)
		if got := fmt.Sprint(a.tried()); got != "[0s 3s 6s 9s]" {
			t.Errorf("attempts after %s", got)
		}
	})
}

func TestAChangeIsAnnouncedOnce(t *testing.T) {
	on(t, Config{Period: time.Second, Failures: 1}, func(a *app) {
		_, changed := a.Health()
		announced := func() bool {
			a.after(0)
			select {
			case <-changed:
				_, changed = a.Health()
				return true
			default:
				return false
			}
		}
		if !announced() {
			t.Error("the first result is not announced")
		}
		a.after(time.Minute)
		if announced() {
			t.Error("it is announced again without a change")
		}
		a.fails(errors.New("refused"))
		a.after(time.Second)
		if !announced() {
			t.Error("a change is not announced")
		}
		a.fails(errors.New("another reason"))
		a.after(time.Minute)
		if announced() {
			t.Error("the reason of a later failure is announced")
		}
		a.want("unhealthy: refused")
	})
}

func TestADrainMakesTheWorkloadUnhealthyUntilItIsUndone(t *testing.T) {
	on(t, Config{Period: time.Second}, func(a *app) {
		a.want("healthy")
		_, changed := a.Health()
		a.Drain("it drains")
		<-changed
		a.want("unhealthy: it drains")
		a.after(time.Minute)
		a.want("unhealthy: it drains")
		if got := a.Status(); got.State != Healthy || got.Draining != "it drains" {
			t.Errorf("status %+v", got)
		}
		_, changed = a.Health()
		a.Resume()
		<-changed
		a.want("healthy")
		_, changed = a.Health()
		a.Resume()
		select {
		case <-changed:
			t.Error("nothing has changed")
		default:
		}
	})
}

func TestAnApplicationIsHealthyOnlyIfItsProxyIsReady(t *testing.T) {
	var crashed atomic.Bool
	on(t, Config{Period: time.Second, Failures: 1, Proxy: func(context.Context) error {
		if crashed.Load() {
			return errors.New("it has crashed")
		}
		return nil
	}}, func(a *app) {
		a.want("healthy")
		attempts := len(a.tried())
		crashed.Store(true)
		a.after(time.Second)
		a.want("unhealthy: the proxy is not ready: it has crashed")
		if len(a.tried()) != attempts {
			t.Error("the application is probed without its proxy")
		}
	})
}

func TestTheStatusCountsAttempts(t *testing.T) {
	on(t, Config{Period: time.Second, Failures: 2}, func(a *app) {
		a.after(2 * time.Second)
		a.fails(errors.New("refused"))
		a.after(time.Second)
		got := a.Status()
		if got.Check != "the application" || got.State != Healthy || got.Successes != 3 || got.Failures != 1 || got.LastError != "refused" || got.Reason != "" || got.Since.IsZero() {
			t.Errorf("status %+v", got)
		}
	})
}

func TestAReasonIsShortAndPrintable(t *testing.T) {
	for _, tc := range []struct{ name, reason, want string }{
		{"lines and control characters", "a\nb\x1b[31mc\x00\xff", "a b [31mc"},
		{"nothing", "\n", "failed"},
		{"long", strings.Repeat("é", 1000), strings.Repeat("é", 126) + "…"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := reasonOf(errors.New(tc.reason)); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestNothingIsKnownAtFirst(t *testing.T) {
	if h, _ := New(Config{}).Health(); h != (xds.Health{}) {
		t.Errorf("health %+v", h)
	}
}
