package redact

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxReadings bounds in how many ways of escaping, one in another, a text is read.
const maxReadings = 6

// gram is how many bytes of a long value must be in a text, one after the other, to be hidden: a
// key may be wrapped, cut off, or shown in part. A shorter value is hidden as a whole only.
const gram = 12

// wholeWord is how long the parts of a value must be, in bytes, that are hidden where they stand
// alone: the password of "user:password", or one line of several.
const wholeWord = 6

// search finds values in a text, in whatever form they are written.
type search struct {
	text   string
	hidden []bool // by byte of the text
	views  []reading
	// guesses has, for each of views, whether it is base64 or hexadecimal, as which words can be read.
	guesses []bool
	// grams are the places of all sequences of gram bytes, the newest of each; next leads to
	// the one before, -1 for none. may has a bit for the first bytes of each, since most
	// sequences of a value are nowhere.
	grams map[[gram]byte]int
	next  []int
	at    []place
	may   [1 << 10]uint64 // by hash
}

// reading is the text, decoded in one way: each byte with the part of the text that it stands for.
type reading struct {
	b        []byte
	from, to []int32
}

// place is where a sequence begins.
type place struct{ reading, at int }

func newSearch(text string) *search {
	s := &search{text: text, hidden: make([]bool, len(text)), grams: make(map[[gram]byte]int)}
	plain := reading{b: []byte(text)}
	for i := range len(text) {
		plain.from, plain.to = append(plain.from, int32(i)), append(plain.to, int32(i+1))
	}
	// What is escaped may be escaped again by whoever passes it on.
	texts := []reading{plain}
	for from := 0; from < len(texts) && len(texts) < maxReadings; from++ {
		for _, decode := range []func(reading) (reading, bool){unescaped, percentDecoded} {
			if decoded, differs := decode(texts[from]); differs {
				texts = append(texts, decoded)
			}
		}
	}
	for _, r := range texts {
		s.views, s.guesses = append(s.views, r), append(s.guesses, false)
		for align := range 2 {
			s.views, s.guesses = append(s.views, hexDecoded(r, align)), append(s.guesses, true)
		}
		for align := range 4 {
			s.views, s.guesses = append(s.views, base64Decoded(r, align)), append(s.guesses, true)
		}
	}
	for v, r := range s.views {
		for i := range len(r.b) - gram + 1 {
			key := [gram]byte(r.b[i:])
			before, seen := s.grams[key]
			if !seen {
				before = -1
			}
			s.grams[key] = len(s.at)
			s.at, s.next = append(s.at, place{v, i}), append(s.next, before)
			h := hash(r.b[i:])
			s.may[h/64] |= 1 << (h % 64)
		}
	}
	return s
}

// hash spreads the first four bytes over the bits of search.may.
func hash(b []byte) uint32 {
	return (uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24) * 2654435761 >> 16
}

