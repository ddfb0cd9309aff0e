package istio

import "testing"

func TestInjected(t *testing.T) {
	m := newMesh(t, "injected")
	m.application("a", 1, withHoldfast)
	m.application("b", 1, withHoldfast)
	m.application("p", 1, withPilotAgent)
	for _, name := range []string{"a", "b", "p"} {
		m.RolledOut(name)
	}
}
