package nearest

import (
	"strings"
	"testing"
)

func TestTheNearestNameIsSuggested(t *testing.T) {
	known := []string{"upstream", "upstream-ca", "socket", "health"}
	for given, want := range map[string]string{
		"upstrem": "upstream", "upstream_ca": "upstream-ca", "sokcet": "socket", "upstream": "upstream",
		"x": "", "zebra": "", "": "",
	} {
		if got := Name(given, known); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}

func TestNothingIsNearALongText(t *testing.T) {
	long := strings.Repeat("a", maxName+1)
	if got := Name(long, []string{long}); got != "" {
		t.Error("a long text is compared")
	}
}
