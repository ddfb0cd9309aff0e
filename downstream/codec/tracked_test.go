package codec

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Written is called when the last reference to the pieces of a large message is gone; for a small
// message it is never called. The bytes are those of an untracked message.
func TestWrittenIsCalledWhenATrackedMessageHasBeenWritten(t *testing.T) {
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
			calls := 0
			tracked := &Tracked{Message: made(tc.message), Written: func() { calls++ }}
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
			// gRPC has two references: that of the sender, and that of the writer.
			got.Ref()
			got.Free()
			if calls != 0 {
				t.Errorf("calls %d times before it was written", calls)
			}
			got.Free()
			want := 0
			if tc.large {
				want = 1
			}
			if calls != want {
				t.Errorf("calls %d times, want %d", calls, want)
			}
		})
	}
}
