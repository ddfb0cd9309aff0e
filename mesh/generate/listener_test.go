package generate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func describe(chains []*chain) (out []string) {
	for _, c := range chains {
		out = append(out, fmt.Sprintf("%s: %v %v %v %s", c.name, c.serverNames, c.prefixes, c.applications, c.transport))
	}
	return out
}

// Finding M1: Envoy rejects a listener in which two filter chains take a connection in common, even if they are not the same.
func TestOfChainsThatOverlapTheFirstHasWhatBothAskFor(t *testing.T) {
	tls := func(name string, names ...string) *chain {
		return &chain{name: name, serverNames: names, transport: "tls"}
	}
	for _, tc := range []struct {
		name   string
		chains []*chain
		want   []string
	}{
		{"nothing in common", []*chain{tls("one", "a"), tls("two", "b")}, []string{"one: [a] [] [] tls", "two: [b] [] [] tls"}},
		{"the same", []*chain{tls("one", "a", "b"), tls("two", "b", "a")}, []string{"one: [a b] [] [] tls"}},
		{"a name in common", []*chain{tls("one", "a", "b"), tls("two", "a", "c")}, []string{"one: [a b] [] [] tls", "two: [c] [] [] tls"}},
		{"a name in another spelling", []*chain{tls("one", "A.Test"), tls("two", "a.test", "c")}, []string{"one: [A.Test] [] [] tls", "two: [c] [] [] tls"}},
		{"any name beside one", []*chain{tls("one", "*"), tls("two", "a"), tls("three")}, []string{"one: [*] [] [] tls", "two: [a] [] [] tls"}},
		{"another transport", []*chain{tls("one", "a"), {name: "two", serverNames: []string{"a"}}}, []string{"one: [a] [] [] tls", "two: [a] [] [] "}},
		{"ranges in common", []*chain{{name: "one", prefixes: []string{"10.1.0.0/16", "10.2.0.0/16"}}, {name: "two", prefixes: []string{"10.1.2.3/16", "10.3.0.0/16"}}},
			[]string{"one: [] [10.1.0.0/16 10.2.0.0/16] [] ", "two: [] [10.3.0.0/16] [] "}},
		{"a range in two spellings", []*chain{{name: "one", prefixes: []string{"10.1.0.0/16", "10.1.2.3/16"}}}, []string{"one: [] [10.1.0.0/16 10.1.2.3/16] [] "}},
		{"a name with a range", []*chain{
			{name: "one", serverNames: []string{"a"}, prefixes: []string{"10.1.0.0/16"}},
			{name: "two", serverNames: []string{"a", "b"}, prefixes: []string{"10.1.0.0/16", "10.2.0.0/16"}},
		}, []string{"one: [a] [10.1.0.0/16] [] ", "two: [a] [10.2.0.0/16] [] ", "two~1: [b] [10.1.0.0/16 10.2.0.0/16] [] "}},
		{"an application of several", []*chain{{name: "one", applications: []string{"h2"}}, {name: "two", applications: []string{"h2", "http/1.1"}}, {name: "three"}},
			[]string{"one: [] [] [h2] ", "two: [] [] [http/1.1] ", "three: [] [] [] "}},
		{"a range within any address", []*chain{tls("one", "a"), {name: "two", prefixes: []string{"10.0.0.0/8"}}},
			[]string{"one: [a] [] [] tls", "one~within: [a] [10.0.0.0/8] [] tls", "two: [] [10.0.0.0/8] [] "}},
		{"a range that an older one has whole", []*chain{{name: "one", prefixes: []string{"10.0.0.0/8"}}, tls("two", "a")}, []string{"one: [] [10.0.0.0/8] [] ", "two: [a] [] [] tls"}},
		{"a range within a range", []*chain{{name: "one", serverNames: []string{"a"}, prefixes: []string{"10.0.0.0/8"}}, {name: "two", serverNames: []string{"a", "b"}, prefixes: []string{"10.1.0.0/16"}}},
			[]string{"one: [a] [10.0.0.0/8] [] ", "one~within: [a] [10.1.0.0/16] [] ", "two: [b] [10.1.0.0/16] [] "}},
		{"ports", []*chain{{name: "one", port: 1}, {name: "two", port: 2}, {name: "three", port: 1}}, []string{"one: [] [] [] ", "two: [] [] [] "}},
	} {
		if got := describe(distinct(tc.chains)); !slices.Equal(got, tc.want) {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
		}
	}
}

