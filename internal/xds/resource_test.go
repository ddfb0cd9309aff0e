package xds

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

func route(t testing.TB, name string) *anypb.Any { return pack(t, named(name)["RDS"]) }

// protocol.md 1.14: both forms of a SotW entry.
func TestASotWEntryIsTheBareResourceOrAWrapper(t *testing.T) {
	body := route(t, "r")
	bare := mustAny(t, RouteType, body)
	if bare.Name != "r" || bare.Type != RouteType || bare.UpstreamVersion != "7" || bare.Body != body || bare.Wrapped || bare.TTL() != 0 {
		t.Errorf("bare: %+v", bare)
	}
	for _, test := range []struct {
		name string
		w    *discoveryv3.Resource
		want Resource
	}{
		{"with nothing else", &discoveryv3.Resource{Resource: body}, Resource{Name: "r", UpstreamVersion: "7"}},
		{"with the same name", &discoveryv3.Resource{Name: "r", Resource: body}, Resource{Name: "r", UpstreamVersion: "7"}},
		{"with its own version", &discoveryv3.Resource{Version: "8", Resource: body}, Resource{Name: "r", UpstreamVersion: "8"}},
		{"with another name", &discoveryv3.Resource{Name: "s", Resource: body}, Resource{Name: "s", UpstreamVersion: "7", Wrapped: true}},
		{"with a resource name", &discoveryv3.Resource{ResourceName: &discoveryv3.ResourceName{Name: "s"}, Resource: body}, Resource{Name: "s", UpstreamVersion: "7", Wrapped: true}},
		{"with aliases", &discoveryv3.Resource{Aliases: []string{"x", "y"}, Resource: body}, Resource{Name: "r", UpstreamVersion: "7", Extra: &Extra{Aliases: []string{"x", "y"}}}},
		{"with a ttl", &discoveryv3.Resource{Ttl: durationpb.New(time.Minute), Resource: body}, Resource{Name: "r", UpstreamVersion: "7", Extra: &Extra{TTL: time.Minute, Deadline: now.Add(time.Minute)}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := mustAny(t, RouteType, wrap(t, test.w))
			got := Resource{Name: r.Name, UpstreamVersion: r.UpstreamVersion, Wrapped: r.Wrapped, Extra: r.Extra}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v, %+v\nwant %+v, %+v", got, got.extra(), test.want, test.want.extra())
			}
			if !bytes.Equal(r.Body.GetValue(), body.GetValue()) {
				t.Errorf("the body is not what it was")
			}
		})
	}
}

// A body whose name cannot be read has one all the same if the wrapper says it.
func TestAWrapperNamesAnUnnamedBody(t *testing.T) {
	r := mustWrapper(t, unknownType, &discoveryv3.Resource{Name: "n", Resource: &anypb.Any{TypeUrl: unknownType}})
	if r.Name != "n" || !r.Wrapped {
		t.Errorf("got %+v", r)
	}
}

