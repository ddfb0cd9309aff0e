package codec

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Of a large message it is told when the last that refers to its pieces lets go of them, of a small
// one never; the bytes are the same as of one that is not tracked.
func TestATrackedMessageTellsWhenItHasBeenWritten(t *testing.T) {
	for _, tc := range []struct {
		name    string
		message proto.Message
		large   bool
	}{
		{"a small SotW response", xdstest.SotWResponse(50, 1000), false},
		{"a large one", xdstest.SotWResponse(100, 1000), true},
		{"one of a large body", xdstest.SotWResponse(1, 100_000), true},
		{"a small Delta response", xdstest.DeltaResponse(50, 1000), false},
		{"a large one, too", xdstest.DeltaResponse(100, 1000), true},
		{"what gRPC's own codec writes", unknown(xdstest.SotWResponse(100, 1000)), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plain, err := New().Marshal(made(tc.message))
			if err != nil {
				t.Fatal(err)
			}
			told := 0
			tracked := &Tracked{Message: made(tc.message), Written: func() { told++ }}
			got, err := New().Marshal(tracked)
			if err != nil {
				t.Fatal(err)
			}
			if tracked.Large != tc.large {
				t.Errorf("large: %t", tracked.Large)
			}
			if !bytes.Equal(got.Materialize(), plain.Materialize()) {
				t.Error("it is written otherwise than untracked")
			}
			// As gRPC does: one reference of the sender, one of the writer.
			got.Ref()
			got.Free()
			if told != 0 {
				t.Errorf("told %d times before it was written", told)
			}
			got.Free()
			want := 0
			if tc.large {
				want = 1
			}
			if told != want {
				t.Errorf("told %d times, want %d", told, want)
			}
		})
	}
}
