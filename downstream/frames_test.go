package downstream

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/net/http2"
)

// A GOAWAY is found wherever the writes are cut, and nothing else is taken for one.
func TestAGOAWAYIsFoundInAnyPieces(t *testing.T) {
	for name, tc := range map[string]struct {
		write func(*http2.Framer) error
		want  bool
	}{
		"a GOAWAY":               {func(f *http2.Framer) error { return f.WriteGoAway(1<<31-1, http2.ErrCodeNo, []byte("max_age")) }, true},
		"one without debug data": {func(f *http2.Framer) error { return f.WriteGoAway(7, http2.ErrCodeNo, nil) }, true},
		"one with an error":      {func(f *http2.Framer) error { return f.WriteGoAway(7, http2.ErrCodeEnhanceYourCalm, nil) }, false},
		"other frames only":      {func(f *http2.Framer) error { return f.WritePing(false, [8]byte{7, 7, 7, 7, 7, 7, 7, 7}) }, false},
		"a body that looks like one": {func(f *http2.Framer) error {
			return f.WriteData(1, false, []byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0})
		}, false},
		"a frame of this type that is too short": {func(f *http2.Framer) error { return f.WriteRawFrame(goAwayType, 0, 0, []byte{0, 0}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			f := http2.NewFramer(&b, nil)
			f.AllowIllegalWrites = true
			steps := []func() error{
				func() error { return f.WriteSettings() },
				func() error { return f.WriteData(1, false, bytes.Repeat([]byte{7}, 16384)) },
				func() error { return tc.write(f) },
				func() error { return f.WriteData(3, true, bytes.Repeat([]byte{7}, 100)) },
				func() error { return f.WriteRawFrame(http2.FrameData, 0, 1, nil) },
			}
			for _, step := range steps {
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
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
