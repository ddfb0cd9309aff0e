package codec

import (
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// reader is a position in a message that is split into pieces. A copy of it keeps the position.
type reader struct {
	piece []byte          // the unread part of the current piece
	next  mem.BufferSlice // the pieces after it
	left  int             // bytes until the end of the message, which may be nested in another one
}

// fill moves to the next piece that is not empty if the current one has been read.
func (r *reader) fill() {
	for len(r.piece) == 0 && len(r.next) > 0 {
		r.piece, r.next = r.next[0].ReadOnlyData(), r.next[1:]
	}
}

// varint reads a varint; false if there is no valid one.
func (r *reader) varint() (uint64, bool) {
	var v uint64
	for shift := 0; shift < 64 && r.left > 0; shift += 7 {
		r.fill()
		b := r.piece[0]
		r.piece, r.left = r.piece[1:], r.left-1
		if shift == 63 && b > 1 {
			return 0, false // more than 64 bits
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, true
		}
	}
	return 0, false
}

// tag reads the number and the wire type of a field.
func (r *reader) tag() (protowire.Number, protowire.Type, bool) {
	v, ok := r.varint()
	if !ok {
		return 0, 0, false
	}
	num, typ := protowire.DecodeTag(v)
	return num, typ, num >= protowire.MinValidNumber
}

// message moves past a length-delimited field, and returns a reader of its content.
func (r *reader) message() (reader, bool) {
	n, ok := r.varint()
	if !ok || n > uint64(r.left) {
		return reader{}, false
	}
	inner := reader{piece: r.piece, next: r.next, left: int(n)}
	return inner, r.advance(int(n))
}

// skip moves past the value of a field; false for a malformed value, and for groups.
func (r *reader) skip(typ protowire.Type) bool {
	switch typ {
	case protowire.VarintType:
		_, ok := r.varint()
		return ok
	case protowire.Fixed32Type:
		return r.advance(4)
	case protowire.Fixed64Type:
		return r.advance(8)
	case protowire.BytesType:
		_, ok := r.message()
		return ok
	}
	return false
}

func (r *reader) advance(n int) bool {
	if n > r.left {
		return false
	}
	r.left -= n
	for n > 0 {
		r.fill()
		k := min(n, len(r.piece))
		r.piece, n = r.piece[k:], n-k
	}
	return true
}

// take returns the unread bytes of the current piece; none at the end.
func (r *reader) take() []byte {
	if r.left == 0 {
		return nil
	}
	r.fill()
	k := min(r.left, len(r.piece))
	piece := r.piece[:k]
	r.piece, r.left = r.piece[k:], r.left-k
	return piece
}

// appendTo appends the next n bytes to b.
func (r reader) appendTo(b []byte, n int) []byte {
	r.left = n
	for piece := r.take(); piece != nil; piece = r.take() {
		b = append(b, piece...)
	}
	return b
}

// equals reports whether the unread bytes of r equal s.
func equals[S string | []byte](r reader, s S) bool {
	if r.left != len(s) {
		return false
	}
	for piece := r.take(); piece != nil; piece = r.take() {
		if string(piece) != string(s[:len(piece)]) { // compared without a copy
			return false
		}
		s = s[len(piece):]
	}
	return true
}

// bytes returns the unread bytes: without a copy if they are in one piece, otherwise copied to
// scratch, which grows as needed.
func (r reader) bytes(scratch *[]byte) []byte {
	if r.fill(); len(r.piece) >= r.left {
		return r.piece[:r.left]
	}
	*scratch = r.appendTo((*scratch)[:0], r.left)
	return *scratch
}

// text returns the unread bytes as a string; false if it is not valid UTF-8.
func (r reader) text() (string, bool) {
	s := string(r.bytes(new([]byte)))
	return s, utf8.ValidString(s)
}

// first returns a reader of the first field, if that has number 1 and is length-delimited: it is
// the name in every type of resource (package xds). Otherwise the returned reader is empty.
func (r reader) first() reader {
	if num, typ, ok := r.tag(); !ok || num != 1 || typ != protowire.BytesType {
		return reader{}
	}
	inner, _ := r.message()
	return inner
}
