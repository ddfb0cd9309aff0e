package envoy

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// The lines are Envoy's.
func TestWhatEnvoyWritesOfANACKIsCleanedAsAWhole(t *testing.T) {
	const prefix = "[2026-11-22 09:26:50.175][5551][warning][config] "
	for _, tc := range []struct {
		name, in string
		want     []string
	}{
		{"other lines", "[x] starting\n\n  indented {\nrest", []string{"[x] starting", "", "  indented {", "rest"}},
		{"a line", "one\n" + prefix + "delta config for x rejected: Incorrect configuration: KEY\n" + prefix + "two", []string{"one", "<" + prefix + "delta config for x rejected: Incorrect configuration: KEY>", prefix + "two"}},
		{"several resources", prefix + "x rejected: Error adding/updating listener(s) one: Incorrect configuration: KEY\ntwo: KEY is wrong\n\n[::]:80: KEY\n" + prefix + "next",
			[]string{"<" + prefix + "x rejected: Error adding/updating listener(s) one: Incorrect configuration: KEY|two: KEY is wrong||[::]:80: KEY>", prefix + "next"}},
		{"several resources in a short format", "[warning] x rejected: one: KEY\ntwo: KEY is wrong\n[info] next", []string{"<[warning] x rejected: one: KEY|two: KEY is wrong>", "[info] next"}},
		{"several resources in a format without a beginning", "starting\nx rejected: one: KEY\ntwo: KEY is wrong\n\nnext", []string{"starting", "<x rejected: one: KEY>", "<two: KEY is wrong>", "", "<next>"}},
		{"a sentence alone", "two: Incorrect configuration: KEY%. Couldn't find valid command at position 27", []string{"<two: Incorrect configuration: KEY%. Couldn't find valid command at position 27>"}},
		{"a sentence about a key", "Duplicated credential key: KEY", []string{"<Duplicated credential key: KEY>"}},
		{"a dump", prefix + "x rejected: goo.gle/debugproto    \nname: \"KEY\"\na {\n  b: \"KEY\"\n}\n: Proto constraint validation failed (X)\n" + prefix + "next",
			[]string{"<" + prefix + "x rejected: goo.gle/debugproto    |name: \"KEY\"|a {|  b: \"KEY\"|}|: Proto constraint validation failed (X)>", prefix + "next"}},
		{"a dump at the end of a message", "Unable to unpack: goo.gle/debugproto \nvalue: \"KEY\"\n\nb: other",
			[]string{"<Unable to unpack: goo.gle/debugproto |value: \"KEY\"|>", "<b: other>"}},
		{"a dump that is followed by another line", "x rejected: goo.gle/debugproto \nvalue: \"KEY\"\n" + prefix + "next",
			[]string{"<x rejected: goo.gle/debugproto |value: \"KEY\">", prefix + "next"}},
		{"two dumps", "goo.gle/debugproto \na: \"KEY\"\n" + prefix + "goo.gle/debugproto \nb: \"KEY\"\n: end",
			[]string{"<goo.gle/debugproto |a: \"KEY\">", "<" + prefix + "goo.gle/debugproto |b: \"KEY\"|: end>"}},
		{"a dump on one line", "x rejected: goo.gle/debugstr  a: \"KEY\" : Proto\nnext", []string{"<x rejected: goo.gle/debugstr  a: \"KEY\" : Proto>", "<next>"}},
		{"a dump at the end of all", "goo.gle/debugproto \na: \"KEY\"", []string{"<goo.gle/debugproto |a: \"KEY\">"}},
		{"JSON", `{"level": "warning", "message": "x rejected: KEY", "n": 1}`, []string{`{"level":"warning","message":"<x rejected: KEY>","n":1}`}},
		{"a dump of megabytes", "goo.gle/debugproto \n" + strings.Repeat("  a: \"KEY\"\n", 300_000) + ": why", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			m := &messages{
				clean: func(s string) string { return "<" + strings.ReplaceAll(s, "\n", "|") + ">" },
				out:   func(line []byte) { got = append(got, string(line)) },
				pause: time.Hour,
			}
			lines(strings.NewReader(tc.in), m.line)
			m.flush()
			if tc.want == nil {
				if len(got) != 1 || len(got[0]) > maxMessage+10 {
					t.Errorf("%d lines, the first of %d bytes", len(got), len(got[0]))
				}
			} else if !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

// What is held back for the lines that may follow is shown when none does, and a line that is late
// is cleaned all the same.
func TestANACKIsShownAfterAPause(t *testing.T) {
	const prefix = "[2026-11-22 09:26:50.175][5551][warning][config] "
	out := make(chan string, 10)
	m := &messages{
		clean: func(s string) string { return "<" + s + ">" },
		out:   func(line []byte) { out <- string(line) },
		pause: time.Millisecond,
	}
	for _, tc := range [][2]string{
		{prefix + "x rejected: one: KEY", "<" + prefix + "x rejected: one: KEY>"},
		{"two: KEY", "<two: KEY>"},
		{prefix + "next", prefix + "next"},
		{"other", "other"},
	} {
		m.line([]byte(tc[0]))
		select {
		case got := <-out:
			if got != tc[1] {
				t.Errorf("got %q, want %q", got, tc[1])
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("nothing is shown of %q", tc[0])
		}
		time.Sleep(5 * time.Millisecond)
	}
}
