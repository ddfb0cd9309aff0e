package session

import (
	"maps"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// readings remembers what the bare entries of a SotW response were read as. A push of
// everything is mostly what the one before was, to the pointer, since what is held is
// shared (package upstream/codec): it need not be read, hashed and compared again.
type readings struct {
	of map[*anypb.Any]*reading
	// response counts the responses; found counts the entries of the last that are in it.
	response uint64
	found    int
}

// reading is what an entry was read as, and the last response that had it.
type reading struct {
	res      *xds.Resource
	response uint64
}

// begin begins a response of size entries.
func (rs *readings) begin(size int) {
	if rs.of == nil {
		rs.of = make(map[*anypb.Any]*reading, size)
	}
	rs.response++
	rs.found = 0
}

// find returns what an entry was read as in the response before, nil for one that was
// not in it. again: this response has it already.
func (rs *readings) find(entry *anypb.Any) (r *xds.Resource, again bool) {
	is := rs.of[entry]
	if is == nil {
		return nil, false
	}
	if is.response == rs.response {
		return is.res, true
	}
	is.response = rs.response
	rs.found++
	return is.res, false
}

// add remembers what an entry was read as, unless it is malformed.
func (rs *readings) add(entry *anypb.Any, r *xds.Resource, err error) {
	if err == nil {
		rs.of[entry] = &reading{r, rs.response}
		rs.found++
	}
}

// end forgets what the response did not have.
func (rs *readings) end() {
	if len(rs.of) > rs.found {
		maps.DeleteFunc(rs.of, func(_ *anypb.Any, is *reading) bool { return is.response != rs.response })
	}
}
