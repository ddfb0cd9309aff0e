package downstream

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// frame is an HTTP/2 frame of a stream (RFC 9113, section 4.1).
func frame(kind byte, stream uint32, payload []byte) []byte {
	length := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))[1:]
	return slices.Concat(length, []byte{kind, 0}, binary.BigEndian.AppendUint32(nil, stream), payload)
}

// goAway is the payload of a GOAWAY (RFC 9113, section 6.8).
func goAway(last, code uint32, debug string) []byte {
	return append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code), debug...)
}

// A GOAWAY is found wherever the writes are cut, and nothing else is taken for one.
func TestAGOAWAYIsFoundInAnyPieces(t *testing.T) {
	const data, settings, ping, enhanceYourCalm = 0, 4, 6, 11
	for name, tc := range map[string]struct {
		frame []byte
		want  bool
	}{
		"a GOAWAY":                               {frame(goAwayType, 0, goAway(1<<31-1, goAwayNoFlaw, "max_age")), true},
		"one without debug data":                 {frame(goAwayType, 0, goAway(7, goAwayNoFlaw, "")), true},
		"one with an error":                      {frame(goAwayType, 0, goAway(7, enhanceYourCalm, "")), false},
		"other frames only":                      {frame(ping, 0, bytes.Repeat([]byte{7}, 8)), false},
		"a body that looks like one":             {frame(data, 1, frame(goAwayType, 0, goAway(1, goAwayNoFlaw, ""))), false},
		"a frame of this type that is too short": {frame(goAwayType, 0, []byte{0, 0}), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := bytes.NewBuffer(slices.Concat(
				frame(settings, 0, nil), frame(data, 1, bytes.Repeat([]byte{7}, 16384)), tc.frame, frame(data, 3, bytes.Repeat([]byte{7}, 100)), frame(data, 1, nil),
			))
			random := rand.New(rand.NewPCG(1, 2))
			for _, longest := range []int{1, 2, 3, 9, 10, 17, 100, b.Len()} {
				var got frames
				found := 0
				for rest := b.Bytes(); len(rest) > 0; {
					n := min(1+random.IntN(longest), len(rest))
					if longest == b.Len() {
						n = longest
					}
					if got.goAway(rest[:n]) {
						found++
					}
					rest = rest[n:]
				}
				if (found == 1) != tc.want || found > 1 || got.skip != 0 || len(got.head) != 0 {
					t.Errorf("in pieces of %d bytes: found %d, left %d and %d bytes", longest, found, got.skip, len(got.head))
				}
			}
		})
	}
}
