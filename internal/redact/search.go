package redact

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxDecodings bounds the combinations of escapes, one within another, that a text is decoded with.
const maxDecodings = 6

// gramSize is the number of consecutive bytes of a long value that must occur in a text to be hidden: a key may
// be wrapped, cut off, or shown in part. A shorter value is only hidden as a whole.
const gramSize = 12

// minPart is the least length in bytes of a part of a value that is hidden where it occurs alone, such as the
// password of "user:password".
const minPart = 6

// search finds values in a text, in every form in which they may be written.
type search struct {
	text      string
	hidden    []bool // for each byte of the text
	decodings []decoding
	// gramPlaces has the index in places of the last place of each sequence of gramSize bytes, 0 for none.
	// filter is a Bloom filter of their first bytes, because most sequences of a value occur nowhere.
	gramPlaces map[[gramSize]byte]int
	places     []gramPlace
	filter     [1 << 10]uint64 // by hash
}

// decoding is a decoded text, each byte with the part of the text that it stands for.
type decoding struct {
	b        []byte
	from, to []int32
	// isGuess is set if the decoding assumes base64 or hexadecimal, as which plain words can be decoded.
	isGuess bool
}

// gramPlace is where a sequence of bytes begins; previous is the index of another place of it.
type gramPlace struct{ decoding, offset, previous int }

func newSearch(text string) *search {
	s := &search{
		text: text, hidden: make([]bool, len(text)),
		gramPlaces: make(map[[gramSize]byte]int), places: make([]gramPlace, 1),
	}
	plain := decoding{b: []byte(text)}
	for i := range len(text) {
		plain.from, plain.to = append(plain.from, int32(i)), append(plain.to, int32(i+1))
	}
	// A text that is passed on may be escaped several times.
	texts := []decoding{plain}
	for from := 0; from < len(texts) && len(texts) < maxDecodings; from++ {
		for _, escape := range []func([]byte) ([]byte, int){backslashEscape, percentEscape} {
			if decoded, differs := unescaped(texts[from], escape); differs {
				texts = append(texts, decoded)
			}
		}
	}
	for _, r := range texts {
		s.decodings = append(s.decodings, r)
		for align := range 2 {
			s.decodings = append(s.decodings, hexDecoded(r, align))
		}
		for align := range 4 {
			s.decodings = append(s.decodings, base64Decoded(r, align))
		}
	}
	for v, r := range s.decodings {
		for i := range len(r.b) - gramSize + 1 {
			key := [gramSize]byte(r.b[i:])
			s.places = append(s.places, gramPlace{v, i, s.gramPlaces[key]})
			s.gramPlaces[key] = len(s.places) - 1
			h := gramHash(r.b[i:])
			s.filter[h/64] |= 1 << (h % 64)
		}
	}
	return s
}

func gramHash(b []byte) uint32 {
	return binary.LittleEndian.Uint32(b) * 2654435761 >> 16
}

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
		for at := s.gramPlaces[key]; at > 0; at = s.places[at].previous {
			p := s.places[at]
			s.markHidden(s.decodings[p.decoding], p.offset, gramSize)
		}
		delete(s.gramPlaces, key) // each place is only hidden once
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
	for _, r := range s.decodings {
		if r.isGuess && len(value) < 4 {
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

func (s *search) markHidden(r decoding, at, n int) {
	for i := r.from[at]; i < r.to[at+n-1]; i++ {
		s.hidden[i] = true
	}
}

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

func (r *decoding) add(of decoding, from, to int, decoded ...byte) {
	for _, c := range decoded {
		r.b = append(r.b, c)
		r.from, r.to = append(r.from, of.from[from]), append(r.to, of.to[to-1])
	}
}

func unescaped(of decoding, escape func([]byte) (decoded []byte, n int)) (out decoding, differs bool) {
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

// backslashEscape decodes one escape of C, protobuf's text format, Go or JSON. Its length n is 0 for none.
func backslashEscape(b []byte) (decoded []byte, n int) {
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

// percentEscape is backslashEscape for the escapes of URLs.
func percentEscape(b []byte) (decoded []byte, n int) {
	if len(b) > 2 && b[0] == '%' {
		if value, digits := number(b[1:], 16, 2); digits == 2 {
			return []byte{byte(value)}, 3
		}
	}
	return nil, 0
}

// hexDigit returns the value of a hexadecimal digit, -1 for another character.
func hexDigit(c byte) int {
	digit := strings.IndexByte("0123456789abcdefABCDEF", c)
	if digit > 15 {
		digit -= 6
	}
	return digit
}

// hexDecoded decodes pairs of hexadecimal digits, perhaps separated by one of " :-,", except the first align
// digits of each sequence.
func hexDecoded(of decoding, align int) decoding {
	out := decoding{isGuess: true}
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

// base64Decoded decodes base64, in either alphabet and broken into lines, except the first align characters
// of each sequence.
func base64Decoded(of decoding, align int) decoding {
	out := decoding{isGuess: true}
	for i := 0; i < len(of.b); {
		if base64Digit(of.b[i]) < 0 {
			i++
			continue
		}
		var at []int // the offsets of the characters
		var digits []byte
		for ; i < len(of.b) && (isLineBreak(of.b[i]) || base64Digit(of.b[i]) >= 0); i++ {
			if !isLineBreak(of.b[i]) {
				at, digits = append(at, i), append(digits, of.b[i])
			}
		}
		at, digits = at[min(align, len(at)):], digits[min(align, len(at)):]
		for k, c := range decodeBase64(digits) {
			first := k/3*4 + k%3 // three bytes are four characters
			out.add(of, at[first], at[first+1]+1, c)
		}
		out.add(of, i-1, i, 0) // separates the next sequence
	}
	return out
}
