package repeats

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func logger() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})), &b
}

func TestOneLineOfAKeyIsWrittenAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, out := logger()
		l := New(1, 10)
		for range 1000 {
			l.Log(to, slog.LevelWarn, "a", "refused", "err", "x")
			time.Sleep(time.Millisecond)
		}
		l.Log(to, slog.LevelWarn, "b", "refused", "err", "y")
		time.Sleep(interval)
		l.Log(to, slog.LevelWarn, "a", "refused", "err", "z")
		l.Log(to, slog.LevelWarn, "a", "refused", "err", "z")
		const want = "msg=refused err=x\nmsg=refused err=y\nmsg=refused err=z further_cases=999\n"
		if got := out.String(); got != want {
			t.Errorf("%s, want\n%s", got, want)
		}
	})
}

func TestMoreLinesOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, out := logger()
		l := New(3, 10)
		for range 10 {
			l.Log(to, slog.LevelWarn, "a", "refused")
		}
		if got := strings.Count(out.String(), "\n"); got != 3 {
			t.Errorf("%d lines", got)
		}
		l.Log(to, slog.LevelDebug, "b", "not logged at all")
		if l.keys.Len() != 1 {
			t.Error("a level that is not logged is remembered")
		}
	})
}

// Whoever has any number of addresses writes no more than this.
func TestLinesOfAllKeysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, out := logger()
		l := New(1, 10)
		const seconds, each = 10, 2 * maxKeys
		for range seconds {
			for i := range each {
				l.Log(to, slog.LevelWarn, fmt.Sprint(i), "refused")
			}
			time.Sleep(time.Second)
		}
		if got, most := strings.Count(out.String(), "\n"), 10*(burst+seconds); got > most || got < 10*burst {
			t.Errorf("%d lines, want %d at most", got, most)
		}
		if l.keys.Len() > maxKeys {
			t.Errorf("%d keys", l.keys.Len())
		}
		if !strings.Contains(out.String(), "omitted=") {
			t.Error("nothing says that lines were omitted")
		}
	})
}

func TestAPeerIsKnownByItsHost(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:4711": "10.0.0.1", "[::ffff:10.0.0.1]:1": "10.0.0.1", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64", "[fe80::1%eth0]:1": "fe80::/64",
		"uid 1000": "uid 1000", "": "", "@": "@",
	} {
		if got := Peer(address); got != want {
			t.Errorf("%q: %q", address, got)
		}
	}
}
