package contents

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	one  history.Source = 7
	glob                = "xdstp://a/envoy.config.cluster.v3.Cluster/g/*"
)

func res(nameVersion string, aliases ...string) *xds.Resource {
	name, version, _ := strings.Cut(nameVersion, "@")
	r := &xds.Resource{Type: xds.ClusterType, Name: name, Version: version, Body: &anypb.Any{Value: []byte(version)}}
	if len(aliases) > 0 {
		r.Extra = &xds.Extra{Aliases: aliases}
	}
	return r
}

func update(list ...string) (u xds.Update) {
	for _, nameVersion := range list {
		u.Resources = append(u.Resources, res(nameVersion))
	}
	return u
}

func newType(list ...string) (*Contents, *Type) {
	c := &Contents{}
	t := c.Type(xds.ClusterType)
	for _, r := range update(list...).Resources {
		t.Put(r, Origin{Source: one}, nil)
	}
	return c, t
}

func TestAnAliasAndACollectionLeadToWhatIsHeldNow(t *testing.T) {
	_, typ := newType()
	member := strings.TrimSuffix(glob, "*") + "b"
	typ.Put(res("a@1", "x", "y"), Origin{Source: one}, nil)
	typ.Put(res(member+"@1"), Origin{Source: one}, nil)
	if typ.Find("x") == nil || typ.Canonical("x") != "a" || typ.Canonical("b") != "b" || !typ.IsKnown(glob) {
		t.Error("not all that is held is found")
	}
	typ.Put(res("a@2", "y", "z"), Origin{Source: one}, nil)
	if typ.Find("x") != nil || typ.Find("z") == nil {
		t.Error("an alias of the content before is left")
	}
	typ.Put(res("c@1", "y"), Origin{Source: one}, nil)
	typ.Drop("a")
	if e := typ.Find("y"); e == nil || e.Current().Name != "c" {
		t.Error("an alias that another resource has now went with the first")
	}
	typ.Drop(member)
	if n := len(maps.Collect(typ.Collection(glob))); n != 0 || typ.IsKnown(glob) {
		t.Errorf("%d of the collection are left", n)
	}
}

func TestWhatIsHeldIsCounted(t *testing.T) {
	c, typ := newType("a@1", "b@22")
	other := c.Type(xds.ListenerType)
	other.Put(res("a@333"), Origin{Source: one}, nil)
	typ.Put(res("b@4444"), Origin{Source: one}, nil)
	typ.Restore(history.Restored(history.Saved{Content: res("d@1"), Source: one, Acked: true}), nil)
	if c.Resources != 4 || c.Bytes != 1+4+3+1 {
		t.Errorf("%d resources of %d bytes", c.Resources, c.Bytes)
	}
	typ.Drop("a")
	typ.Drop("none")
	other.Drop("a")
	typ.Drop("d")
	if c.Resources != 1 || c.Bytes != 4 || typ.Len() != 1 {
		t.Errorf("%d resources of %d bytes are left", c.Resources, c.Bytes)
	}
}

func TestTheOthersAreWhatTheLastUpdateDidNotHave(t *testing.T) {
	_, typ := newType("a@1", "b@1", "c@1")
	typ.BeginUpdate()
	typ.Put(typ.Resource("a"), Origin{Source: one}, nil) // the same pointer
	typ.Put(res("b@2"), Origin{Source: one}, nil)
	if got := slices.Collect(maps.Keys(maps.Collect(typ.NotInUpdate()))); !slices.Equal(got, []string{"c"}) {
		t.Errorf("others: %q", got)
	}
}

