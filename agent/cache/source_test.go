package cache

import (
	"math"
	"strconv"
	"testing"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
)

func TestOfOneSourceTooManyItIsNotKnownWhatItGave(t *testing.T) {
	s := newSources()
	for i := len(s.names); i <= math.MaxUint16; i++ {
		if id := s.id(strconv.Itoa(i)); id != sourceID(i) || s.name(id) != strconv.Itoa(i) {
			t.Fatalf("source %d is %d, which is %q", i, id, s.name(id))
		}
	}
	if id := s.id("one too many"); id != history.Unknown || s.name(id) != "" {
		t.Errorf("it is %d, which is %q", id, s.name(id))
	}
	if s.id("7") != 7 || s.id(LocalSource) != history.Local || s.id("") != history.Unknown {
		t.Error("others are not what they were")
	}
}