// Each range of a younger chain costs the older ones a range: one of too many is left out.
func TestRangesOfAYoungerChainCostTheOlderOnesNoMoreThanSoMany(t *testing.T) {
	older := []*chain{{name: "a", serverNames: []string{"a"}, transport: "tls"}, {name: "b", serverNames: []string{"b"}, transport: "tls"}}
	younger := func(n int) *chain {
		c := &chain{name: "many"}
		for i := range n {
			c.prefixes = append(c.prefixes, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String())
		}
		return c
	}
	names := func(chains []*chain) (out []string) {
		for _, c := range chains {
			out = append(out, fmt.Sprint(c.name, " ", len(c.prefixes)))
		}
		return out
	}
	for n, want := range map[int][]string{
		maxInner / 2:   {"a 0", "a~within 50000", "b 0", "b~within 50000", "many 50000"},
		maxInner/2 + 1: {"a 0", "b 0"},
	} {
		if got := names(distinct(append(slices.Clone(older), younger(n)))); !slices.Equal(got, want) {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	// A younger one without ranges has what is left in those of older ones, as long as that is not too much.
	chains := []*chain{younger(maxInner/2 - 1)}
	chains[0].serverNames = []string{"x"}
	for i := range 5 {
		chains = append(chains, &chain{name: fmt.Sprint("c", i), serverNames: []string{fmt.Sprint(i)}})
	}
	if got := names(distinct(chains)); !slices.Equal(got, []string{"many 49999", "c0 0", "c0~within 49999", "c1 0", "c1~within 49999", "c2 0", "c2~within 2", "c3 0", "c4 0"}) {
		t.Errorf("%q", got)
	}
}

// Envoy rejects a chain that has a range twice, and with it the listener.
func TestARangeOfAChainIsThereOnce(t *testing.T) {
	c := &chain{prefixes: []string{"10.1.2.3/16", "10.1.0.0/16", "10.2.3.4", "10.2.3.4/32", "0.0.0.0", "128.0.0.0/1"}}
	if got := c.match().GetPrefixRanges(); len(got) != 3 {
		t.Errorf("%v", got)
	}
	c.prefixes = append(c.prefixes, "0.0.0.0/0") // with which it takes every address
	if got := c.match().GetPrefixRanges(); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// points are all the points of chains, each with the chain that has it; twice if two have it.
func points(chains []*chain) (of map[point]string, twice bool) {
	of = make(map[point]string)
	orAny := func(list []string) []string {
		if len(list) == 0 {
			return []string{""}
		}
		return list
	}
	for _, c := range chains {
		for _, name := range orAny(c.match().GetServerNames()) {
			for _, prefix := range orAny(c.prefixes) {
				for _, application := range orAny(c.match().GetApplicationProtocols()) {
					p := point{c.port, prefix, name, application, c.transport}
					_, has := of[p]
					twice = twice || has
					if !has {
						of[p] = strings.Split(c.name, "~")[0]
					}
				}
			}
		}
	}
	return of, twice
}

// Whatever the chains are, no two take the same. Of a connection with a server name, the owner in Envoy is the first chain that asks for its
// address and its name; of one whose name nobody asks for, the first that asks for the longest range of addresses.
func TestEachConnectionHasTheFirstThatAsksForIt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	some := func(all ...string) (out []string) {
		for _, one := range all {
			if r.IntN(3) == 0 {
				out = append(out, one)
			}
		}
		return out
	}
	addresses := []string{"10.1.1.1", "10.1.2.1", "10.2.0.1", "10.3.0.1"}
	split := 0
	for range 20_000 {
		var chains []*chain
		for i := range 1 + r.IntN(5) {
			chains = append(chains, &chain{name: fmt.Sprint("c", i), serverNames: some("a", "b"), prefixes: some("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16", "10.1.1.0/24")})
		}
		made := distinct(chains)
		if _, twice := points(made); twice {
			t.Fatalf("%s\nbecame\n%s", strings.Join(describe(chains), "\n"), strings.Join(describe(made), "\n"))
		}
		for _, address := range addresses {
			for _, name := range []string{"a", "b", "c"} {
				want, longest, byName, byRange := "", -1, len(chains), len(chains)
				for i, c := range chains {
					switch at := longestRange(c, address); {
					case at < 0:
					case slices.Contains(c.serverNames, name):
						byName = min(byName, i)
					case len(c.serverNames) == 0:
						if at > longest {
							longest, want = at, c.name
						}
						if at > 0 {
							byRange = min(byRange, i)
						}
					}
				}
				if byRange < byName && byName < len(chains) {
					continue // the one is about the address, the other about the name
				}
				if byName < len(chains) {
					want = chains[byName].name
				}
				got, _, _ := strings.Cut(inEnvoy(made, address, name), "~")
				if got != want {
					t.Fatalf("%s %s: %q, want %q\n%s\nbecame\n%s", address, name, got, want, strings.Join(describe(chains), "\n"), strings.Join(describe(made), "\n"))
				}
			}
		}
		if len(made) > len(chains) {
			split++
		}
	}
	if split < 100 {
		t.Errorf("only %d lists have a chain that was divided", split)
	}
}

// longestRange returns the length of the longest range of a chain that has an address; 0 for a chain of any address, and -1 for none.
func longestRange(c *chain, address string) int {
	ranges := c.ranges()
	if len(ranges) == 0 {
		return 0
	}
	longest := -1
	for _, p := range ranges {
		if p.Contains(netip.MustParseAddr(address)) {
			longest = max(longest, p.Bits())
		}
	}
	return longest
}

// inEnvoy returns the chain that takes a connection: by the longest range of its address, and there by its name, or else by any name.
func inEnvoy(chains []*chain, address, name string) string {
	longest := -1
	for _, c := range chains {
		longest = max(longest, longestRange(c, address))
	}
	found := ""
	for _, c := range chains {
		if at := longestRange(c, address); at != longest || at < 0 {
			continue
		}
		if slices.Contains(c.serverNames, name) {
			return c.name
		}
		if len(c.serverNames) == 0 && found == "" {
			found = c.name
		}
	}
	if found == "" { // the default of the listener
		for _, c := range chains {
			if c.takesAll() {
				return c.name
			}
		}
	}
	return found
}
