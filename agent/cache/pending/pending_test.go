package pending

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// log collects the answers of updates, in the order in which they are called.
type log []string

func (l *log) answer(name string) func(error) {
	return func(nack error) { *l = append(*l, fmt.Sprintf("%s: %v", name, nack)) }
}

func call(due []func()) {
	for _, f := range due {
		f()
	}
}

func (l *log) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(*l, want) {
		t.Fatalf("got %q, want %q", *l, want)
	}
	*l = nil
}

// design.md I6.
func TestAnUpdateIsACKedWhenEveryClientHasComePastIt(t *testing.T) {
	var l log
	var u Updates[string]
	call(u.Add(1, l.answer("first"), []string{"a", "b"}))
	call(u.Add(2, l.answer("second"), []string{"a"}))
	call(u.Seen("a", 1))
	l.want(t)
	call(u.Seen("b", 7))
	l.want(t, "first: <nil>")
	call(u.Seen("a", 1))
	l.want(t)
	call(u.Seen("a", 2))
	l.want(t, "second: <nil>")
}

// design.md I6: updates before the one that is NACKed were superseded.
func TestANACKAnswersTheNewestUpdateThatWaitsForTheClient(t *testing.T) {
	var l log
	var u Updates[string]
	no := errors.New("no")
	call(u.Add(1, l.answer("first"), []string{"a", "b"}))
	call(u.Add(2, l.answer("second"), []string{"a"}))
	call(u.Add(3, l.answer("of b"), []string{"b"}))
	call(u.Add(4, l.answer("later"), []string{"a"}))
	call(u.Nack("a", 3, no))
	l.want(t, "second: no")
	call(u.Nack("c", 9, no))
	l.want(t)
	call(u.Seen("a", 3))
	call(u.Seen("b", 3))
	l.want(t, "first: <nil>", "of b: <nil>")
	if got := u.Newest(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the newest waits for %v", got)
	}
}

func TestAClientThatNeverAnswersIsWaitedForABoundedNumberOfTimes(t *testing.T) {
	var l log
	var u Updates[string]
	for revision := range uint64(maxUpdates) {
		call(u.Add(revision+1, l.answer(fmt.Sprint(revision+1)), []string{"a"}))
	}
	l.want(t)
	call(u.Add(maxUpdates+1, l.answer("one more"), []string{"a"}))
	l.want(t, "1: <nil>")
	if got := len(u.Seen("a", maxUpdates+1)); got != maxUpdates {
		t.Errorf("%d updates waited", got)
	}
	if u.Newest() != nil {
		t.Error("something still waits")
	}
}

// design.md I6: the control plane learns what a client says that came after the ACK, once, and only if nothing newer
// has come.
func TestAClientThatComesLaterNACKsTheNewestUpdateThatConcernedNobody(t *testing.T) {
	var l log
	var u Updates[string]
	no := errors.New("no")
	call(u.Add(1, l.answer("first"), nil))
	call(u.Add(2, l.answer("second"), nil))
	l.want(t, "first: <nil>", "second: <nil>")
	call(u.Nack("a", 2, no))
	l.want(t, "second: no")
	call(u.Nack("b", 2, no))
	l.want(t)
	call(u.Add(3, l.answer("third"), nil))
	call(u.Add(4, l.answer("fourth"), []string{"a"}))
	l.want(t, "third: <nil>")
	call(u.Nack("b", 4, no))
	l.want(t)
	call(u.Seen("a", 4))
	l.want(t, "fourth: <nil>")
}
