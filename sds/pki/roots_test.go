package pki_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// anchors are roots by a letter. Z ends an hour from now, the others later.
type anchors struct {
	*testing.T
	roots pki.Roots
	certs map[string]*x509.Certificate
}

func newAnchors(t *testing.T) *anchors {
	a := &anchors{T: t, certs: make(map[string]*x509.Certificate)}
	for _, name := range []string{"A", "B", "C"} {
		a.certs[name] = pkitest.Root(t, name, now).Cert
	}
	a.certs["Z"] = pkitest.Root(t, "Z", now, pkitest.Until(now.Add(time.Hour))).Cert
	return a
}

func (a *anchors) list(names string) []*x509.Certificate {
	var out []*x509.Certificate
	for _, name := range strings.Fields(names) {
		out = append(out, a.certs[name])
	}
	return out
}

// trusted checks what is trusted, and that its order is that of the bytes.
func (a *anchors) trusted(want string) {
	a.Helper()
	var names []string
	certs := a.roots.Certs()
	for i, anchor := range a.roots.Anchors() {
		names = append(names, anchor.Cert.Subject.CommonName)
		if !certs[i].Equal(anchor.Cert) {
			a.Error("Certs and Anchors are not the same")
		}
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != want {
		a.Errorf("trusted are %q, want %q", got, want)
	}
	if !slices.IsSortedFunc(certs, func(x, y *x509.Certificate) int { return bytes.Compare(x.Raw, y.Raw) }) {
		a.Error("the order is not stable")
	}
}

func TestRootsComeAtOnceAndGoAfterTheOverlap(t *testing.T) {
	const overlap = 10 * time.Minute
	for _, tc := range []struct {
		name string
		// script is, line by line: MINUTE set NAMES, or MINUTE prune [keep NAMES], then
		// "->", whether that changed anything, and who is trusted.
		script string
	}{
		{"one that goes stays for the overlap", `
			0 set A B -> true A B
			1 set B   -> false A B
			10 prune  -> false A B
			11 prune  -> true B
			12 prune  -> false B`},
		{"one that comes is trusted at once", `
			0 set A   -> true A
			1 set A B -> true A B
			90 prune  -> false A B`},
		{"one that returns in time stays", `
			0 set A B -> true A B
			1 set B   -> false A B
			5 set A B -> false A B
			30 prune  -> false A B
			31 set B  -> false A B
			40 prune  -> false A B
			41 prune  -> true B`},
		{"one that returns late is new", `
			0 set A   -> true A
			1 set B   -> true A B
			11 prune  -> true B
			12 set A  -> true A B`},
		{"naming the others again does not prolong it", `
			0 set A B -> true A B
			1 set B   -> false A B
			9 set B   -> false A B
			11 prune  -> true B`},
		{"one that is named twice counts once", `
			0 set A A B A -> true A B
			1 set B B     -> false A B`},
		{"none named at all", `
			0 set A  -> true A
			1 set    -> false A
			11 prune -> true `},
		{"one that ended is dropped though it is named", `
			0 set A Z -> true A Z
			60 prune  -> false A Z
			61 prune  -> true A`},
		{"one that is kept outlasts the overlap", `
			0 set A B C       -> true A B C
			1 set C           -> false A B C
			20 prune keep A   -> true A C
			21 prune keep A   -> false A C
			22 prune          -> true C`},
		{"one that is kept outlasts its end", `
			0 set A Z         -> true A Z
			90 prune keep Z   -> false A Z
			91 prune keep A   -> true A`},
		{"nothing is trusted before anything is named", `
			0 prune -> false `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAnchors(t)
			a.trusted("")
			for line := range strings.SplitSeq(strings.TrimSpace(tc.script), "\n") {
				line = strings.TrimLeft(line, "\t")
				step, want, _ := strings.Cut(line, "->")
				var minute int
				var verb string
				if _, err := fmt.Sscan(step, &minute, &verb); err != nil {
					t.Fatal(err)
				}
				_, names, _ := strings.Cut(step, verb)
				at, changed := now.Add(time.Duration(minute)*time.Minute), false
				switch names, isKeep := strings.CutPrefix(strings.TrimSpace(names), "keep"); {
				case verb == "set":
					changed = a.roots.Set(at, a.list(names))
				case isKeep:
					changed = a.roots.Prune(at, overlap, func(c *x509.Certificate) bool { return slices.Contains(a.list(names), c) })
				default:
					changed = a.roots.Prune(at, overlap, func(*x509.Certificate) bool { return false })
				}
				wantChanged, wantNames, _ := strings.Cut(strings.TrimPrefix(want, " "), " ")
				if fmt.Sprint(changed) != wantChanged {
					t.Errorf("%s: changed is %v", line, changed)
				}
				a.trusted(wantNames)
				if t.Failed() {
					t.Fatalf("at: %s", line)
				}
			}
		})
	}
}

