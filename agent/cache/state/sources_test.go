package state

import (
	"math"
	"strconv"
	"testing"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
)

func TestOfOneSourceTooManyItIsNotKnownWhatItGave(t *testing.T) {
	s := newSources()
	for i := len(s.names); i <= math.MaxUint16; i++ {
		if id := s.ID(strconv.Itoa(i)); id != history.Source(i) || s.Name(id) != strconv.Itoa(i) {
			t.Fatalf("source %d is %d, which is %q", i, id, s.Name(id))
		}
	}
	if id := s.ID("one too many"); id != history.Unknown || s.Name(id) != "" {
		t.Errorf("it is %d, which is %q", id, s.Name(id))
	}
	if s.ID("7") != 7 || s.ID(LocalSource) != history.Local || s.ID("") != history.Unknown {
		t.Error("others are not what they were")
	}
}
