package session

import (
	"maps"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// readings caches the resources that the bare entries of the last SotW response were read as. A
// push of everything has mostly the same entries as the previous push, at the same addresses,
// because package upstream/codec shares entries that are cached. Those need not be read, hashed and
// compared again.
type readings struct {
	of map[*anypb.Any]*reading
	// response counts the responses; found counts the entries of this response that are in of.
	response uint64
	found    int
}

// reading is the resource that an entry was read as, and the number of the last response that
// contained the entry.
type reading struct {
	res      *xds.Resource
	response uint64
}

// begin starts a response of size entries.
func (rs *readings) begin(size int) {
	if rs.of == nil {
		rs.of = make(map[*anypb.Any]*reading, size)
	}
	rs.response++
	rs.found = 0
}

// find returns the resource that an entry was read as in the previous response; nil if the entry
// was not in it. again is set if the entry has occurred in this response already.
func (rs *readings) find(entry *anypb.Any) (r *xds.Resource, again bool) {
	known := rs.of[entry]
	if known == nil {
		return nil, false
	}
	if known.response == rs.response {
		return known.res, true
	}
	known.response = rs.response
	rs.found++
	return known.res, false
}

// add remembers the resource that an entry was read as, unless the entry is malformed.
func (rs *readings) add(entry *anypb.Any, r *xds.Resource, err error) {
	if err == nil {
		rs.of[entry] = &reading{r, rs.response}
		rs.found++
	}
}

// end forgets the entries that are not in this response.
func (rs *readings) end() {
	if len(rs.of) > rs.found {
		maps.DeleteFunc(rs.of, func(_ *anypb.Any, is *reading) bool { return is.response != rs.response })
	}
}
