package bootstrap

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// there is missing until the time has passed.
func there(name string, after time.Duration) Condition {
	from := time.Now()
	return Condition{name, func(context.Context) error {
		if time.Since(from) < after {
			return errors.New("not yet")
		}
		return nil
	}}
}

func TestWaitReturnsWhenEverythingIsThere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		start := time.Now()
		var told []string
		err := Wait(t.Context(), []Condition{there("a", time.Second), there("b", 0), there("c", 2*time.Second)}, func(name string, missing error) {
			told = append(told, name+" "+map[bool]string{true: "there", false: "missing"}[missing == nil])
		})
		if err != nil || time.Since(start).Round(100*time.Millisecond) != 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		if want := []string{"a missing", "c missing", "a there", "c there"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

func TestWaitNamesWhatIsMissingAtTheEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := Wait(ctx, []Condition{there("a", time.Second), there("b", time.Hour), there("c", time.Hour)}, nil)
		if err == nil || err.Error() != "b: not yet\nc: not yet" {
			t.Errorf("%v", err)
		}
	})
}

// A condition that no longer holds is waited for again.
func TestEverythingIsThereAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		start := time.Now()
		flaps := Condition{"flaps", func(context.Context) error {
			if since := time.Since(start); since > time.Second && since < 3*time.Second {
				return errors.New("gone")
			}
			return nil
		}}
		if err := Wait(t.Context(), []Condition{flaps, there("late", 2*time.Second)}, nil); err != nil || time.Since(start) < 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

func TestFilesAndSocketsAreLookedAt(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	path := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	full, empty, none := path("full", "x"), path("empty", ""), filepath.Join(dir, "none")
	for _, tc := range []struct {
		name      string
		condition Condition
		want      string
	}{
		{"a file", FileThere("f", empty, false), ""},
		{"a directory", FileThere("f", dir, false), ""},
		{"no file", FileThere("f", none, false), none + " does not exist"},
		{"a file that cannot be", FileThere("f", full+"/x", false), "not a directory"},
		{"content", FileThere("f", full, true), ""},
		{"no content", FileThere("f", empty, true), "is empty"},
		{"content of a directory", FileThere("f", dir, true), "is not a regular file"},
		{"a socket", SocketThere("s", socket), ""},
		{"no socket", SocketThere("s", none), "no such file"},
		{"a file for a socket", SocketThere("s", full), "connection refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.condition.Missing(t.Context())
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
