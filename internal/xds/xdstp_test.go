package xds

import (
	"slices"
	"testing"
)

// protocol.md 8.7.
func TestContextParametersAreASet(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"plain?b=2&a=1", "plain?b=2&a=1"},
		{"xdstp://auth/T/foo", "xdstp://auth/T/foo"},
		{"xdstp://auth/T/foo?b=2&a=1", "xdstp://auth/T/foo?a=1&b=2"},
		{"xdstp://auth/T/foo?b=2&a=1#entry=x&y", "xdstp://auth/T/foo?a=1&b=2#entry=x&y"},
		{"xdstp://auth/T/foo?a=1", "xdstp://auth/T/foo?a=1"},
	} {
		if got := CanonicalName(tc.name); got != tc.want {
			t.Errorf("CanonicalName(%q) = %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestAListIsCopiedOnlyWhereANameDiffers(t *testing.T) {
	same := []string{"a", "xdstp://x/T/a?k=1"}
	if got := CanonicalNames(same); &got[0] != &same[0] {
		t.Error("a canonical list was copied")
	}
	other := []string{"a", "xdstp://x/T/a?k=1&b=2"}
	got := CanonicalNames(other)
	if !slices.Equal(got, []string{"a", "xdstp://x/T/a?b=2&k=1"}) || other[1] != "xdstp://x/T/a?k=1&b=2" {
		t.Errorf("got %q, and the argument is %q", got, other)
	}
}

func TestACollectionHoldsTheNamesOfItsDirectoryAndParameters(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"plain", ""},
		{"plain/*", ""},
		{"xdstp://auth/T/foo/c1", "xdstp://auth/T/foo/*"},
		{"xdstp://auth/T/foo/c1?a=1", "xdstp://auth/T/foo/*?a=1"},
		{"xdstp://auth/T/foo/bar/c1", "xdstp://auth/T/foo/bar/*"},
		{"xdstp://auth/T/foo/*", ""},
		{"xdstp://", ""},
	} {
		if got := CollectionOf(tc.name); got != tc.want {
			t.Errorf("CollectionOf(%q) = %q, want %q", tc.name, got, tc.want)
		}
		if tc.want != "" && !IsCollection(tc.want) {
			t.Errorf("%q is a collection", tc.want)
		}
	}
}

func FuzzXdstpNames(f *testing.F) {
	for _, seed := range []string{"a", "xdstp://a/T/b?y=2&x=1", "xdstp://a/T/*", "xdstp:///?&#", "xdstp://?"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		once := CanonicalName(name)
		if twice := CanonicalName(once); twice != once {
			t.Errorf("%q becomes %q and then %q", name, once, twice)
		}
		if len(once) != len(name) {
			t.Errorf("%q becomes %q", name, once)
		}
		if glob := CollectionOf(name); glob != "" && (!IsCollection(glob) || CollectionOf(glob) != "") {
			t.Errorf("the collection of %q is %q", name, glob)
		}
	})
}
