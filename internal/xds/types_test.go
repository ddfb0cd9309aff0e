package xds

import (
	"slices"
	"strings"
	"testing"
)

// design.md I4, protocol.md 4.7: make before break.
func TestTypesArePushedInTheOrderThatKeepsTrafficWhole(t *testing.T) {
	want := []string{ClusterType, EndpointType, ListenerType, RouteType, ScopedRouteType, VirtualHostType, ThriftRouteType, SecretType, RuntimeType, ExtensionConfigType}
	if got := Types(); !slices.Equal(got, want) {
		t.Fatalf("got %v", got)
	}
	mixed := append(slices.Clone(want), "type.googleapis.com/a.Unknown", "type.googleapis.com/b.Unknown")
	sorted := slices.Clone(mixed)
	slices.Reverse(sorted)
	slices.SortFunc(sorted, CompareTypes)
	if !slices.Equal(sorted, mixed) {
		t.Errorf("sorted: %v\nwant: %v", sorted, mixed)
	}
	for i, a := range mixed {
		for j, b := range mixed {
			if got := CompareTypes(a, b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("CompareTypes(%s, %s) = %d", Short(a), Short(b), got)
			}
			if got := CompareShort(Short(a), Short(b)); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("CompareShort(%s, %s) = %d", Short(a), Short(b), got)
			}
		}
	}
}

func TestAbbreviationsNameTheKnownTypes(t *testing.T) {
	want := []string{"CDS", "EDS", "LDS", "RDS", "SRDS", "VHDS", "TRDS", "SDS", "RTDS", "ECDS"}
	for i, url := range Types() {
		if got := Short(url); got != want[i] {
			t.Errorf("Short(%s) = %s, want %s", url, got, want[i])
		}
		for _, short := range []string{want[i], strings.ToLower(want[i])} {
			if got, ok := TypeByShort(short); !ok || got != url {
				t.Errorf("TypeByShort(%s) = %s, %v", short, got, ok)
			}
		}
	}
	for url, want := range map[string]string{unknownType: "example.v9.Gizmo", "no.slash": "no.slash", "": ""} {
		if got := Short(url); got != want {
			t.Errorf("Short(%q) = %q, want %q", url, got, want)
		}
	}
	for _, short := range []string{"", "XDS", ClusterType} {
		if url, ok := TypeByShort(short); ok || url != "" {
			t.Errorf("TypeByShort(%q) = %q", short, url)
		}
	}
}

// design.md I3, protocol.md 1.13, 2.1, V8, V11.
func TestOnlyAFewTypesAreCompleteSetsOrHaveALegacyWildcard(t *testing.T) {
	full := []string{ClusterType, ListenerType, ScopedRouteType}
	for _, url := range append(Types(), unknownType, "") {
		if got, want := FullState(url), slices.Contains(full, url); got != want {
			t.Errorf("FullState(%s) = %v", Short(url), got)
		}
		if got, want := Info(url).LegacyWildcard, slices.Contains(full, url) || url == VirtualHostType || url == unknownType; got != want {
			t.Errorf("LegacyWildcard(%s) = %v", Short(url), got)
		}
	}
	// What Envoy has beside the known types is named, and Istio's types are not.
	for url, want := range map[string]bool{
		googleapis + "envoy.config.endpoint.v3.LbEndpoint": false,
		googleapis + "istio.networking.nds.v1.NameTable":   true,
		"istio.io/debug": true,
	} {
		if got := Info(url).LegacyWildcard; got != want {
			t.Errorf("LegacyWildcard(%s) = %v", Short(url), got)
		}
	}
}

func TestStatesAreNamedForPeople(t *testing.T) {
	for got, want := range map[string]string{
		Unknown.String(): "unknown", Partial.String(): "partial", Complete.String(): "complete",
		Pending.String(): "pending", Acked.String(): "accepted", Suspect.String(): "suspect", Nacked.String(): "rejected",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