func TestAnUnusableEntryIsRefusedWithItsNameAndTheReason(t *testing.T) {
	body := route(t, "r")
	long := strings.Repeat("n", MaxNameBytes+1)
	for _, test := range []struct {
		name, resource, want string
		typeURL              string
		entry                *anypb.Any
	}{
		{"another type", "", `resource of type "` + ListenerType + `" in a response of type "` + RouteType, RouteType, pack(t, named("l")["LDS"])},
		{"no type", "", `resource of type ""`, RouteType, &anypb.Any{Value: body.GetValue()}},
		{"another type in a wrapper", "l", `"l": resource of type`, RouteType, wrap(t, &discoveryv3.Resource{Name: "l", Resource: pack(t, named("l")["LDS"])})},
		{"a wrapper in a wrapper", "r", "resource of type", RouteType, wrap(t, &discoveryv3.Resource{Name: "r", Resource: wrap(t, &discoveryv3.Resource{Resource: body})})},
		{"a malformed wrapper", "", "resource wrapper", RouteType, &anypb.Any{TypeUrl: WrapperType, Value: []byte{0x1a, 9}}},
		{"no name anywhere", "", "RDS resource: resource has no name", RouteType, wrap(t, &discoveryv3.Resource{Resource: &anypb.Any{TypeUrl: RouteType}})},
		{"an empty wrapper", "", "RDS resource: resource has no name", RouteType, wrap(t, &discoveryv3.Resource{})},
		{"a bare body without a name", "", "RDS resource: resource has no name", RouteType, &anypb.Any{TypeUrl: RouteType}},
		{"a wrapper's name beyond the limit", "", "at most 8192", RouteType, wrap(t, &discoveryv3.Resource{Name: long, Resource: body})},
		{"a negative ttl", "r", "ttl of -1.000000000 s", RouteType, wrap(t, &discoveryv3.Resource{Resource: body, Ttl: durationpb.New(-time.Second)})},
		{"a ttl of nothing", "r", "want a positive duration", RouteType, wrap(t, &discoveryv3.Resource{Resource: body, Ttl: &durationpb.Duration{}})},
		{"a ttl of mixed signs", "r", "want a positive duration", RouteType, wrap(t, &discoveryv3.Resource{Resource: body, Ttl: &durationpb.Duration{Seconds: 1, Nanos: -1}})},
		{"dynamic parameter constraints (protocol.md 8.8)", "s", "dynamic parameter constraints are not supported", RouteType,
			wrap(t, &discoveryv3.Resource{Resource: body, ResourceName: &discoveryv3.ResourceName{Name: "s", DynamicParameterConstraints: &discoveryv3.DynamicParameterConstraints{}}})},
		{"a body cut short, though the wrapper has a name (protocol.md 7.3)", "r", "RDS \"r\": malformed protobuf at byte 4, field 3", RouteType,
			wrap(t, &discoveryv3.Resource{Name: "r", Resource: &anypb.Any{TypeUrl: RouteType, Value: append(text(1, "r"), 0x1a, 9)}})},
		{"a malformed cluster", "c", `cluster "c"`, ClusterType, &anypb.Any{TypeUrl: ClusterType, Value: append(text(1, "c"), text(3, "\x12\x09")...)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := FromAny(test.typeURL, "7", test.entry, now)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			name := ""
			if r != nil {
				name = r.Name
			}
			if name != test.resource {
				t.Errorf("the error is about %q, want %q", name, test.resource)
			}
			if errors.Is(err, ErrHeartbeat) {
				t.Errorf("%v: taken for a heartbeat", err)
			}
		})
	}
}

// protocol.md 6.1.
func TestAWrapperWithoutABodyIsAHeartbeat(t *testing.T) {
	r, err := FromAny(RouteType, "7", wrap(t, &discoveryv3.Resource{Name: "r", Ttl: durationpb.New(time.Minute)}), now)
	if !errors.Is(err, ErrHeartbeat) || r == nil {
		t.Fatalf("got %+v, %v", r, err)
	}
	if r.Name != "r" || r.UpstreamVersion != "7" || r.TTL() != time.Minute || !r.Deadline().Equal(now.Add(time.Minute)) {
		t.Errorf("got %+v", r)
	}
	if r, err = FromWrapper(RouteType, &discoveryv3.Resource{Name: "r", Version: "3"}, now); !errors.Is(err, ErrHeartbeat) || r.UpstreamVersion != "3" || r.TTL() != 0 {
		t.Errorf("without a ttl: %+v, %v", r, err)
	}
}

// protocol.md 3.15, 6.7.
func TestAnAliasThatNamesNothingIsAResourceWithoutABody(t *testing.T) {
	for _, test := range []struct {
		name, typeURL string
		aliases       []string
	}{
		{"a virtual host with its alias", VirtualHostType, []string{"rc/host"}},
		{"a virtual host without", VirtualHostType, nil},
		{"another type with an alias", RouteType, []string{"x"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := mustWrapper(t, test.typeURL, &discoveryv3.Resource{Name: "rc/host", Aliases: test.aliases})
			if r.Body != nil || r.Version == "" || r.Wrapper(0).GetResource() != nil {
				t.Errorf("got %+v", r)
			}
			entry, err := r.Any()
			if err != nil || entry.GetTypeUrl() != WrapperType {
				t.Errorf("in SotW: %v, %v", entry, err)
			}
		})
	}
}

