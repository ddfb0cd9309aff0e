package redact

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxDecodings bounds the combinations of escapes, one within another, that a text is decoded with.
const maxDecodings = 6

// gramSize is the number of consecutive bytes of a long value that must occur in a text to be hidden: a
// key may be wrapped, cut off, or shown in part. A shorter value is only hidden as a whole.
const gramSize = 12

// minPart is the least length in bytes of a part of a value that is hidden where it occurs alone: the
// password of "user:password", or one of several lines.
const minPart = 6

// search finds values in a text, in every form in which they may be written.
type search struct {
	text      string
	hidden    []bool // for each byte of the text
	decodings []decoding
	// isGuess reports for each decoding whether it assumes base64 or hexadecimal, as which plain words
	// can be decoded.
	isGuess []bool
	// gramPlaces has the last place of each sequence of gramSize bytes; next leads to the previous
	// place, -1 for none. filter is a Bloom filter of their first bytes, because most sequences of a
	// value occur nowhere.
	gramPlaces map[[gramSize]byte]int
	next       []int
	places     []gramPlace
	filter     [1 << 10]uint64 // by hash
}

// decoding is the text after one way of decoding: each byte with the part of the text that it stands
// for.
type decoding struct {
	b        []byte
	from, to []int32
}

// gramPlace is where a sequence of bytes begins.
type gramPlace struct{ decoding, offset int }

func newSearch(text string) *search {
	s := &search{text: text, hidden: make([]bool, len(text)), gramPlaces: make(map[[gramSize]byte]int)}
	plain := decoding{b: []byte(text)}
	for i := range len(text) {
		plain.from, plain.to = append(plain.from, int32(i)), append(plain.to, int32(i+1))
	}
	// A text that is passed on may be escaped several times.
	texts := []decoding{plain}
	for from := 0; from < len(texts) && len(texts) < maxDecodings; from++ {
		for _, decode := range []func(decoding) (decoding, bool){unescaped, percentDecoded} {
			if decoded, differs := decode(texts[from]); differs {
				texts = append(texts, decoded)
			}
		}
	}
	for _, r := range texts {
		s.decodings, s.isGuess = append(s.decodings, r), append(s.isGuess, false)
		for align := range 2 {
			s.decodings, s.isGuess = append(s.decodings, hexDecoded(r, align)), append(s.isGuess, true)
		}
		for align := range 4 {
			s.decodings, s.isGuess = append(s.decodings, base64Decoded(r, align)), append(s.isGuess, true)
		}
	}
	for v, r := range s.decodings {
		for i := range len(r.b) - gramSize + 1 {
			key := [gramSize]byte(r.b[i:])
			before, seen := s.gramPlaces[key]
			if !seen {
				before = -1
			}
			s.gramPlaces[key] = len(s.places)
			s.places, s.next = append(s.places, gramPlace{v, i}), append(s.next, before)
			h := gramHash(r.b[i:])
			s.filter[h/64] |= 1 << (h % 64)
		}
	}
	return s
}

// gramHash maps the first four bytes to a bit of search.filter.
func gramHash(b []byte) uint32 {
	return (uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24) * 2654435761 >> 16
}

// hide hides all occurrences of a value, and also of parts of a long value.
func (s *search) hide(value []byte) {
	if len(value) < gramSize {
		s.hideWhole(value, len(value) < 4)
		return
	}
	for i := range len(value) - gramSize + 1 {
		h := gramHash(value[i:])
		if s.filter[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		key := [gramSize]byte(value[i:])
		first, found := s.gramPlaces[key]
		if !found {
			continue
		}
		delete(s.gramPlaces, key) // each place is only hidden once
		for ; first >= 0; first = s.next[first] {
			p := s.places[first]
			s.markHidden(s.decodings[p.decoding], p.offset, gramSize)
		}
	}
	for part := range bytes.FieldsFuncSeq(value, func(r rune) bool { return strings.ContainsRune(" \t\r\n:=,;'\"{}()", r) }) {
		if len(part) >= minPart && len(part) < gramSize {
			s.hideWhole(part, true)
		}
	}
}

// hideWhole hides each occurrence of a short value; with alone, only where it is not a part of a word.
func (s *search) hideWhole(value []byte, alone bool) {
	if len(value) == 0 {
		return
	}
	for v, r := range s.decodings {
		if s.isGuess[v] && len(value) < 4 {
			continue // nearly any sentence has a word that decodes to it
		}
		for from := 0; ; {
			i := bytes.Index(r.b[from:], value)
			if i < 0 {
				break
			}
			start, end := from+i, from+i+len(value)
			if !alone || !(start > 0 && isWord(r.b[start-1]) && isWord(value[0]) || end < len(r.b) && isWord(r.b[end]) && isWord(value[len(value)-1])) {
				s.markHidden(r, start, len(value))
			}
			from = start + 1
		}
	}
}

// markHidden hides the part of the text that n bytes of a decoding stand for.
func (s *search) markHidden(r decoding, at, n int) {
	for i := r.from[at]; i < r.to[at+n-1]; i++ {
		s.hidden[i] = true
	}
}

// result returns the first n bytes of the text, with hidden parts replaced by Marker.
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

// add appends bytes that stand for a part of another decoding.
func (r *decoding) add(of decoding, from, to int, decoded ...byte) {
	for _, c := range decoded {
		r.b = append(r.b, c)
		r.from, r.to = append(r.from, of.from[from]), append(r.to, of.to[to-1])
	}
}

// unescaped decodes the escapes of C, of protobuf's text format, of Go and of JSON.
func unescaped(of decoding) (out decoding, differs bool) {
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

// escape decodes one escape and returns its length; 0 if there is none.
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

// number parses a number with a limit of digits.
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

// hexDigit returns the value of a hexadecimal digit, -1 for another character.
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

// percentDecoded decodes the escapes of URLs.
func percentDecoded(of decoding) (out decoding, differs bool) {
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

// hexDecoded decodes pairs of hexadecimal digits, which may be separated by one of " :-,". It skips
// align digits at the beginning of each sequence.
func hexDecoded(of decoding, align int) (out decoding) {
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
		out.add(of, i-1, i, 0) // separates the next sequence
	}
	return out
}

// base64Decoded decodes sequences of base64 characters, in either alphabet and broken into lines. It
// skips align characters at the beginning of each.
func base64Decoded(of decoding, align int) (out decoding) {
	for i := 0; i < len(of.b); {
		if _, ok := base64Digit(of.b[i]); !ok {
			i++
			continue
		}
		var group uint32
		var at []int // the offsets of the characters in group
		for skip := align; i < len(of.b); i++ {
			if isLineBreak(of.b[i]) {
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
		out.add(of, i-1, i, 0) // separates the next sequence
	}
	return out
}

// addGroup appends the bytes that up to four base64 characters stand for.
func (r *decoding) addGroup(of decoding, group uint32, at []int) {
	for i := range len(at) - 1 {
		r.add(of, at[i], at[i+1]+1, byte(group>>(16-8*i)))
	}
}
