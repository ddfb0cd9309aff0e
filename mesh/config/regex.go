package config

import (
	"cmp"
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxRegex bounds the length of a regular expression in bytes, as Istio does.
const maxRegex = 1024

// maxRegexProgram bounds the instructions of a regular expression, as the bootstrap of Istio and of holdfast do for Envoy (protocol.md V15).
const maxRegexProgram = 32768

// regex checks a regular expression of RE2 that Envoy applies to what is in requests.
func (k *checker) regex(at *path, text string) {
	if problem := regexProblem(text); problem != "" {
		k.errorf(at, "%s", problem)
	}
}

// regexProblem returns why Envoy does not take a regular expression; "" if it does. Envoy 1.36 reads UTF-8 and 1.40 bytes (Latin-1): one
// that they would read as something that is none in either of them is none here. Package regexp/syntax has names of classes that RE2 does
// not have.
func regexProblem(text string) string {
	switch {
	case text == "":
		return "must not be empty"
	case len(text) > maxRegex:
		return fmt.Sprintf("must be at most %d bytes long", maxRegex)
	}
	if problem := cmp.Or(classNameProblem(text), byteProblem(text)); problem != "" {
		return "is no RE2 regular expression: " + problem
	}
	size := 0
	for _, read := range []struct {
		text string
		cost func([]rune) int
	}{{text, utf8Cost}, {latin1(text), byteCost}} {
		n, err := regexSize(read.text, read.cost)
		if err != nil {
			return "is no RE2 regular expression: " + strings.TrimPrefix(err.Error(), "error parsing regexp: ")
		}
		size = max(size, n)
	}
	if size > maxRegexProgram {
		return fmt.Sprintf("is too large for Envoy: its repetitions make a program of %d instructions, and at most %d are allowed", size, maxRegexProgram)
	}
	return ""
}

// latin1 returns a text with each of its bytes for a character.
func latin1(text string) string {
	runes := make([]rune, len(text))
	for i, b := range []byte(text) {
		runes[i] = rune(b)
	}
	return string(runes)
}

// escapes calls each with what follows a backslash in a regular expression, but for what is quoted, until it returns a problem.
func escapes(text string, each func(rest string) (problem string)) string {
	for at := 0; at < len(text); at++ {
		if text[at] != '\\' || at+1 == len(text) {
			continue
		}
		at++
		if text[at] == 'Q' {
			end := strings.Index(text[at:], `\E`)
			if end < 0 {
				return ""
			}
			at += end + 1
		} else if problem := each(text[at:]); problem != "" {
			return problem
		}
	}
	return ""
}

// classNameProblem returns which class of Unicode a regular expression names by another name than RE2's; "" for none.
func classNameProblem(text string) string {
	return escapes(text, func(rest string) string {
		if rest[0] != 'p' && rest[0] != 'P' || !strings.HasPrefix(rest[1:], "{") {
			return "" // a letter is known to both
		}
		name, _, closed := strings.Cut(rest[2:], "}")
		if !closed || isRE2Class(strings.TrimPrefix(name, "^")) {
			return ""
		}
		return fmt.Sprintf(`invalid character class range: \%c{%s}`, rest[0], name)
	})
}

// byteProblem returns which character a regular expression has by its number that is no byte; "" for none.
func byteProblem(text string) string {
	return escapes(text, func(rest string) string {
		number, braced := strings.CutPrefix(rest, "x{")
		number, _, closed := strings.Cut(number, "}")
		if !braced || !closed || len(strings.TrimLeft(number, "0")) <= 2 {
			return ""
		}
		return fmt.Sprintf(`invalid escape sequence: \x{%s}: Envoy compares bytes, which are at most \x{FF}`, number)
	})
}

// isRE2Class reports whether RE2 has a class of Unicode with a name. It does not have the aliases of Go, and "Cn" and "LC".
func isRE2Class(name string) bool {
	if name == "Any" {
		return true
	}
	_, category := unicode.Categories[name]
	_, script := unicode.Scripts[name]
	return script || category && name != "Cn" && name != "LC"
}

// regexSize returns the number of instructions of a regular expression, where classes and characters have a cost.
func regexSize(text string, cost func([]rune) int) (int, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, err
	}
	size := 0
	known := make(map[*rune]int) // a repetition has the same class many times
	for i := range program.Inst {
		switch inst := &program.Inst[i]; inst.Op {
		case syntax.InstRune, syntax.InstRune1:
			if len(inst.Rune) == 0 {
				size++
				continue
			}
			of, ok := known[&inst.Rune[0]]
			if !ok {
				of = cost(inst.Rune)
				known[&inst.Rune[0]] = of
			}
			size += max(1, of)
		case syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			size += cost([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
		default:
			size++
		}
	}
	return size, nil
}

// byteCost returns how many ranges of bytes a class is, given as ranges, or as a single character.
func byteCost(class []rune) (n int) {
	for i := 0; i+1 < len(class); i += 2 {
		if class[i] <= 0xff {
			n++
		}
	}
	return n
}

// utf8Cost returns how many instructions a class is in UTF-8, where RE2 shares those at the end.
func utf8Cost(class []rune) int {
	if len(class) == 1 {
		return utf8.RuneLen(class[0])
	}
	type step struct {
		low, high byte
		next      int
	}
	steps := make(map[step]int)
	add := func(low, high string) {
		next := 0
		for i := len(low) - 1; i >= 0; i-- {
			s := step{low[i], high[i], next}
			if steps[s] == 0 {
				steps[s] = len(steps) + 1
			}
			next = steps[s]
		}
	}
	for i := 0; i+1 < len(class); i += 2 {
		low, high := class[i], class[i+1]
		if low <= utf8.RuneSelf && high == unicode.MaxRune { // RE2 has a short form for all that is not ASCII
			if low < utf8.RuneSelf {
				add(string(low), string(rune(utf8.RuneSelf-1)))
			}
			add("\xc2\x80", "\xdf\xbf")
			add("\xe0\x80\x80", "\xef\xbf\xbf")
			add("\xf0\x80\x80\x80", "\xf4\xbf\xbf\xbf")
			continue
		}
		utf8Ranges(low, high, add)
	}
	return len(steps)
}

// utf8Ranges calls add with ranges of sequences of bytes of one length, of which each byte may be any of its range.
func utf8Ranges(low, high rune, add func(low, high string)) {
	for _, limit := range []rune{0x7f, 0x7ff, 0xffff} {
		if low <= limit && limit < high {
			utf8Ranges(low, limit, add)
			utf8Ranges(limit+1, high, add)
			return
		}
	}
	for shift := 6; shift <= 18; shift += 6 {
		mask := rune(1)<<shift - 1
		if low&^mask == high&^mask || high < utf8.RuneSelf {
			break
		}
		if low&mask != 0 {
			utf8Ranges(low, low|mask, add)
			utf8Ranges((low|mask)+1, high, add)
			return
		}
		if high&mask != mask {
			utf8Ranges(low, high&^mask-1, add)
			utf8Ranges(high&^mask, high, add)
			return
		}
	}
	add(encoded(low), encoded(high))
}

// encoded returns a character in UTF-8, also one of those that are not valid there, which RE2 does not leave out of a range.
func encoded(r rune) string {
	if r < 0xd800 || r > 0xdfff {
		return string(r)
	}
	return string([]byte{0xe0 | byte(r>>12), 0x80 | byte(r>>6)&0x3f, 0x80 | byte(r)&0x3f})
}
