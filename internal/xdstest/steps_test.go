package xdstest_test

import (
	"slices"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestStepsArePairsOfBytesAndEndAtTheLimit(t *testing.T) {
	for _, tc := range []struct {
		name, input string
		most        int
		want        string
	}{
		{"nothing", "", 3, ""},
		{"half a pair", "a", 3, ""},
		{"all pairs", "a1b2", 3, "a1b2"},
		{"a last byte without a partner", "a1b2c", 3, "a1b2"},
		{"as many as may be", "a1b2c3", 3, "a1b2c3"},
		{"more than may be", "a1b2c3d4", 3, "a1b2c3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			steps := xdstest.Steps([]byte(tc.input), tc.most)
			for range 2 { // nothing is used up
				var got []byte
				for op, arg := range steps {
					got = append(got, op, arg)
				}
				if !slices.Equal(got, []byte(tc.want)) {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			}
		})
	}
}

func TestStepsEndWhereTheLoopDoes(t *testing.T) {
	n := 0
	for op := range xdstest.Steps([]byte("a1b2c3"), 3) {
		if n++; op == 'b' {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d steps, want 2", n)
	}
}
