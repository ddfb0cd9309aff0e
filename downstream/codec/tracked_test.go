package codec

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Of a large message it is told when the last that refers to its pieces lets go of them, of a small
// one at once; the bytes are the same as of one that is not tracked.
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
			want, err := New().Marshal(made(tc.message))
			if err != nil {
				t.Fatal(err)
			}
			told := 0
			got, err := New().Marshal(&Tracked{Message: made(tc.message), Written: func() { told++ }})
			if err != nil {
				t.Fatal(err)
			}
			if (told == 0) != tc.large {
				t.Errorf("told %d times while it was marshalled", told)
			}
			if !bytes.Equal(got.Materialize(), want.Materialize()) {
				t.Error("it is written otherwise than untracked")
			}
			// As gRPC does: one reference of the sender, one of the writer.
			got.Ref()
			got.Free()
			if (told == 0) != tc.large {
				t.Errorf("told %d times before it was written", told)
			}
			got.Free()
			if told != 1 {
				t.Errorf("told %d times, want once", told)
			}
		})
	}
}
