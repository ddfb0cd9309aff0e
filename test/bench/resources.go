package main

import (
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// bodySize is the size of a resource's body, in bytes.
const bodySize = 1024

// padField is a field of strings that fills bodies: alt_stat_name of a cluster, an
// unknown field elsewhere.
const padField = 28

// A set is the resources of one type, encoded as the control plane sends them. All
// entries are of one length, so that a change is a copy into place and a SotW push
// three pieces. A set may change once the messages made of it have arrived.
type set struct {
	typeURL string
	form    form
	size    int
	body    []byte // the entries of all, one after another
	entry   int    // the length of one
	marks   []int  // where an entry holds its marker: as its Delta version and at the end of its body
	version []uint64
	newest  uint64
}

// nameOf returns the name of a resource; all are of one length.
func nameOf(i int) string { return fmt.Sprintf("resource-%07d", i) }

// indexOf returns the resource of a name.
func (s *set) indexOf(name string) (int, bool) {
	if len(name) != len(nameOf(0)) {
		return 0, false
	}
	i, err := strconv.Atoi(name[len("resource-"):])
	return i, err == nil && i >= 0 && i < s.size
}

// newSet makes n resources of bodySize bytes, with markers from first on.
func newSet(typeURL string, f form, n int, first uint64) *set {
	s := &set{typeURL: typeURL, form: f, size: n, newest: first, version: make([]uint64, n)}
	for i := range n {
		entry, marks := encodeEntry(typeURL, f, nameOf(i), marker(first))
		if i == 0 {
			s.entry, s.marks = len(entry), marks
			s.body = make([]byte, 0, n*len(entry))
		}
		s.body = append(s.body, entry...)
		s.version[i] = first
	}
	return s
}

// encodeEntry encodes a resource as field 2 of a response, and says where its
// marker lies.
func encodeEntry(typeURL string, f form, name, mark string) (entry []byte, marks []int) {
	const tag = 2 // bytes that padField and the length of its content take each
	body := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
	pad := slices.Repeat([]byte("x"), bodySize-len(body)-2*tag-len(mark))
	body = protowire.AppendBytes(protowire.AppendTag(body, padField, protowire.BytesType), append(pad, mark...))
	packed := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), typeURL)
	packed = protowire.AppendBytes(protowire.AppendTag(packed, 2, protowire.BytesType), body)
	if f == sotw {
		entry = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), packed)
		return entry, []int{len(entry) - len(mark)}
	}
	wrapped := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), mark)
	inWrapped := len(wrapped) - len(mark)
	wrapped = protowire.AppendBytes(protowire.AppendTag(wrapped, 2, protowire.BytesType), packed)
	inBody := len(wrapped) - len(mark)
	wrapped = protowire.AppendString(protowire.AppendTag(wrapped, 3, protowire.BytesType), name)
	entry = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), wrapped)
	head := len(entry) - len(wrapped)
	return entry, []int{head + inWrapped, head + inBody}
}

// at returns the entry of a resource.
func (s *set) at(i int) []byte { return s.body[i*s.entry : (i+1)*s.entry : (i+1)*s.entry] }

// change gives a resource its next content and returns the marker of it.
func (s *set) change(i int) uint64 {
	s.newest++
	s.mark(s.at(i), s.newest)
	s.version[i] = s.newest
	return s.newest
}

// changeAll gives every resource its next content, in a new body, so that messages
// of the old one may still be on their way.
func (s *set) changeAll() uint64 {
	s.newest++
	s.body = slices.Clone(s.body)
	for i := range s.size {
		s.mark(s.at(i), s.newest)
		s.version[i] = s.newest
	}
	return s.newest
}

func (s *set) mark(entry []byte, n uint64) {
	mark := marker(n)
	for _, at := range s.marks {
		copy(entry[at:], mark)
	}
}

// all is a response with every resource, in one piece of memory.
func (s *set) all(nonce uint64) mem.BufferSlice { return s.response(nonce, s.body) }

// some is a response with some resources. Their entries are copied: they may
// change again at once.
func (s *set) some(nonce uint64, which ...int) mem.BufferSlice {
	b := make([]byte, 0, len(which)*s.entry)
	for _, i := range which {
		b = append(b, s.at(i)...)
	}
	return s.response(nonce, b)
}

// response puts entries between the other fields of a response.
func (s *set) response(nonce uint64, entries []byte) mem.BufferSlice {
	head := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), strconv.FormatUint(nonce, 10))
	tail := protowire.AppendString(protowire.AppendTag(nil, 4, protowire.BytesType), s.typeURL)
	tail = protowire.AppendString(protowire.AppendTag(tail, 5, protowire.BytesType), strconv.FormatUint(nonce, 10))
	return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(entries), mem.SliceBuffer(tail)}
}