func TestAnUpdateBeyondALimitIsRejectedUnlessItAddsNothing(t *testing.T) {
	limits := Limits{Resources: 3, Bytes: 9}
	removed := update("d@1")
	removed.Removed = []string{"a"}
	all := update("a@4444", "d@55555")
	all.Complete = true
	for name, tc := range map[string]struct {
		u       xds.Update
		removes bool
		want    string
	}{
		"it fits":                      {update("c@1"), true, ""},
		"it replaces":                  {update("a@2", "b@2", "c@1"), true, ""},
		"one resource too many":        {update("c@1", "d@1"), true, "--max-resources"},
		"bytes too many":               {update("c@88888888"), true, "--max-resource-bytes"},
		"all of it is new":             {all, true, ""},
		"what goes waits":              {all, false, "--max-resource-bytes"},
		"one goes, as another comes":   {removed, true, ""},
		"unless what goes has to wait": {func() xds.Update { u := update("c@1", "d@1"); u.Removed = []string{"a"}; return u }(), false, "--max-resources"},
	} {
		_, typ := newType("a@1", "b@1")
		err := typ.Check(tc.u, limits, tc.removes)
		if got := fmt.Sprint(err); (err == nil) != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	_, typ := newType("a@1", "b@1", "c@1", "d@1") // restored, or the limit was lowered
	if err := typ.Check(update("a@2"), limits, true); err != nil {
		t.Errorf("what is held is changed: %v", err)
	}
	if err := typ.Check(update("e@2"), limits, true); err == nil {
		t.Error("there is room for one more than too many")
	}
}

// design.md I1 and I2.
func TestWhatIsKnownOfEverythingOfAType(t *testing.T) {
	complete := xds.Update{Complete: true}
	delta := xds.Update{Wildcard: true}
	unasked := xds.Update{KeepUnsubscribed: true}
	both := xds.Update{KeepUnsubscribed: true, Complete: true}
	for name, tc := range map[string]struct {
		does func(t *Type)
		want xds.Knowledge
	}{
		"nothing":                              {func(*Type) {}, xds.Unknown},
		"a complete answer":                    {func(t *Type) { t.UpdateKnowledge(complete, true) }, xds.Complete},
		"one that nobody asked for":            {func(t *Type) { t.UpdateKnowledge(complete, false) }, xds.Partial},
		"of a source that reports all":         {func(t *Type) { t.UpdateKnowledge(both, false) }, xds.Complete},
		"a first Delta answer":                 {func(t *Type) { t.UpdateKnowledge(delta, true) }, xds.Partial},
		"one to names":                         {func(t *Type) { t.UpdateKnowledge(delta, false) }, xds.Unknown},
		"a part of what a source reports":      {func(t *Type) { t.UpdateKnowledge(unasked, false) }, xds.Partial},
		"the Delta stream is synced":           {func(t *Type) { t.UpdateKnowledge(delta, true); t.Synced(true) }, xds.Complete},
		"nothing came, and it is synced":       {func(t *Type) { t.Synced(true) }, xds.Unknown},
		"an empty answer came":                 {func(t *Type) { t.SetAnswered(); t.Synced(true) }, xds.Complete},
		"an answer came to something else":     {func(t *Type) { t.SetAnswered(); t.Synced(false) }, xds.Unknown},
		"something was evicted":                {func(t *Type) { t.UpdateKnowledge(complete, true); t.SetIncomplete() }, xds.Partial},
		"from a source that reports all":       {func(t *Type) { put(t, true); t.UpdateKnowledge(both, true); t.SetIncomplete() }, xds.Complete},
		"and from another":                     {func(t *Type) { put(t, true); put(t, false); t.UpdateKnowledge(both, true); t.SetIncomplete() }, xds.Partial},
		"restored and not yet shown":           {func(t *Type) { t.RestoreKnown() }, xds.Unknown},
		"restored and shown":                   {func(t *Type) { t.RestoreKnown(); t.ShowRestored() }, xds.Partial},
		"restored after a source had answered": {func(t *Type) { t.SetAnswered(); t.RestoreKnown(); t.ShowRestored() }, xds.Unknown},
	} {
		_, typ := newType()
		if tc.does(typ); typ.Knowledge() != tc.want {
			t.Errorf("%s: %v, want %v", name, typ.Knowledge(), tc.want)
		}
	}
}

func put(t *Type, keepUnsubscribed bool) {
	t.Put(res(fmt.Sprintf("r%v@1", keepUnsubscribed)), Origin{one, keepUnsubscribed}, nil)
}

func TestWhatWasRestoredIsHiddenUntilASourceAnswersOrItIsShown(t *testing.T) {
	_, typ := newType()
	early := typ.Restore(history.Restored(history.Saved{Content: res("a@1"), Source: one, Acked: true}), nil)
	if !typ.Hidden(early) || early.RestoredAfterAnswer() {
		t.Error("it is served at once")
	}
	if shown, knowledge := typ.ShowRestored(); !shown || knowledge || typ.Hidden(early) || !early.Restored() {
		t.Errorf("shown %v, knowledge %v", shown, knowledge)
	}
	if shown, _ := typ.ShowRestored(); shown {
		t.Error("it is shown twice")
	}
	typ.SetAnswered()
	late := typ.Restore(history.Restored(history.Saved{Content: res("b@1"), Source: one, Acked: true}), nil)
	if typ.Hidden(late) || !late.RestoredAfterAnswer() {
		t.Error("what is restored after an answer is hidden, or not late")
	}
	late.Confirm()
	if late.RestoredAfterAnswer() || late.Restored() {
		t.Error("its source has spoken of it")
	}
}

func TestThatANameDoesNotExistIsForgottenWithItsCollection(t *testing.T) {
	_, typ := newType()
	member := strings.TrimSuffix(glob, "*") + "b"
	typ.SetNotFound(member)
	typ.SetNotFound("a")
	typ.ForgetNotFound(glob)
	if typ.NotFound(member) || !typ.NotFound("a") || !typ.WasRemoved("a") {
		t.Error("something else is forgotten than the collection")
	}
	typ.Put(res("a@1"), Origin{Source: one}, nil)
	if typ.NotFound("a") || typ.WasRemoved("b") {
		t.Error("what is held does not exist, or what nobody spoke of")
	}
	typ.SetAnswered()
	typ.UpdateKnowledge(xds.Update{Complete: true}, true)
	if !typ.WasRemoved("b") {
		t.Error("a complete answer does not remove what it lacks")
	}
	for i := range maxNotFound + 2 {
		typ.SetNotFound(fmt.Sprint(i))
	}
	if n := len(typ.notFound); n > maxNotFound {
		t.Errorf("%d names are remembered", n)
	}
}
