// Package tutorial reads the commands of a page of documentation, and what the page says that they print, so that tests run
// them as a reader would. Its functions may be called concurrently.
//
// Commands are fenced blocks of the language sh, and what they print is a block of the language text after them:
//
//   - a block that only reads is written as "sh again", and run again until it prints what the page says;
//   - "…" in a line stands for anything in it, and a line that has nothing else for any number of lines;
//   - the widths of columns may differ, and the ends of lines, which are others on a terminal.
package tutorial

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Block is commands of a page.
type Block struct {
	// Again says that the commands only read, and may be run until they print what the page says.
	Again bool
	// Commands are lines for a shell.
	Commands string
	// Prints says that the page has Want, what the commands print, after them.
	Prints bool
	Want   string
}

var fence = regexp.MustCompile("(?ms)^```(sh|sh again|text)\n(.*?)^```$")

// Blocks returns the blocks of a page in their order. It is an error if an output has no commands before it.
func Blocks(page string) (all []Block, err error) {
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		if m[1] != "text" {
			all = append(all, Block{Again: m[1] == "sh again", Commands: m[2]})
			continue
		}
		if len(all) == 0 || all[len(all)-1].Prints {
			return nil, fmt.Errorf("output without commands:\n%s", m[2])
		}
		all[len(all)-1].Prints, all[len(all)-1].Want = true, m[2]
	}
	return all, nil
}

// Read returns the blocks of a file's part under a heading, such as "## Try it", without the next heading of its level or above.
func Read(file, heading string) ([]Block, error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	part, err := section(string(page), heading)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return Blocks(part)
}

// section returns the part of a page under a heading.
func section(page, heading string) (string, error) {
	_, rest, ok := strings.Cut("\n"+page, "\n"+heading+"\n")
	if !ok {
		return "", fmt.Errorf("the page has no heading %q", heading)
	}
	level := len(heading) - len(strings.TrimLeft(heading, "#"))
	var out strings.Builder
	fenced := false // a comment of a shell begins as a heading does
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if n := len(line) - len(strings.TrimLeft(line, "#")); !fenced && n > 0 && n <= level && strings.HasPrefix(line[n:], " ") {
			break
		}
		out.WriteString(line)
	}
	return out.String(), nil
}

// Matches reports whether an output is what a page says.
func Matches(got, want string) bool {
	var pattern strings.Builder
	for line := range strings.Lines(want) {
		words := strings.Fields(line)
		if len(words) == 1 && words[0] == "…" {
			pattern.WriteString(`(?:.*\n)*`)
			continue
		}
		for i, word := range words {
			words[i] = strings.ReplaceAll(regexp.QuoteMeta(word), "…", ".*")
		}
		pattern.WriteString(`[ \t]*` + strings.Join(words, `[ \t]+`) + `[ \t]*\n`)
	}
	return regexp.MustCompile("^" + pattern.String() + "$").MatchString(strings.ReplaceAll(got, "\r\n", "\n"))
}