// design.md section 1, protocol.md 7.4: payloads are opaque.
func TestATypeThatNobodyKnowsPassesThroughByteForByte(t *testing.T) {
	// Fields out of order, of every wire type, a varint that is longer than it
	// need be, and a field twice: nothing that decodes and encodes keeps it so.
	value := slices.Concat(number(1000, 7), text(77, "unknown"), []byte{0x18, 0x81, 0x80, 0x00}, text(1, "gizmo"), text(77, "again"))
	sent := &anypb.Any{TypeUrl: unknownType, Value: slices.Clone(value)}
	for _, test := range []struct {
		name string
		r    *Resource
	}{
		{"from Delta", mustWrapper(t, unknownType, &discoveryv3.Resource{Name: "gizmo", Version: "1", Resource: sent})},
		{"from SotW", mustAny(t, unknownType, sent)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.r.Name != "gizmo" || test.r.Wrapped {
				t.Fatalf("got %+v", test.r)
			}
			wire := marshal(t, test.r.Wrapper(0))
			var w discoveryv3.Resource
			if err := proto.Unmarshal(wire, &w); err != nil {
				t.Fatal(err)
			}
			if w.GetName() != "gizmo" || w.GetResource().GetTypeUrl() != unknownType || !bytes.Equal(w.GetResource().GetValue(), value) {
				t.Errorf("in Delta: % x, want % x", w.GetResource().GetValue(), value)
			}
			bare, err := test.r.Any()
			if err != nil || bare.GetTypeUrl() != unknownType || !bytes.Equal(bare.GetValue(), value) {
				t.Errorf("in SotW: %v, %v", bare, err)
			}
			if bare != sent || test.r.Wrapper(0).GetResource() != sent {
				t.Errorf("the body was copied: it is shared by every stream")
			}
		})
	}
}

// A wrapper is used in SotW only where the bare body would lose something.
func TestSotWCarriesAWrapperWhereTheBodyAloneLosesTheName(t *testing.T) {
	body := route(t, "r")
	for _, test := range []struct {
		name string
		w    *discoveryv3.Resource
	}{
		{"another name", &discoveryv3.Resource{Name: "s", Resource: body}},
		{"an alias", &discoveryv3.Resource{Name: "r", Resource: body, Aliases: []string{"x"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := mustWrapper(t, RouteType, test.w)
			entry, err := r.Any()
			if err != nil || entry.GetTypeUrl() != WrapperType {
				t.Fatalf("got %v, %v", entry, err)
			}
			back := mustAny(t, RouteType, entry)
			if back.Name != r.Name || back.Version != r.Version || back.UpstreamVersion != r.Version || !slices.Equal(back.Aliases(), r.Aliases()) {
				t.Errorf("came back as %+v", back)
			}
		})
	}
}

// One message serves for many resources.
func TestNothingOfOneResourceIsLeftInTheWrapperOfTheNext(t *testing.T) {
	full := mustWrapper(t, RouteType, &discoveryv3.Resource{
		Name: "full", Aliases: []string{"a"}, Resource: route(t, "r"), CacheControl: &discoveryv3.Resource_CacheControl{},
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"f": {}}},
	})
	plain := &Resource{Name: "plain"}
	w := &discoveryv3.Resource{}
	full.Wrap(w, time.Second)
	if want := full.Wrapper(time.Second); !proto.Equal(w, want) || w.GetMetadata() == nil || w.GetCacheControl() == nil {
		t.Errorf("got %v, want %v", w, want)
	}
	if plain.Wrap(w, 0); !proto.Equal(w, &discoveryv3.Resource{Name: "plain"}) {
		t.Errorf("got %v", w)
	}
}

