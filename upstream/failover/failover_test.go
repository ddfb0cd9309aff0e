package failover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// TestTranscripts plays the transcripts of testdata/failover.txt, with two sources a and b,
// MinBackoff 1s, MaxBackoff 8s, FailoverAfter 5s, FirstAnswer 15s and StaleAfter 60s; a random
// duration is half of its bound. A run is named after its source and its number: a1, a2, b3. After
// "->" are the outputs of the machine:
//
//	start N         starts over with N sources; "spread D": with this ReconnectSpread
//	answers RUN     the run has answered for the first time
//	ends RUN HOW    the run has ended: failed, lost, unreachable, reopen, moved, notused,
//	                or full; "ends RUN full D": and may be tried again after D
//	reached S       the source accepts connections again; "lookup S": look up its name again
//	message S       the source has sent something
//	after D         time passes, and Tick is called whenever the machine has asked for it
//	lacking on      Config.Lacking returns true (off: false); "holding" sets Config.Holding, and
//	                "several" Config.Several of all sources
//	state S         prints the State of the source
func TestTranscripts(t *testing.T) {
	for _, tr := range xdstest.Transcripts(t, "testdata/failover.txt") {
		t.Run(tr.Title, func(t *testing.T) {
			tk := &talk{now: time.Unix(0, 0), holding: true, last: make(map[int]time.Time)}
			tk.start(2, 0)
			tk.tick() // opens a1
			tr.Play(t, tk.play)
		})
	}
}

// talk is a machine and the values of its callbacks.
type talk struct {
	m                *Machine
	now, next        time.Time
	lacking, holding bool
	several          bool
	last             map[int]time.Time
	got              []string
}

func (tk *talk) start(sources int, spread time.Duration) {
	tk.m = New(Config{
		Sources: sources, Timing: Timing{
			MinBackoff: time.Second, MaxBackoff: 8 * time.Second, FailoverAfter: 5 * time.Second,
			FirstAnswer: 15 * time.Second, StaleAfter: time.Minute, ReconnectSpread: spread,
		},
		Lacking: func() bool { return tk.lacking }, Holding: func() bool { return tk.holding },
		LastMessage: func(i int) (time.Time, bool) { return tk.last[i], true },
		Several:     func(int) bool { return tk.several },
		Random:      func(d time.Duration) time.Duration { return d / 2 },
	}, tk.now)
	tk.next = tk.now
}

// play runs a command and returns the outputs.
func (tk *talk) play(words []string) ([]string, error) {
	tk.got = nil
	if len(words) < 2 {
		return nil, fmt.Errorf("what of %q?", words)
	}
	if err := tk.do(words[0], words[1], words[2:]); err != nil {
		return nil, err
	}
	tk.tick()
	return tk.got, nil
}

func (tk *talk) do(command, arg string, more []string) error {
	switch command {
	case "start":
		n, err := strconv.Atoi(arg)
		spread := time.Duration(0)
		if len(more) == 2 && err == nil {
			spread, err = time.ParseDuration(more[1])
		}
		tk.start(n, spread)
		return err
	case "answers":
		i, r := runOf(arg)
		if !tk.m.Answered(tk.now, i, r) {
			tk.got = append(tk.got, "not used")
		}
		tk.last[i] = tk.now
	case "ends":
		i, r := runOf(arg)
		how := map[string]End{
			"failed": Failed, "lost": Lost, "unreachable": Unreachable, "reopen": Reopen, "moved": Moved, "full": Full, "notused": NotUsed,
		}
		after := time.Duration(0)
		if len(more) == 2 {
			var err error
			if after, err = time.ParseDuration(more[1]); err != nil {
				return err
			}
		}
		tk.m.Ended(tk.now, i, r, how[more[0]], after, errors.New(more[0]))
	case "reached", "lookup":
		tk.m.Reached(tk.now, sourceOf(arg), command == "reached")
	case "message":
		tk.last[sourceOf(arg)] = tk.now
	case "lacking":
		tk.lacking = arg == "on"
	case "several":
		tk.several = arg == "on"
	case "holding":
		tk.holding = arg == "on"
	case "after":
		d, err := time.ParseDuration(arg)
		end := tk.now.Add(d)
		for !tk.next.IsZero() && !tk.next.After(end) {
			tk.now = tk.next
			tk.tick()
		}
		tk.now = end
		return err
	case "state":
		s := tk.m.State(sourceOf(arg))
		tk.got = append(tk.got, fmt.Sprintf("active %v stale %v attempts %d error %v", s.Active, s.Stale, s.Attempts, s.LastError))
	default:
		return fmt.Errorf("no command %q", command)
	}
	return nil
}

func sourceOf(name string) int { return int(name[0] - 'a') }

func runOf(name string) (int, Run) {
	n, _ := strconv.Atoi(name[1:])
	return sourceOf(name), Run(n)
}

// tick calls Tick and records the outputs.
func (tk *talk) tick() {
	tk.next = tk.m.Tick(tk.now)
	for _, o := range tk.m.Outputs() {
		source := string(rune('a' + o.Source))
		run := source + strconv.Itoa(int(o.Run))
		text := map[Op]string{
			Open: "open " + run, Close: "close " + run, Use: "use " + run, Await: "await " + source,
			Connected: "connected", Disconnected: "disconnected", AllFailed: "all failed",
			Another: "another of " + source,
			Failure: fmt.Sprintf("failure %d of %s, again in %s", o.Attempts, source, o.Pause.Truncate(100*time.Millisecond)),
			Silence: fmt.Sprintf("silence %d of %s", o.Attempts, source),
		}[o.Op]
		tk.got = append(tk.got, strings.TrimSuffix(text, ", again in 0s"))
	}
}

func TestThePauseIsDrawnBelowABoundThatDoubles(t *testing.T) {
	const draws = 20_000
	const minBackoff, maxBackoff = 250 * time.Millisecond, 30 * time.Second
	m := New(Config{Timing: Timing{MinBackoff: minBackoff, MaxBackoff: maxBackoff}, Random: rand.N[time.Duration]}, time.Now())
	for n := 1; n <= 70; n++ {
		bound := maxBackoff
		if n <= 7 { // 250 ms · 2⁷ = 32 s
			bound = minBackoff << (n - 1)
		}
		var sum, least, most time.Duration
		least = time.Hour
		for range draws {
			pause := m.pause(n)
			sum, least, most = sum+pause, min(least, pause), max(most, pause)
		}
		mean := sum / draws
		if least <= 0 || least > bound/100 || most < bound-bound/100 || most > bound+time.Millisecond {
			t.Errorf("attempt %d: from %s to %s, want all of 0 to %s", n, least, most, bound)
		}
		// 20 standard deviations of the mean.
		if off := (mean - bound/2).Abs(); off > bound/25 {
			t.Errorf("attempt %d: %s on average, want %s", n, mean, bound/2)
		}
	}
}
