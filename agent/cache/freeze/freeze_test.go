package freeze

import (
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

func TestWhatAnOrderFreezes(t *testing.T) {
	name := func(typeURL, name string) xds.Key { return xds.Key{Type: typeURL, Name: name} }
	for what, test := range map[string]struct {
		order       *Order
		frozen, not []xds.Key
	}{
		"nothing": {nil, nil, []xds.Key{name(xds.ClusterType, "a")}},
		"everything": {&Order{All: true},
			[]xds.Key{name(xds.ClusterType, "a"), name(xds.RouteType, "a"), name("type.googleapis.com/my.Own", "a")},
			[]xds.Key{name(xds.EndpointType, "a"), name(xds.SecretType, "a")}},
		"endpoints, too": {&Order{All: true, Types: []string{xds.EndpointType}},
			[]xds.Key{name(xds.ClusterType, "a"), name(xds.EndpointType, "a")}, []xds.Key{name(xds.SecretType, "a")}},
		"a type": {&Order{Types: []string{xds.RouteType}},
			[]xds.Key{name(xds.RouteType, "a")}, []xds.Key{name(xds.ClusterType, "a")}},
		"a name": {&Order{Names: []xds.Key{name(xds.RouteType, "a")}},
			[]xds.Key{name(xds.RouteType, "a")}, []xds.Key{name(xds.RouteType, "b"), name(xds.ClusterType, "a")}},
	} {
		for _, k := range test.frozen {
			if !test.order.Frozen(k) {
				t.Errorf("%s: %v is not frozen", what, k)
			}
		}
		for _, k := range test.not {
			if test.order.Frozen(k) {
				t.Errorf("%s: %v is frozen", what, k)
			}
		}
	}
}

func TestAnOrderIsReadAsItWasWritten(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	o := &Order{Since: at, By: "uid 0", Reason: "a \"bad\"\nnight", All: true, Names: []xds.Key{{Type: xds.RouteType, Name: "a b"}}, Until: at.Add(time.Hour), ACK: true, RolledBackTo: at}
	if got := Parse(o.Format()); !reflect.DeepEqual(got, o) {
		t.Errorf("%+v, want %+v", got, o)
	}
	for _, text := range []string{"", "{", "{}", "yes", "[]"} {
		if got := Parse(text); got != nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if (*Order)(nil).Format() != "" {
		t.Error("no order has a text")
	}
}

func TestTwoOrdersTogether(t *testing.T) {
	a := &Order{Types: []string{xds.RouteType}, Names: []xds.Key{{Type: xds.ClusterType, Name: "a"}}, Reason: "one"}
	b := Order{Types: []string{xds.RouteType, xds.ClusterType}, Names: []xds.Key{{Type: xds.ClusterType, Name: "b"}}, Reason: "two"}
	got := a.With(b)
	if len(got.Types) != 2 || len(got.Names) != 2 || got.Reason != "two" || len(b.Names) != 1 {
		t.Errorf("%+v", got)
	}
	if got := (&Order{All: true}).With(b); !got.All {
		t.Error("what was frozen is not frozen any more")
	}
}