// protocol.md 6.4: a TTL in SotW crashes Envoy; 6.5: in Delta it is what remains.
func TestATTLIsPassedOnInDeltaOnly(t *testing.T) {
	r := mustWrapper(t, RouteType, &discoveryv3.Resource{Name: "s", Resource: route(t, "r"), Ttl: durationpb.New(time.Minute)})
	if got := r.Wrapper(40 * time.Second).GetTtl().AsDuration(); got != 40*time.Second {
		t.Errorf("Delta: %v", got)
	}
	if w := r.Wrapper(0); w.GetTtl() != nil {
		t.Errorf("Delta without one: %v", w.GetTtl())
	}
	entry, err := r.Any()
	if err != nil {
		t.Fatal(err)
	}
	if back := mustAny(t, RouteType, entry); back.TTL() != 0 {
		t.Errorf("SotW: %v", back.TTL())
	}
}

func TestTheVersionIsAHashOfWhatAClientSees(t *testing.T) {
	full := func(change func(*discoveryv3.Resource)) string {
		metadata, err := structpb.NewStruct(map[string]any{"a": 1, "b": 2, "c": 3})
		if err != nil {
			t.Fatal(err)
		}
		w := &discoveryv3.Resource{
			Name: "r", Version: "1", Resource: route(t, "r"), Aliases: []string{"x", "y"},
			CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true},
			Metadata:     &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"k": metadata, "l": metadata}},
			Ttl:          durationpb.New(time.Minute),
		}
		if change != nil {
			change(w)
		}
		return mustWrapper(t, RouteType, w).Version
	}
	base := full(nil)
	if len(base) != 16 {
		t.Errorf("version %q, want 64 bits in hexadecimal", base)
	}
	for range 20 { // maps come in any order
		if again := full(nil); again != base {
			t.Fatalf("the same content has the versions %s and %s", base, again)
		}
	}
	for name, change := range map[string]func(*discoveryv3.Resource){
		"the upstream's version": func(w *discoveryv3.Resource) { w.Version = "2" },
		"the ttl":                func(w *discoveryv3.Resource) { w.Ttl = nil },
	} {
		if full(change) != base {
			t.Errorf("%s is not content, yet the version changed", name)
		}
	}
	for name, change := range map[string]func(*discoveryv3.Resource){
		"the name": func(w *discoveryv3.Resource) { w.Name = "s" },
		"the body": func(w *discoveryv3.Resource) {
			w.Resource = &anypb.Any{TypeUrl: RouteType, Value: append(w.GetResource().GetValue(), number(99, 1)...)}
		},
		"the body, to none":          func(w *discoveryv3.Resource) { w.Resource = nil },
		"an alias":                   func(w *discoveryv3.Resource) { w.Aliases[1] = "z" },
		"one alias less":             func(w *discoveryv3.Resource) { w.Aliases = w.Aliases[:1] },
		"aliases that run together":  func(w *discoveryv3.Resource) { w.Aliases = []string{"xy"} },
		"a boundary between aliases": func(w *discoveryv3.Resource) { w.Aliases = []string{"", "xy"} },
		"the cache control":          func(w *discoveryv3.Resource) { w.CacheControl.DoNotCache = false },
		"no cache control":           func(w *discoveryv3.Resource) { w.CacheControl = nil },
		"the metadata":               func(w *discoveryv3.Resource) { delete(w.GetMetadata().GetFilterMetadata(), "l") },
		"no metadata":                func(w *discoveryv3.Resource) { w.Metadata = nil },
	} {
		if full(change) == base {
			t.Errorf("%s changed, and the version did not", name)
		}
	}
}

// Bodies and aliases that are the same bytes when written one behind the other.
func TestPartsOfAResourceDoNotRunTogetherInItsVersion(t *testing.T) {
	version := func(r Resource) string { return contentHash(&r) }
	body := func(s string) *anypb.Any { return &anypb.Any{Value: []byte(s)} }
	for _, test := range []struct {
		name string
		a, b Resource
	}{
		{"name and body", Resource{Name: "ab", Body: body("c")}, Resource{Name: "a", Body: body("bc")}},
		{"body and alias", Resource{Body: body("ab"), Extra: &Extra{Aliases: []string{"c"}}}, Resource{Body: body("a"), Extra: &Extra{Aliases: []string{"bc"}}}},
		{"no body and an empty one", Resource{}, Resource{Body: body("")}},
		{"a body and an alias of the same bytes", Resource{Body: body("x")}, Resource{Extra: &Extra{Aliases: []string{"x"}}}},
		{"no aliases and an empty one", Resource{}, Resource{Extra: &Extra{Aliases: []string{""}}}},
		{"the order of aliases", Resource{Extra: &Extra{Aliases: []string{"a", "b"}}}, Resource{Extra: &Extra{Aliases: []string{"b", "a"}}}},
	} {
		if version(test.a) == version(test.b) {
			t.Errorf("%s: the same version", test.name)
		}
	}
}