// hide hides a value wherever it is in the text, and a long one also in part.
func (s *search) hide(value []byte) {
	if len(value) < gram {
		s.hideWhole(value, len(value) < 4)
		return
	}
	for i := range len(value) - gram + 1 {
		h := hash(value[i:])
		if s.may[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		key := [gram]byte(value[i:])
		first, found := s.grams[key]
		if !found {
			continue
		}
		delete(s.grams, key) // each place is hidden once
		for ; first >= 0; first = s.next[first] {
			p := s.at[first]
			s.mark(s.views[p.reading], p.at, gram)
		}
	}
	for part := range bytes.FieldsFuncSeq(value, func(r rune) bool { return strings.ContainsRune(" \t\r\n:=,;'\"{}()", r) }) {
		if len(part) >= wholeWord && len(part) < gram {
			s.hideWhole(part, true)
		}
	}
}

// hideWhole hides each occurrence of a short value; alone says that it must be no part of a word.
func (s *search) hideWhole(value []byte, alone bool) {
	if len(value) == 0 {
		return
	}
	for v, r := range s.views {
		if s.guesses[v] && len(value) < 4 {
			continue // a word of nearly any sentence would be read as it
		}
		for from := 0; ; {
			i := bytes.Index(r.b[from:], value)
			if i < 0 {
				break
			}
			start, end := from+i, from+i+len(value)
			if !alone || !(start > 0 && isWord(r.b[start-1]) && isWord(value[0]) || end < len(r.b) && isWord(r.b[end]) && isWord(value[len(value)-1])) {
				s.mark(r, start, len(value))
			}
			from = start + 1
		}
	}
}

// mark hides the part of the text that n bytes of a reading stand for, with what is between them.
func (s *search) mark(r reading, at, n int) {
	for i := r.from[at]; i < r.to[at+n-1]; i++ {
		s.hidden[i] = true
	}
}

// result returns the first bytes of the text, with Marker in the place of what is hidden.
func (s *search) result(n int) string {
	if !slices.Contains(s.hidden[:n], true) {
		return s.text[:n]
	}
	var out strings.Builder
	for i := 0; i < n; {
		if !s.hidden[i] {
			out.WriteByte(s.text[i])
			i++
			continue
		}
		out.WriteString(Marker)
		for i < n && s.hidden[i] {
			i++
		}
	}
	return out.String()
}

// add appends bytes that stand for a part of another reading.
func (r *reading) add(of reading, from, to int, decoded ...byte) {
	for _, c := range decoded {
		r.b = append(r.b, c)
		r.from, r.to = append(r.from, of.from[from]), append(r.to, of.to[to-1])
	}
}

// unescaped reads the escapes of C, of protobuf's text format, of Go and of JSON.
func unescaped(of reading) (out reading, differs bool) {
	for i := 0; i < len(of.b); {
		decoded, n := escape(of.b[i:])
		if n == 0 {
			out.add(of, i, i+1, of.b[i])
			i++
			continue
		}
		out.add(of, i, i+n, decoded...)
		i, differs = i+n, true
	}
	return out, differs
}

// escape reads one escape, and returns how long it is; 0 if there is none.
func escape(b []byte) (decoded []byte, n int) {
	if len(b) < 2 || b[0] != '\\' {
		return nil, 0
	}
	c := b[1]
	if i := strings.IndexByte("abfnrtv", c); i >= 0 {
		return []byte{"\a\b\f\n\r\t\v"[i]}, 2
	}
	switch {
	case c >= '0' && c <= '7':
		value, digits := number(b[1:], 8, 3)
		return []byte{byte(value)}, 1 + digits
	case c == 'x', c == 'X':
		if value, digits := number(b[2:], 16, 2); digits > 0 {
			return []byte{byte(value)}, 2 + digits
		}
	case c == 'u', c == 'U':
		want := 4
		if c == 'U' {
			want = 8
		}
		if value, digits := number(b[2:], 16, want); digits == want {
			return utf8.AppendRune(nil, rune(value)), 2 + digits
		}
	case strings.IndexByte(`\"'/?`, c) >= 0:
		return []byte{c}, 2
	}
	return nil, 0
}

// number reads a number of at most so many digits.
func number(b []byte, base, most int) (value uint32, digits int) {
	for digits < min(len(b), most) {
		digit := hexDigit(b[digits])
		if digit < 0 || digit >= base {
			break
		}
		value = value*uint32(base) + uint32(digit)
		digits++
	}
	return value, digits
}

// hexDigit returns the value of a digit, -1 for none.
func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// percentDecoded reads the escapes of URLs.
func percentDecoded(of reading) (out reading, differs bool) {
	for i := 0; i < len(of.b); {
		if of.b[i] == '%' && i+2 < len(of.b) {
			if value, digits := number(of.b[i+1:], 16, 2); digits == 2 {
				out.add(of, i, i+3, byte(value))
				i, differs = i+3, true
				continue
			}
		}
		out.add(of, i, i+1, of.b[i])
		i++
	}
	return out, differs
}

// hexDecoded reads pairs of hexadecimal digits, between which there may be one of " :-,": all of
// the text, but for align digits at the beginning of each sequence.
func hexDecoded(of reading, align int) (out reading) {
	for i := 0; i < len(of.b); {
		if hexDigit(of.b[i]) < 0 {
			i++
			continue
		}
		for i += align; i+1 < len(of.b) && hexDigit(of.b[i]) >= 0 && hexDigit(of.b[i+1]) >= 0; {
			out.add(of, i, i+2, byte(hexDigit(of.b[i])<<4|hexDigit(of.b[i+1])))
			if i += 2; i < len(of.b) && strings.IndexByte(" :-,", of.b[i]) >= 0 {
				i++
			}
		}
		for i < len(of.b) && hexDigit(of.b[i]) >= 0 {
			i++
		}
		out.add(of, i-1, i, 0) // what comes next is not connected
	}
	return out
}

// base64Decoded reads sequences of characters of base64, in either alphabet and broken into lines,
// but for align characters at the beginning of each.
func base64Decoded(of reading, align int) (out reading) {
	for i := 0; i < len(of.b); {
		if _, ok := base64Digit(of.b[i]); !ok {
			i++
			continue
		}
		var group uint32
		var at []int // of the characters in group
		for skip := align; i < len(of.b); i++ {
			if isBreak(of.b[i]) {
				continue
			}
			digit, ok := base64Digit(of.b[i])
			if !ok {
				break
			}
			if skip > 0 {
				skip--
				continue
			}
			group = group<<6 | digit
			if at = append(at, i); len(at) == 4 {
				out.addGroup(of, group, at)
				group, at = 0, at[:0]
			}
		}
		out.addGroup(of, group<<(6*(4-len(at))), at)
		out.add(of, i-1, i, 0) // what comes next is not connected
	}
	return out
}

// addGroup appends the bytes that up to four characters of base64 stand for.
func (r *reading) addGroup(of reading, group uint32, at []int) {
	for i := range len(at) - 1 {
		r.add(of, at[i], at[i+1]+1, byte(group>>(16-8*i)))
	}
}
