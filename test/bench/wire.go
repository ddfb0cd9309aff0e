package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// form is a form of xDS.
type form string

const (
	sotw  form = "sotw"
	delta form = "delta"
)

// markerLen is how many bytes the marker at the end of each body has: a number in
// hexadecimal that grows with every change.
const markerLen = 16

func marker(n uint64) string { return fmt.Sprintf("%016x", n) }

// request is what the control plane needs of a DiscoveryRequest or a
// DeltaDiscoveryRequest.
type request struct {
	typeURL      string
	nonce        string
	names        []string          // subscribed; in SotW all, in Delta more
	unsubscribed []string          // Delta
	held         map[string]string // Delta: initial_resource_versions
	version      string            // SotW
	rejected     bool
	reason       string
}

// The numbers of the fields, by form (discovery.proto).
var requestFields = map[form]struct{ version, names, typeURL, unsubscribe, held, nonce, detail protowire.Number }{
	sotw:  {version: 1, names: 3, typeURL: 4, nonce: 5, detail: 6},
	delta: {typeURL: 2, names: 3, unsubscribe: 4, held: 5, nonce: 6, detail: 7},
}

// nodeFields is the field of the node, by form.
var nodeFields = map[form]protowire.Number{sotw: 2, delta: 1}

// appendRequest appends the encoded request; node is the encoded node, or nil.
func appendRequest(b []byte, f form, r request, node []byte) []byte {
	n := requestFields[f]
	str := func(num protowire.Number, s string) {
		if s != "" {
			b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
		}
	}
	if node != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, nodeFields[f], protowire.BytesType), node)
	}
	if f == sotw {
		str(n.version, r.version)
	}
	for _, name := range r.names {
		str(n.names, name)
	}
	str(n.typeURL, r.typeURL)
	str(n.nonce, r.nonce)
	for name, version := range r.held {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), version)
		b = protowire.AppendBytes(protowire.AppendTag(b, n.held, protowire.BytesType), entry)
	}
	return b
}

// appendNode appends an encoded Node with an id and a cluster.
func appendNode(b []byte, id string) []byte {
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), id)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), id)
}

// eachField calls f with the fields of a message; content is nil where the field
// is not length-delimited.
func eachField(b []byte, f func(num protowire.Number, content []byte) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var content []byte
		if typ == protowire.BytesType {
			content, n = protowire.ConsumeBytes(b)
		} else {
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := f(num, content); err != nil {
			return err
		}
	}
	return nil
}

// scanRequest reads a request.
func scanRequest(b []byte, f form) (request, error) {
	var r request
	n := requestFields[f]
	err := eachField(b, func(num protowire.Number, content []byte) error {
		switch num {
		case n.typeURL:
			r.typeURL = string(content)
		case n.nonce:
			r.nonce = string(content)
		case n.names:
			r.names = append(r.names, string(content))
		case n.version:
			r.version = string(content)
		case n.unsubscribe:
			r.unsubscribed = append(r.unsubscribed, string(content))
		case n.held:
			if r.held == nil {
				r.held = make(map[string]string)
			}
			var name, version string
			err := eachField(content, func(num protowire.Number, content []byte) error {
				switch num {
				case 1:
					name = string(content)
				case 2:
					version = string(content)
				}
				return nil
			})
			r.held[name] = version
			return err
		case n.detail:
			r.rejected = true
			return eachField(content, func(num protowire.Number, content []byte) error {
				if num == 2 { // google.rpc.Status.message
					r.reason = string(content)
				}
				return nil
			})
		}
		return nil
	})
	return r, err
}

// response is what the client needs of a DiscoveryResponse or a
// DeltaDiscoveryResponse.
type response struct {
	typeURL   string
	nonce     string
	version   string
	resources int
	removed   int
	bytes     int    // of the message
	body      int    // of its resources
	marker    uint64 // the newest among the resources
}

