package xdstest

import (
	"bufio"
	"flag"
	"os"
	"strings"
	"testing"
)

// Transcript is a conversation from a file: commands and their expected outputs.
type Transcript struct {
	Title string
	// File is the path of its file.
	File  string
	Lines []Line
}

// Line is one command of a transcript.
type Line struct {
	Number int
	// Command is the text before "->" and Want the text after it, with single spaces; "" for no output.
	Command, Want string
}

var update = flag.Bool("update", false, "rewrite what the transcripts of testdata expect")

// Play runs the commands of a transcript with do, and fails the test at the first unexpected output.
// With the flag -update the output is written into the transcript instead.
func (tr Transcript) Play(t testing.TB, do func(words []string) (got []string, err error)) {
	t.Helper()
	for _, l := range tr.Lines {
		answer, err := do(strings.Fields(l.Command))
		if err != nil {
			t.Fatalf("%s:%d: %s: %v", tr.File, l.Number, l.Command, err)
		}
		got := strings.Join(answer, ", ")
		switch {
		case got == l.Want:
		case *update:
			tr.rewrite(t, l, got)
		default:
			t.Fatalf("%s:%d: %s\n got: %s\nwant: %s", tr.File, l.Number, l.Command, got, l.Want)
		}
	}
}

// rewrite replaces the output of a line in the file of the transcript.
func (tr Transcript) rewrite(t testing.TB, l Line, answer string) {
	t.Helper()
	text, err := os.ReadFile(tr.File)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	command, _, _ := strings.Cut(lines[l.Number-1], "->")
	if lines[l.Number-1] = strings.TrimRight(command, " "); answer != "" {
		if !strings.HasSuffix(command, " ") {
			command += " "
		}
		lines[l.Number-1] = command + "-> " + answer
	}
	if err := os.WriteFile(tr.File, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Transcripts reads a file of transcripts, each below a line "# title". It fails the test if there is
// none.
func Transcripts(t testing.TB, path string) []Transcript {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []Transcript
	scan := bufio.NewScanner(f)
	for n := 1; scan.Scan(); n++ {
		text := strings.TrimSpace(scan.Text())
		switch {
		case text == "":
		case strings.HasPrefix(text, "# "):
			out = append(out, Transcript{Title: text[2:], File: path})
		case len(out) == 0:
			t.Fatalf("%s:%d: a command before the first title", path, n)
		default:
			command, want, _ := strings.Cut(text, "->")
			tr := &out[len(out)-1]
			tr.Lines = append(tr.Lines, Line{n, strings.TrimSpace(command), strings.Join(strings.Fields(want), " ")})
		}
	}
	if scan.Err() != nil || len(out) == 0 {
		t.Fatalf("%s: %d transcripts, %v", path, len(out), scan.Err())
	}
	return out
}
