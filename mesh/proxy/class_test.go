package proxy

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// decide is a generation that reads properties depending on what it read before.
func decide(v *View) string {
	if v.Type() == Router {
		return "router " + fmt.Sprint(v.SelectedBy(map[string]string{"app": "gw"}))
	}
	out := "sidecar of " + v.Namespace()
	if v.Namespace() == "a" && v.SelectedBy(map[string]string{"app": "x", "version": "1"}) {
		out += " with its own scope, family " + fmt.Sprint(v.Families())
	}
	return out
}

func randomProxy(random *rand.Rand) *Proxy {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	p, err := FromNode(node("n", map[string]any{
		metaType:      pick("sidecar", "router"),
		metaNamespace: pick("a", "b", "c"),
		metaIPs:       pick("10.0.0.1", "::1", "10.0.0.1,::1"),
		metaLabels:    map[string]any{"app": pick("x", "gw"), "version": pick("1", "2"), "pod": fmt.Sprint(random.Int())},
	}))
	if err != nil {
		panic(err)
	}
	return p
}

func TestProxiesThatAgreeInWhatWasReadShareTheResult(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var classes Classes[string]
	generated := 0
	for range 2000 {
		p := randomProxy(random)
		got := classes.Get(p, func(v *View) string {
			generated++
			return decide(v)
		})
		if want := decide(NewView(p)); got != want {
			t.Fatalf("shared %q, alone %q", got, want)
		}
	}
	// router with and without the label; b, c; a without the labels; a with them, three families.
	if want := 2 + 2 + 1 + 3; classes.Len() != want || generated != want {
		t.Errorf("%d classes were generated %d times, want %d", classes.Len(), generated, want)
	}
}

func TestAClassThatReadsNothingIsThatOfAll(t *testing.T) {
	var classes Classes[int]
	random, n := rand.New(rand.NewPCG(3, 4)), 0
	for range 10 {
		if got := classes.Get(randomProxy(random), func(*View) int { n++; return 7 }); got != 7 {
			t.Fatalf("got %d", got)
		}
	}
	if n != 1 {
		t.Errorf("generated %d times", n)
	}
}
