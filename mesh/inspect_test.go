package mesh

import (
	"fmt"
	"testing"
)

func TestSomeOf_NamesTheFirstOfMany(t *testing.T) {
	var nodes []string
	for i := range maxNamed + 2 {
		nodes = append(nodes, fmt.Sprintf("n%02d", i))
	}
	if got := someOf(nodes[:2]); got != "there are n00, n01" {
		t.Error(got)
	}
	if got := someOf(nodes); got[len(got)-len("n19 and 2 more"):] != "n19 and 2 more" {
		t.Error(got)
	}
}