func TestRootIsKnownSinceItWasFirstNamed(t *testing.T) {
	a := newAnchors(t)
	since := func(name string, want time.Time) {
		t.Helper()
		if got := a.roots.Since(a.certs[name]); !got.Equal(want) {
			t.Errorf("%s since %v, want %v", name, got, want)
		}
	}
	later := now.Add(time.Minute)
	a.roots.Set(now, a.list("A"))
	a.roots.Set(later, a.list("A B"))
	since("A", now)
	since("B", later)
	since("C", time.Time{})
	a.roots.Set(later.Add(1), a.list("B"))
	a.roots.Set(later.Add(2), a.list("A B"))
	since("A", now)
	for _, anchor := range a.roots.Anchors() {
		if !anchor.Left.IsZero() {
			t.Errorf("%s left at %v, though it is back", anchor.Cert.Subject, anchor.Left)
		}
	}
}

func TestRestoredRootsGoOnWhereTheyWere(t *testing.T) {
	a := newAnchors(t)
	a.roots.Set(now, a.list("A B C"))
	a.roots.Set(now.Add(time.Minute), a.list("C"))
	kept := a.roots.Anchors()

	b := &anchors{T: t, certs: a.certs}
	// What is there already counts, whatever the order of those that come.
	b.roots.Set(now.Add(-time.Hour), a.list("B"))
	slices.Reverse(kept)
	b.roots.Restore(kept)
	b.trusted("A B C")
	since := map[string]time.Time{"A": now, "B": now.Add(-time.Hour), "C": now}
	left := map[string]time.Time{"A": now.Add(time.Minute), "B": {}, "C": {}}
	for _, anchor := range b.roots.Anchors() {
		name := anchor.Cert.Subject.CommonName
		if !anchor.Since.Equal(since[name]) || !anchor.Left.Equal(left[name]) {
			t.Errorf("%s since %v, left %v", name, anchor.Since, anchor.Left)
		}
	}
	if !b.roots.Prune(now.Add(11*time.Minute), 10*time.Minute, func(*x509.Certificate) bool { return false }) {
		t.Error("nothing is pruned")
	}
	b.trusted("B C")
}

func TestOrderOfRootsDoesNotDependOnThatOfTheirComing(t *testing.T) {
	a := newAnchors(t)
	var first []byte
	for range 20 {
		b := &anchors{T: t, certs: a.certs}
		for name := range maps.Keys(a.certs) {
			b.roots.Set(now, a.list(name))
		}
		b.trusted("A B C Z")
		if text := pki.EncodeCerts(b.roots.Certs()); first == nil {
			first = text
		} else if !bytes.Equal(first, text) {
			t.Fatal("it does")
		}
	}
}

func TestWhatRootsReturnIsTheCallers(t *testing.T) {
	a := newAnchors(t)
	a.roots.Set(now, a.list("A B"))
	clear(a.roots.Anchors())
	clear(a.roots.Certs())
	a.trusted("A B")
}