// scanResponse reads a response where it lies. each, which may be nil, gets the
// name and version of every resource of a Delta response.
func scanResponse(msg mem.BufferSlice, f form, each func(name, version string)) (response, error) {
	s := scanner{r: msg.Reader(), end: msg.Len()}
	defer func() { _ = s.r.Close() }()
	r := response{bytes: s.end}
	s.each = each
	for s.r.Remaining() > 0 {
		num, n, err := s.field()
		if err != nil {
			return r, err
		}
		switch {
		case num == 1:
			r.version, err = s.text(n)
		case num == 2 && f == sotw:
			r.resources++
			r.body += n
			err = s.any(n, &r)
		case num == 2:
			r.resources++
			r.body += n
			err = s.resource(n, &r)
		case num == 4:
			r.typeURL, err = s.text(n)
		case num == 5:
			r.nonce, err = s.text(n)
		case num == 6 && f == delta:
			r.removed++
			err = s.skip(n)
		default:
			err = s.skip(n)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// scanner walks the buffers of a message.
type scanner struct {
	r    *mem.Reader
	end  int
	each func(name, version string)
	buf  [256]byte
}

func (s *scanner) at() int { return s.end - s.r.Remaining() }

// field reads a tag; what follows has n bytes.
func (s *scanner) field() (num protowire.Number, n int, err error) {
	tag, err := binary.ReadUvarint(s.r)
	if err != nil {
		return 0, 0, short(err)
	}
	num, typ := protowire.DecodeTag(tag)
	switch typ {
	case protowire.BytesType:
		length, err := binary.ReadUvarint(s.r)
		if err != nil {
			return 0, 0, short(err)
		}
		if length > uint64(s.r.Remaining()) {
			return 0, 0, io.ErrUnexpectedEOF
		}
		return num, int(length), nil
	case protowire.VarintType:
		_, err := binary.ReadUvarint(s.r)
		return -1, 0, short(err)
	case protowire.Fixed32Type:
		return -1, 4, nil
	case protowire.Fixed64Type:
		return -1, 8, nil
	}
	return 0, 0, fmt.Errorf("bench: field %d of wire type %d in a response", num, typ)
}

func short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (s *scanner) skip(n int) error {
	_, err := s.r.Discard(n)
	return err
}

func (s *scanner) text(n int) (string, error) {
	b := s.buf[:]
	if n > len(b) {
		b = make([]byte, n)
	}
	_, err := io.ReadFull(s.r, b[:n])
	return string(b[:n]), err
}

// resource reads the n bytes of a Delta resource.
func (s *scanner) resource(n int, r *response) error {
	var name, version string
	for stop := s.at() + n; s.at() < stop; {
		num, n, err := s.field()
		switch {
		case err != nil:
		case num == 2:
			err = s.any(n, r)
		case num == 1 && s.each != nil:
			version, err = s.text(n)
		case num == 3 && s.each != nil:
			name, err = s.text(n)
		default:
			err = s.skip(n)
		}
		if err != nil {
			return err
		}
	}
	if s.each != nil {
		s.each(name, version)
	}
	return nil
}

// any reads the n bytes of an Any: the marker at its body's end.
func (s *scanner) any(n int, r *response) error {
	for stop := s.at() + n; s.at() < stop; {
		num, n, err := s.field()
		if err != nil {
			return err
		}
		if num != 2 || n < markerLen {
			if err := s.skip(n); err != nil {
				return err
			}
			continue
		}
		if err := s.skip(n - markerLen); err != nil {
			return err
		}
		if _, err := io.ReadFull(s.r, s.buf[:markerLen]); err != nil {
			return err
		}
		m, err := parseHex(s.buf[:markerLen])
		if err != nil {
			return err
		}
		r.marker = max(r.marker, m)
	}
	return nil
}

// parseHex is strconv.ParseUint without the copy.
func parseHex(b []byte) (uint64, error) {
	var v uint64
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, fmt.Errorf("bench: a body ends with %s, not with a marker", strconv.Quote(string(b)))
		}
	}
	return v, nil
}
