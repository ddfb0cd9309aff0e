package etcd

import "testing"

func TestAHistoryContinuesWhatItNames(t *testing.T) {
	var h history
	if h.last() != (mark{}) {
		t.Errorf("nothing has the mark %+v", h.last())
	}
	var marks []mark
	for range remembered + 50 {
		h = h.next()
		marks = append(marks, h.last())
	}
	if len(h.Marks) != remembered || h.Number != remembered+50 {
		t.Errorf("%d marks, number %d", len(h.Marks), h.Number)
	}
	for i, m := range marks {
		if err := h.continues(m); err != nil {
			t.Errorf("mark %d: %v", i, err)
		}
	}
	other := history{Number: h.Number - 10, Marks: h.Marks[10:]} // a backup
	if err := other.continues(h.last()); err == nil {
		t.Error("a backup continues what came after it")
	}
	for range 50 {
		other = other.next() // and goes on in another way
	}
	for _, m := range []mark{h.last(), marks[len(marks)-5]} {
		if err := other.continues(m); err == nil {
			t.Errorf("number %d is part of another history", m.Number)
		}
	}
	if err := other.continues(marks[len(marks)-20]); err != nil {
		t.Errorf("what the backup has: %v", err)
	}
	for name, h := range map[string]history{"unknown": {unknown: true}, "another": other} {
		if err := h.continues(mark{}); err != nil {
			t.Errorf("%s, without a mark: %v", name, err)
		}
	}
	if err := (history{unknown: true}).continues(marks[3]); err != nil {
		t.Errorf("unknown: %v", err)
	}
	if err := (history{}).continues(marks[3]); err == nil {
		t.Error("an empty store continues another one")
	}
}