// protocol.md 7.5: a client's versions stay meaningful over restarts and updates
// of holdfast, so the hash is part of what is promised.
func TestTheVersionOfAContentNeverChanges(t *testing.T) {
	r := &Resource{Name: "r", Body: &anypb.Any{Value: []byte("body")}, Extra: &Extra{Aliases: []string{"x"}}}
	if got, want := contentHash(r), "09fb1bf12a734e73"; got != want {
		t.Errorf("got %s, want %s: every client would get everything again", got, want)
	}
}

// protocol.md 7.6.
func TestTheVersionOfASetDependsOnItsMembersOnly(t *testing.T) {
	a, b, c := &Resource{Name: "a", Version: "1"}, &Resource{Name: "b", Version: "1"}, &Resource{Name: "c", Version: "1"}
	set := func(list ...*Resource) string {
		var v SetVersion
		for _, r := range list {
			v.Add(r)
		}
		return v.String()
	}
	if set(a, b, c) != set(c, a, b) {
		t.Errorf("it depends on the order")
	}
	if set() == "" {
		t.Errorf("that of the empty set is empty (protocol.md 1.11)")
	}
	a2 := &Resource{Name: "a", Version: "2"}
	swapped := []*Resource{{Name: "a", Version: "2"}, {Name: "b", Version: "1"}}
	for _, other := range []string{set(), set(a), set(a2, b), set(a, b, c)} {
		if other == set(a, b) {
			t.Errorf("other members have the version of a and b")
		}
	}
	if set(swapped...) == set(a, &Resource{Name: "b", Version: "2"}) {
		t.Errorf("versions that changed places make no difference")
	}
	var v SetVersion
	for _, r := range []*Resource{a, b, c} {
		v.Add(r)
	}
	v.Remove(c)
	v.Remove(a)
	v.Add(a2)
	if v.String() != set(a2, b) {
		t.Errorf("adding and removing ends at %s, building at %s", v.String(), set(a2, b))
	}
	v.Remove(a2)
	v.Remove(b)
	if v.String() != set() {
		t.Errorf("taking out everything does not end at the empty set")
	}
}

func TestAResourceAnswersItsNameAndItsAliases(t *testing.T) {
	r := &Resource{Name: "r", Extra: &Extra{Aliases: []string{"x", "y"}}}
	for name, want := range map[string]bool{"r": true, "x": true, "y": true, "z": false, "": false} {
		if r.Answers(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

// discovery.proto: of name and resource_name at most one should be set.
func TestTheNameOfAWrapperComesBeforeItsResourceName(t *testing.T) {
	r := mustWrapper(t, RouteType, &discoveryv3.Resource{
		Name: "r", ResourceName: &discoveryv3.ResourceName{Name: "other"}, Resource: route(t, "r"),
	})
	if r.Name != "r" || r.Wrapped {
		t.Errorf("got %+v", r)
	}
}

// There are as many as the mesh has, in each agent of a fleet.
func TestAResourceWithoutExtrasIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Resource{}); size > 112 {
		t.Errorf("%d bytes", size)
	}
	r, err := FromWrapper(RouteType, &discoveryv3.Resource{Name: "r", Version: "1", Resource: route(t, "r")}, time.Now())
	if err != nil || r.Extra != nil {
		t.Errorf("%+v, %v", r.Extra, err)
	}
	if timed := r.WithLifetime(time.Second, time.Now()); timed.WithLifetime(0, time.Time{}).Extra != nil || r.Extra != nil {
		t.Error("extras that are none")
	}
}
