package process

import "testing"

func TestTheStatusOfAProcessIsReadInBytes(t *testing.T) {
	m, err := ParseStatus([]byte("Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\nRssAnon:\t     12 kB\n"))
	if err != nil || m != (Memory{RSS: 1 << 20, Anon: 12 << 10, Peak: 2 << 20}) {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := ParseStatus([]byte("Name:\tx\nState:\tZ (zombie)\n")); err == nil {
		t.Error("a process that has ended has memory")
	}
}
